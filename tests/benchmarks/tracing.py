"""What the trace costs: the time of a step with it and without."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import course_lib
from course_lib.cluster.task import Task, clock
from tests.benchmarks import clusters, timed
from tests.benchmarks.harness import Aim, Options, Rows, compare

WITHIN = Aim("at most", 1.03)
PACE = 0.002  # seconds of an emulated step
Work = Callable[[Task], object]


def rows(options: Options) -> Rows:
    """Two loops of 2 ms a step, in which nothing else is to be seen; then the strategy itself, in both frameworks."""
    steps = 200 if options.quick else 1000
    for name, work in (("sleeps", sleeping()), ("computes", computing())):
        clusters.warm("python")
        ours, peer = (loop(work, steps, traced) for traced in (True, False))
        yield compare(f"trace of a step that {name} 2 ms, 5 events", "ms", ours, ("the same loop without events", peer), WITHIN, options)
    for framework in ("tensorflow", "torch"):
        clusters.warm(framework)
        ours, peer = (strategy(framework, steps, traced) for traced in (True, False))
        yield compare(f"trace of multi_worker_mirrored, digits, {framework}", "ms", ours, ("trace=False", peer), WITHIN, options)


def strategy(framework: str, steps: int, traced: bool) -> Callable[[], float]:
    """Milliseconds of a step of multi_worker_mirrored. The mean: the trace is written now and then, which a median would not show."""

    def measure() -> float:
        return timed.mean_ms(timed.ours(framework, steps, traced).moments)

    return measure


def loop(work: Work, steps: int, traced: bool) -> Callable[[], float]:
    """Milliseconds of a step of a plain loop in one task, with all that is written behind its back."""

    def run(task: Task) -> float:
        began = clock()
        for n in range(steps):
            if traced:
                step_in_phases(task, work, n)
            else:
                work(task)
        task.recorder.flush()
        return (clock() - began) / steps * 1000

    def measure() -> float:
        started = course_lib.start(run, framework="python", workers=1, device_ms=1000 * PACE).wait(clusters.LONGEST)
        (value,) = started.result.values()
        return float(value)

    return measure


def step_in_phases(task: Task, work: Work, n: int) -> None:
    """What a strategy says in a step."""
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
    """Arithmetic in this process, as much as takes 2 ms here: the thread that writes the trace must then find its time beside it."""
    matrix: Any = np.ones((64, 64), np.float32)

    def busy(rounds: int) -> None:
        for _ in range(rounds):
            matrix @ matrix

    def seconds(rounds: int) -> float:
        began = time.perf_counter()
        busy(rounds)
        return time.perf_counter() - began

    rounds = round(1000 * PACE / min(seconds(1000) for _ in range(10)))
    return lambda task: busy(rounds)
