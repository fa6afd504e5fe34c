"""What the trace costs: the time of a step with it and without.

Both are measured in one run that records its steps for a while, then does not, and so on: what one
process does faster than the next cannot pass for a cost of the trace then. Each stretch is long
enough for what is written behind its back to be in it.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import course_lib
from course_lib.cluster.task import Task
from course_lib.record.events import Event, Metric, Recorder, clock
from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Row, Rows, turns

WITHIN = Aim("at most", 1.03)
PACE = 0.002  # seconds of an emulated step
STRETCHES = 18  # in a run; the first two are its warm-up
Work = Callable[[Task], object]


def rows(options: Options) -> Rows:
    """Two loops of 2 ms a step, in which nothing else is to be seen; then the strategy itself, in
    both frameworks.
    """
    length = 50 if options.quick else 200
    for name, work in (("sleeps", sleeping()), ("computes", computing())):
        yield row(
            f"trace of a step that {name} 2 ms, 5 events",
            "no events",
            "python",
            1,
            loop(work, length),
            length,
            options,
        )
    for framework in ("tensorflow", "torch"):
        train = strategy(framework, length)
        yield row(
            f"trace of multi_worker_mirrored, {framework}",
            "trace=False",
            framework,
            2,
            train,
            length,
            options,
        )


def row(
    name: str,
    peer: str,
    framework: str,
    workers: int,
    work: Work,
    length: int,
    options: Options,
    **more: Any,
) -> Row:
    clusters.warm(framework, **more)
    fields: dict[str, Any] = {
        "framework": framework,
        "workers": workers,
        "steps": STRETCHES * length,
        "device_ms": 0.0,
        **more,
    }
    if framework == "python":
        fields["device_ms"] = 1000 * PACE

    def pairs() -> Iterator[tuple[float, float]]:
        run = course_lib.start(work, **fields).wait(clusters.LONGEST)
        return in_pairs(run.values["worker:0"], length)

    return turns(name, "ms", pairs, peer, WITHIN, options)


def in_pairs(moments: Sequence[float], length: int) -> Iterator[tuple[float, float]]:
    """Milliseconds of a step in each recorded stretch and in the unrecorded one after it, from the
    moments at which stretches ended.
    """
    means = [(b - a) / length * 1000 for a, b in itertools.pairwise(moments[1:])]
    return zip(means[::2], means[1::2], strict=True)


def strategy(framework: str, length: int) -> Work:
    """multi_worker_mirrored on digits.

    Without a trace it makes the same events, and they are thrown away.
    """

    def work(task: Task) -> list[float]:
        moments = take_turns(task, length)
        importlib.import_module(f"course_lib.strategies.{framework}.multi_worker_mirrored").worker(
            task
        )
        return moments

    return work


def take_turns(task: Task, length: int) -> list[float]:
    """From now on record `length` steps, throw the events of the next `length` away, and so on.

    The list will get the moment of each turn.
    """
    sinks = itertools.cycle((task.recorder.add, Recorder(None).add))
    sink, steps, moments = next(sinks), itertools.count(1), []

    def add(event: Event) -> None:
        nonlocal sink
        sink(event)
        if type(event) is Metric and next(steps) % length == 0:  # the last event of a step
            task.recorder.flush()
            moments.append(clock())
            sink = next(sinks)

    task.recorder.add = add
    return moments


def loop(work: Work, length: int) -> Work:
    """A loop that says in a recorded step what strategies say, and in the others nothing."""

    def run(task: Task) -> list[float]:
        moments = []
        for stretch in range(STRETCHES):
            for n in range(length):
                if stretch % 2:
                    work(task)
                else:
                    step_in_phases(task, work, n)
            task.recorder.flush()
            moments.append(clock())
        return moments

    return run


def step_in_phases(task: Task, work: Work, n: int) -> None:
    with task.phase("read", n):
        pass
    with task.phase("compute", n):
        work(task)
    now = clock()
    task.record("reduce", n, now, now)
    task.record("apply", n, now, now)
    task.metric("loss", 1.0, n, n)


def sleeping() -> Work:
    """A device that computes by itself while the process waits for it."""
    return lambda task: task.pace()


def computing() -> Work:
    """Arithmetic in this process, as much as takes 2 ms here: the thread that writes the trace must
    then find its time beside it.
    """
    matrix: Any = np.ones((64, 64), np.float32)

    def busy(rounds: int) -> None:
        for _ in range(rounds):
            matrix @ matrix

    def seconds(rounds: int) -> float:
        began = time.perf_counter()
        busy(rounds)
        return time.perf_counter() - began

    rounds = round(100 * PACE / min(seconds(100) for _ in range(20)))
    return lambda task: busy(rounds)
