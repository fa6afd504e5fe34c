"""The network of a run: what it costs to make, and all-reduces of the frameworks and of our own
over the same links, in time and in bytes.

A time is the quickest of several: what the others took longer was done by other programs, and not
by the network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

import course_lib
from course_lib.collectives import build
from course_lib.record import measures
from course_lib.spec.fields import Link
from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Row, Rows, compare
from tests.helpers import FOUR_HOSTS

LENGTH = 1 << 20  # numbers of 4 bytes: 4 MiB
CALLS = 15
STARTS = 3
PAUSE = 0.5  # seconds in which the kernel clears the network of the run before
LINK = Link(mbit=200)
PARAMETERS = 999_985 + 1  # of the wide model, and the loss, which goes along
BOUND = 0.3  # seconds that a network with eight hosts may cost


def rows(options: Options) -> Rows:
    """The cost of a start; 4 hosts with a worker each; 2 hosts with 4 workers each; bytes on the
    wire.
    """
    yield start_cost(options)
    limit = ("what the link allows", lambda: 2 * 3 / 4 * LENGTH * 4 / LINK.bytes_per_second)
    for what in ("tensorflow RING", "torch gloo", "our ring"):
        yield compare(
            f"{what}, 4 hosts, 200 Mbit/s, 4 MiB",
            "s",
            partial(seconds, what, 4, 4),
            limit,
            Aim("at most", 1.2),
            options,
        )
    ring = ("our ring", partial(seconds, "our ring", 8, 2))
    for what, aim in (
        ("our hierarchical", Aim("faster", 1.2)),
        ("torch gloo", Aim("shown")),
        ("our ring in the worst order", Aim("shown")),
    ):
        yield compare(
            f"{what}, 2 hosts x 4, 200 Mbit/s, 4 MiB",
            "s",
            partial(seconds, what, 8, 2),
            ring,
            aim,
            options,
        )
    formula = ("2(n-1)/n S", lambda: 2 * 3 / 4 * 4 * PARAMETERS)
    for what, framework, all_reduce in (
        ("RING", "tensorflow", "native"),
        ("gloo", "torch", "native"),
        ("our ring", "torch", "ring"),
    ):
        name = f"{framework}, {what}, bytes that a worker sends in a step"
        yield compare(
            name,
            "bytes",
            partial(wire_bytes, framework, all_reduce),
            formula,
            Aim("at most", 1.03),
            options,
        )


def start_cost(options: Options) -> Row:
    """Eight tasks on eight hosts, and eight tasks on a plain loopback and the seconds that hosts
    may cost.
    """
    clusters.warm("python")

    def started() -> float:
        time.sleep(PAUSE)
        began = time.monotonic()
        with course_lib.start(lambda: time.sleep(clusters.LONGEST), workers=8, hosts=8) as run:
            run.wait_running(clusters.LONGEST)
            return time.monotonic() - began

    def quickest(network: str) -> float:
        with networked(network):
            return min(started() for _ in range(STARTS))

    peer = (f"loopback, and {BOUND} s", lambda: quickest("loopback") + BOUND)
    return compare(
        "start of 8 tasks on 8 hosts",
        "s",
        lambda: quickest("hosts"),
        peer,
        Aim("at most", 1.0),
        options,
    )


@contextmanager
def networked(kind: str) -> Iterator[None]:
    """For the block, runs have hosts if they can, or loopback."""
    before = os.environ.pop("LOCKSTEP_NETWORK", None)
    try:
        if kind == "loopback":
            os.environ["LOCKSTEP_NETWORK"] = kind
        yield
    finally:
        os.environ.pop("LOCKSTEP_NETWORK", None)
        if before is not None:
            os.environ["LOCKSTEP_NETWORK"] = before


def seconds(what: str, workers: int, hosts: int) -> float:
    """Seconds of an all-reduce of 4 MiB over links of 200 Mbit/s: the quickest of some calls, each
    as long as on its slowest worker.
    """
    framework, _, how = what.partition(" ")
    role = {"tensorflow": tensorflow_calls, "torch": torch_calls}.get(framework, our_calls)
    fields: dict[str, Any] = {
        "framework": "python" if framework == "our" else framework,
        "workers": workers,
        "link": LINK,
    }
    if "worst" in how:
        run = course_lib.start(
            role("ring"), placement={f"worker:{i}": i % hosts for i in range(workers)}, **fields
        )
    else:
        run = course_lib.start(role(how), hosts=hosts, **fields)
    return min(map(max, zip(*run.wait(clusters.LONGEST).result.values(), strict=True)))


def timed(call: Any) -> list[float]:
    """The seconds of some calls after a first one."""
    call()
    spans = []
    for _ in range(CALLS):
        began = time.monotonic()
        call()
        spans.append(time.monotonic() - began)
    return spans


def our_calls(algorithm: str) -> Any:
    def work(task: Any) -> list[float]:
        hosts = [task.spec.places[name] for name in task.spec.tasks]
        schedule, array = build(algorithm, len(hosts), hosts=hosts), np.zeros(LENGTH, np.float32)
        group = task.group(schedule)
        found = timed(lambda: group.execute(schedule, array))
        group.close()
        return found

    return work


def torch_calls(_: str) -> Any:
    def work() -> list[float]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        array = torch.zeros(LENGTH)
        return timed(lambda: dist.all_reduce(array))

    return work


def tensorflow_calls(_: str) -> Any:
    def work() -> list[float]:
        import tensorflow as tf

        ring = tf.distribute.experimental.CommunicationImplementation.RING
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=ring
            )
        )

        with strategy.scope():
            array = tf.Variable(tf.zeros(LENGTH))

        @tf.function(autograph=False)
        def step() -> Any:
            return strategy.run(
                lambda: tf.distribute.get_replica_context().all_reduce("sum", array.read_value())[0]
            )

        return timed(lambda: step().numpy())

    return work


def wire_bytes(framework: str, all_reduce: str) -> float:
    """Bytes that a worker of four sends in a step, as the kernel counts them: the most that any
    does.
    """
    fields = {"framework": framework, "all_reduce": all_reduce, **FOUR_HOSTS}
    run = course_lib.start("multi_worker_mirrored", **fields)
    found = measures.wire_bytes_per_step(run.wait(clusters.LONGEST).trace)
    return max(both["sent"] for name, both in found.items() if name.startswith("worker:"))
