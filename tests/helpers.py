"""What tests of several files use."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec
from unittest.mock import patch

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from course_lib import hardware, start, workloads
from course_lib.errors import SpecError, TaskFailed
from course_lib.hardware import Plan
from course_lib.launch import prepare
from course_lib.record.events import Metric, Phase, Update
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import gate
from course_lib.workloads import Workload, order
from tests.screens import says

P = ParamSpec("P")

SUM_ORDER: dict[str, Any] = {"rtol": 0, "atol": 2e-6}
"""The tolerance for float32 sums in another order. One device adds the same numbers as several
workers, but in another order; weights and losses are of size 0.1 to 2.
"""


ALL_REDUCE = [
    *("algorithm", "workers", "hosts", "bytes", "rounds"),
    *("bytes_sent_per_worker", "busiest_link_bytes"),
    *("seconds", "predicted_seconds", "prediction_error", "bus_bandwidth"),
    *("exact", "reality"),
]
"""The figures of an all-reduce, in their order."""

FOUR_HOSTS: dict[str, Any] = {"workers": 4, "hosts": 4, "workload": "wide", "steps": 30}
"""The fields of a run in which all that workers send goes over a wire."""


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """Settings for a test over random inputs: so many examples, or as many as LOCKSTEP_FUZZ says.
    Inputs are the same each time, unless LOCKSTEP_FUZZ asks for more of them.
    """
    asked = os.environ.get("LOCKSTEP_FUZZ", examples)
    return settings(max_examples=int(asked), suppress_health_check=list(HealthCheck))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["worker:0", "worker:9", "ps:0", "compute", "", "\0", "a" * 300]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
"""Anything that JSON can hold."""


def examples_of(
    workload: Workload,
    step: int,
    seed: int,
    batch: int,
    share: int = 0,
    of: int = 1,
    sampler: str = "global",
) -> np.ndarray:
    """Indices of the training examples in a share of a step's global batch."""
    spec = RunSpec(seed=seed, sampler=sampler)
    pieces = order.pieces(spec, workload.train, step, share, of, batch)
    return np.concatenate([indices for _, indices in pieces])


def until(
    true: Callable[[], object], what: str, seconds: float = 60.0, every: float = 0.02
) -> None:
    """Wait until `true()` holds; fails after `seconds`, and says for `what` it waited."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"still not after {seconds:g} s: {what}"
        time.sleep(every)


def meet(task: Any) -> None:
    """Have the framework of a task meet the other tasks."""
    if task.spec.framework == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
    else:
        import tensorflow as tf

        tf.distribute.MultiWorkerMirroredStrategy()


def greeting(address: str, port: int) -> bytes:
    """What a server of gRPC says first to whoever connects; nothing if nobody is there."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((address, port), timeout=1) as line,
    ):
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
        return line.recv(100)
    return b""


def outer() -> set[str]:
    """The addresses of this machine that others may reach."""
    each = [a for found in psutil.net_if_addrs().values() for a in found]
    families = (socket.AF_INET, socket.AF_INET6)
    return {a.address for a in each if a.family in families} - {"127.0.0.1", "::1"}


class Disturbed(AssertionError):
    """Times that are not as they should be, or were not in this measurement."""


def words_of(process: psutil.Process) -> list[str]:
    """The command line of a process; of one that has just ended, none."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@contextlib.contextmanager
def of_times() -> Iterator[None]:
    """What is asserted in the block is of measured times, and of what follows from them alone."""
    try:
        yield
    except AssertionError as wrong:
        raise Disturbed(str(wrong)) from wrong


def undisturbed(measured: Callable[[], None], times: int = 3) -> None:
    """Measure up to `times` times, until what is asserted `of_times` holds: on a busy machine
    another program may disturb one measurement, but not each of several. Whatever else is wrong
    fails at once.
    """
    for left in reversed(range(times)):
        try:
            return measured()
        except Disturbed:
            if not left:
                raise


def compares_times(*caches: Any) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A test that compares measured times: it tries up to three times, as `undisturbed` does, and
    what the `caches` (of `functools.cache`) have kept is measured anew.
    """

    def wrapped(test: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(test)
        def tries(*args: P.args, **kwargs: P.kwargs) -> None:
            def measured() -> None:
                try:
                    test(*args, **kwargs)
                except Disturbed:
                    for cache in caches:
                        cache.cache_clear()
                    raise

            undisturbed(measured)

        return tries

    return wrapped


def planned(what: Any, **fields: Any) -> Plan:
    """The plan of a run on this machine, which is not started."""
    here = hardware.probe()
    return prepare(gate.admit(gate.requested(what, fields), here), here).plan


def judged(spec: RunSpec) -> None:
    """Raise the first refusal of what a spec says by itself, whatever its strategy."""
    for refusal in gate.refusals(gate.Request(spec)):
        raise refusal


def refused(screen: str, strategy: str, **fields: Any) -> SpecError:
    """The refusal of a strategy with such fields: one line, as a block of the screen says."""
    # without the workloads that other tests have made
    with patch.dict(workloads.OWN, clear=True), pytest.raises(SpecError) as caught:
        spec_for(strategy, **fields)
    assert "\n" not in str(caught.value)
    says(screen, f"{strategy} {fields or ''}", caught.value)
    return caught.value


def names_a_killed_worker(strategy: str) -> None:
    """Check that a killed worker ends a run in torch with its name."""
    with start(strategy, framework="torch", workers=2, steps=100_000) as run:
        while len(run.trace.all(Update)) < 10:
            run.wait_running(60)
            time.sleep(0.02)
        run.kill("worker:1")
        with pytest.raises(TaskFailed) as caught:
            run.wait(30)
        assert caught.value.task == "worker:1"
        assert not (run.run_dir / "meetings").exists()


def losses(trace: Trace, task: str = "worker:0", name: str = "loss") -> list[float]:
    """The losses that a task recorded, in the order of its steps."""
    return [metric.value for metric in trace.all(Metric, task, name=name)]


def keeping_weights(path: str) -> Callable[[Any], dict[str, Any]]:
    """A role function that returns, besides what the one at `path` (`module:function`) returns, the
    `weights` that its task ended with.
    """

    def role(task: Any) -> dict[str, Any]:
        from course_lib.workloads import layers

        module, _, function = path.partition(":")
        strategy = importlib.import_module(module)
        kept: list[np.ndarray] = []
        original = layers.digest

        def digest(weights: Any) -> str:
            kept.extend(np.array(w) for w in weights)
            return original(weights)

        for loaded in list(sys.modules.values()):  # whoever has taken it from `layers`
            if getattr(loaded, "digest", None) is original:
                vars(loaded)["digest"] = digest
        result: dict[str, Any] = getattr(strategy, function)(task)
        return result | {"weights": kept}

    return role


def updates(trace: Trace, ps: str = "ps:0") -> list[Update]:
    """The updates that a parameter server made, in the order of the versions that they wrote."""
    return sorted(trace.all(Update, ps), key=lambda u: u.written)


def usual(trace: Trace, task: str, what: str) -> float:
    """Seconds that a phase usually takes a task."""
    return statistics.median(p.end - p.start for p in trace.all(Phase, task, what=what))


def lockstep(
    *arguments: str, home: Path | None = None, seconds: float = 90, module: str = "course_lib"
) -> subprocess.CompletedProcess[str]:
    """Run a command of `lockstep`, with a LOCKSTEP_HOME of its own or that of the tests."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "COLUMNS": "200", **({"LOCKSTEP_HOME": str(home)} if home else {})},
    )


def losses_of(trace: Trace) -> list[float]:
    """Return the loss of each step, in order of step."""
    by_step = {m.step: m.value for m in trace.all(Metric, name="loss")}
    return [by_step[step] for step in sorted(by_step)]


def spec_for(what: object, /, **fields: Any) -> RunSpec:
    """Return the spec of a run on this machine, complete and admitted. Raises as `admit` does."""
    return gate.admit(gate.requested(what, fields), hardware.probe()).spec
