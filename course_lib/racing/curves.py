"""Curves of a run: its loss and its test accuracy over time and over the examples seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from course_lib.record.events import Metric, Phase
from course_lib.record.trace import Trace

# batches over which a loss is averaged: that of a single one goes up and down by chance
WINDOW = 10
POINTS = 500  # at most, in a curve written as JSON


class Point(NamedTuple):
    """The loss after `seconds` and `examples`: `loss` as recorded, `mean` over the last `WINDOW`
    batches' worth of examples.
    """

    seconds: float
    examples: int
    loss: float
    mean: float


class Reading(NamedTuple):
    """The test accuracy after `seconds` and `examples`."""

    seconds: float
    examples: int
    accuracy: float


def loss_curve(trace: Trace, batch: int, zero: float) -> list[Point]:
    """The losses in order of time, seconds from `zero`, each with its mean over the last examples.

    What was computed before is at 0, even if it is recorded later: a chief may have had it lying
    there. Workers that report one and the same loss, the mean over the global batch, give one
    point. Workers that go their own ways give one each.
    """
    computed: dict[int, float] = {}
    for p in trace.all(Phase, what="compute"):
        computed[p.step] = max(p.end, computed.get(p.step, p.end))
    seen: dict[tuple[int, int, float], Metric] = {}
    for m in trace.all(Metric, name="loss"):
        key = (m.step, m.samples, m.value)
        if key not in seen or m.at < seen[key].at:
            seen[key] = m
    points: list[Point] = []
    examples, oldest, total, begun = 0, 0, 0.0, False
    losses = sorted(seen.values(), key=lambda m: m.at)
    counts: list[int] = []
    for i, m in enumerate(losses):
        # workers that count together may write down their counts in another order
        examples = max(examples, m.samples)
        counts.append(examples)
        total += m.value
        while counts[oldest] <= examples - WINDOW * batch:
            total -= losses[oldest].value
            oldest += 1
        begun = begun or (m.at > zero and computed.get(m.step, m.at) > zero)
        seconds = m.at - zero if begun else 0.0
        points.append(Point(seconds, examples, m.value, total / (i + 1 - oldest)))
    return points


def accuracy_curve(trace: Trace, zero: float) -> list[Reading]:
    """The measurements of the test accuracy in order of time, seconds from `zero`.

    Tasks that measured it together give one.
    """
    seen: dict[tuple[int, int, float], Metric] = {}
    for m in sorted(trace.all(Metric, name="accuracy"), key=lambda m: m.at):
        seen.setdefault((m.step, m.samples, m.value), m)
    return [Reading(max(0.0, m.at - zero), m.samples, m.value) for m in seen.values()]


def throughput(curve: Sequence[Point]) -> float | None:
    """Examples a second from the start of the clock to the last loss; None without a loss since."""
    if not curve or curve[-1].seconds <= 0:
        return None
    before = max((p.examples for p in curve if p.seconds <= 0), default=0)
    return (curve[-1].examples - before) / curve[-1].seconds


def columns(points: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """The fields of many points as lists by name; of more than `POINTS` only some, the last among
    them.
    """
    if len(points) > POINTS:
        points = [points[round(i * (len(points) - 1) / (POINTS - 1))] for i in range(POINTS)]
    return {name: [getattr(p, name) for p in points] for name in names}
