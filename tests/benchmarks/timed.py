"""A training on digits with the moment at which each step was over: ours, and the plain
scripts'.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import course_lib
from course_lib import RunSpec, hardware, workloads
from course_lib.cluster.task import Task, clock
from course_lib.network.layout import LOOPBACK, reserve_ports
from course_lib.record.events import Event, Metric
from tests.benchmarks import clusters

WORKERS = 2
WARM_UP = 50  # steps that are not counted


class Training(NamedTuple):
    """The moments in seconds, and the loss that it ended with: two trainings with the same loss
    were the same training.
    """

    moments: list[float]
    final_loss: float


def median_ms(moments: Sequence[float]) -> float:
    """Milliseconds of the middle one of all steps after the warm-up."""
    return statistics.median(b - a for a, b in itertools.pairwise(moments[WARM_UP:])) * 1000


class Cluster(NamedTuple):
    """The tasks of a training; with `replicas` in one process instead of workers, where a strategy
    has them there.
    """

    strategy: str = "multi_worker_mirrored"
    workers: int = WORKERS
    replicas: int = 1
    ps: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "replicas": self.replicas,
            "ps": self.ps,
            "chief": self.ps > 0,
        }


USUAL = Cluster()


def ours(framework: str, steps: int, cluster: Cluster = USUAL) -> Training:
    """A strategy as every learner runs it, but for a look at the clock when a step reports its
    loss.
    """
    module = f"course_lib.strategies.{framework}.{cluster.strategy}"

    def work(task: Task) -> Training:
        moments: list[float] = []
        add = task.recorder.add

        def look(event: Event) -> None:
            add(event)
            if type(event) is Metric:
                moments.append(clock())

        task.recorder.add = look
        result = getattr(importlib.import_module(module), task.job)(task)
        return Training(moments, result["final_loss"])

    def serve(task: Task) -> None:
        getattr(importlib.import_module(module), task.job)(task)

    programs = {"chief": work, "worker": serve, "ps": serve} if cluster.ps else work
    run = course_lib.start(programs, framework=framework, steps=steps, **cluster.fields)
    return Training(*run.wait(clusters.LONGEST).result["chief:0" if cluster.ps else "worker:0"])


def plain(framework: str, steps: int, cluster: Cluster = USUAL) -> Training:
    """The plain script, with the data, the weights, the batches and the threads of our own run, in
    processes that import the framework themselves.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        describe(framework, steps, Path(folder), cluster)
        tasks = RunSpec(strategy="custom", framework=framework, **cluster.fields).tasks
        held = {task: stack.enter_context(sock) for task, sock in reserve_ports(tasks).items()}
        named = [
            name for name in [cluster.strategy] if framework == "tensorflow" and not cluster.ps
        ]
        script = "plain_parameter_server.py" if cluster.ps else f"plain_{framework}.py"
        command = [sys.executable, str(clusters.PEERS / script), *named, folder]
        addresses = {task: f"{LOOPBACK}:{sock.getsockname()[1]}" for task, sock in held.items()}
        started = [
            stack.enter_context(clusters.process(command, extra))
            for extra in places(framework, addresses)
        ]
        answers = 1 if cluster.ps else cluster.workers
        left = clusters.arrived(
            Path(folder),
            answers,
            check=lambda: [clusters.still_there(process) for process in started],
        )
    results = [json.loads(text) for text in left]
    return Training(results[0]["moments"], statistics.mean(result["loss"] for result in results))


def places(framework: str, addresses: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """What tells each task its place in the cluster, in the way of its framework."""
    by_job: dict[str, list[str]] = {}
    for task, address in addresses.items():
        by_job.setdefault(task.partition(":")[0], []).append(address)
    for rank, task in enumerate(addresses):
        job, _, index = task.partition(":")
        if framework == "tensorflow":
            alone = len(addresses) == 1
            yield (
                {}
                if alone
                else {
                    "TF_CONFIG": json.dumps(
                        {"cluster": by_job, "task": {"type": job, "index": int(index)}}
                    )
                }
            )
        else:
            host, port = by_job["worker"][0].split(":")
            yield {
                "MASTER_ADDR": host,
                "MASTER_PORT": port,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(addresses)),
            }


def describe(framework: str, steps: int, folder: Path, cluster: Cluster) -> None:
    """Write down a training in numbers alone, for scripts that know nothing of this library."""
    spec = RunSpec(strategy="custom", framework=framework, steps=steps, **cluster.fields)
    workload = workloads.load(spec)
    order = [
        [workload.batch(n, spec.seed, spec.batch, share, spec.shares) for n in range(steps)]
        for share in range(spec.shares)
    ]
    weights: dict[str, Any] = {
        f"weight{i}": weight for i, weight in enumerate(workload.initial_weights(spec.seed))
    }
    threads = hardware.plan(spec, hardware.probe()).threads
    np.savez(
        folder / "training.npz",
        x=workload.train.inputs,
        y=workload.train.targets,
        order=order,
        rate=workload.learning_rate,
        threads=threads,
        replicas=cluster.replicas,
        **weights,
    )
