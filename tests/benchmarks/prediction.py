"""How well the model predicts: alpha and beta are found on three sizes of a ring, and tried on
algorithms and sizes that were held back.

All calls are made by the same four processes, in turn, so that each repeat is a machine of its own:
fitted, and judged by what it did then. A time is the quickest of many: it is the algorithm that is
judged, and not what else the machine had to do. Then short messages over links of a set speed,
whose alpha and beta are found without the links.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from course_lib.collectives import ALGORITHMS, Fit, Sample, build, cost, ring, tree
from course_lib.reduction.measure import (
    calibration,
    expected,
    job,
    measure,
    measure_and_model,
    parameters,
)
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from tests.benchmarks.harness import Aim, Options, Rows, turns

WORKERS = 4
TIMINGS = 60
LINKS = (Link(mbit=200), Link(mbit=50))
OVER_LINKS = ("hierarchical", "ring", "ring_worst_order")
SHORT = (1 << 10, 16 << 10, 64 << 10)  # bytes
HELD_BACK = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)  # bytes


def rows(options: Options) -> Rows:
    """The error of single predictions, as a part of the measured time; the size from which a ring
    beats a tree; and errors over links.
    """
    judged = [judge() for _ in range(options.repeats)]
    yield from error_rows(
        "held-out algorithms and sizes", [errors for errors, _ in judged], options
    )
    crossings = iter([crossing for _, crossing in judged])
    yield turns(
        "size from which a ring beats a tree, predicted",
        "KiB",
        lambda: [next(crossings)],
        "measured",
        Aim("shown"),
        options,
    )
    over_links = [errors_over_links() for _ in range(options.repeats)]
    what = "short messages, 2 hosts x 4, 200 and 50 Mbit/s"
    yield from error_rows(what, over_links, options)


def error_rows(what: str, errors: list[list[float]], options: Options) -> Rows:
    """The middle and the 95th percentile of the errors, which were found in each repeat."""
    for name, quantile, bound in (("median", 0.5, 0.10), ("95th percentile", 0.95, 0.25)):
        pairs = iter([(float(np.quantile(found, quantile)), 1.0) for found in errors])
        yield turns(
            f"error of a predicted time, {name} of {what}",
            "of it",
            lambda pairs=pairs: [next(pairs)],
            "the measured time",
            Aim("at most", bound),
            options,
        )


def errors_over_links() -> list[float]:
    """The errors of predictions for 2 hosts with 4 workers each, over links of each speed."""
    schedules = [build(name, 8, hosts=2) for name in OVER_LINKS]
    jobs = [job(s, size // 4, checked=False) for s in schedules for size in SHORT]
    found = []
    for link in LINKS:
        done, model = measure_and_model(jobs, RunSpec(hosts=2, link=link))
        found += [abs(expected(m.job, model) / m.sample.seconds - 1) for m in done]
    return found


def judge() -> tuple[list[float], tuple[float, float]]:
    """The errors of all held-out predictions, and where tree and ring cross, predicted and
    measured, in KiB.
    """
    schedules = [
        build(name, WORKERS, **({"colocated": True} if name == "parameter_server" else {}))
        for name in ALGORITHMS
    ]
    tests = calibration(schedules[0])
    known = {(j.schedule.name, j.length * 4) for j in tests}
    jobs = [
        job(s, size // 4, checked=False)
        for s in schedules
        for size in HELD_BACK
        if (s.name, size) not in known
    ]
    samples = [m.sample for m in measure([replace(j, repeats=TIMINGS) for j in (*tests, *jobs)])]
    fitted = parameters(samples[: len(tests)])
    errors = [
        abs(cost(s.schedule, s.bytes, fitted.topology, s.itemsize).seconds / s.seconds - 1)
        for s in samples[len(tests) :]
    ]
    return errors, (crossing(predicted(fitted)) / 1024, crossing(measured(samples)) / 1024)


Gap = Callable[[float], float]
"""Of a size: how many times longer a tree takes than a ring, as a logarithm."""


def predicted(fitted: Fit) -> Gap:
    def gap(size: float) -> float:
        times = [
            cost(make(WORKERS), int(size), fitted.topology, 4).seconds for make in (tree, ring)
        ]
        return math.log(times[0] / times[1])

    return lambda size: gap(int(size) // 4 * 4)


def measured(samples: list[Sample]) -> Gap:
    """Between the sizes that were measured: a straight line on logarithmic scales."""
    times = {
        name: {s.bytes: s.seconds for s in samples if s.schedule.name == name}
        for name in ("tree", "ring")
    }
    sizes = sorted(set(times["tree"]) & set(times["ring"]))
    gaps = [math.log(times["tree"][size] / times["ring"][size]) for size in sizes]
    return lambda size: float(np.interp(math.log(size), np.log(sizes), gaps))


def crossing(gap: Gap) -> float:
    """The first size at which the ring is quicker; infinite if that is beyond what was measured."""
    for size in np.geomspace(HELD_BACK[0], HELD_BACK[-1], 200):
        if gap(float(size)) > 0:
            return float(size)
    return math.inf
