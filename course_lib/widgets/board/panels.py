"""Panels: the charts of a board as plain data.

`charts` makes one live plotly figure of them, `charts_svg` pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.record.curves import Curve, Goal

POINTS = 300  # at most, in a line: a panel is hardly wider
BIN = 0.25  # seconds over which a rate is taken, at least


@dataclass(frozen=True)
class Panel:
    """A chart: its title, what its axes count, one line (x, y) an entrant, and a `target` across
    it, if there is one.

    `marks`: where each entrant reached the target, None if it did not.
    """

    title: str
    x: str
    y: str
    lines: Sequence[tuple[np.ndarray, np.ndarray]]
    target: float | None = None
    marks: Sequence[tuple[float, float] | None] = ()


def over_seconds(what: str, curves: Sequence[Curve], goal: Goal | None) -> Panel:
    """The curves of all entrants over time."""
    lines = [(thin(c.seconds), thin(c.values)) for c in curves]
    return Panel(f"{what} over seconds", "seconds", what, lines, *_goal(what, curves, goal, 0))


def over_examples(what: str, curves: Sequence[Curve], goal: Goal | None) -> Panel:
    """The curves of all entrants over the examples that they have seen."""
    lines = [(thin(c.examples), thin(c.values)) for c in curves]
    return Panel(f"{what} over examples", "examples", what, lines, *_goal(what, curves, goal, 1))


def throughput(curves: Sequence[Curve]) -> Panel:
    """The rates of all entrants over time."""
    return Panel("examples a second", "seconds", "examples/s", [rate(c) for c in curves])


def _goal(
    what: str, curves: Sequence[Curve], goal: Goal | None, axis: int
) -> tuple[float | None, list[tuple[float, float] | None]]:
    """The target of a panel, and where each curve reached it."""
    if goal is None or goal.what != what:
        return None, []
    return goal.value, [(r[axis], goal.value) if (r := goal.reached(c)) else None for c in curves]


def thin(values: np.ndarray) -> np.ndarray:
    """At most `POINTS` of them, evenly; the first and the last are among them."""
    return (
        values
        if len(values) <= POINTS
        else values[np.linspace(0, len(values) - 1, POINTS).astype(int)]
    )


def rate(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Throughput over time: (seconds, examples a second), each a mean over the time since the one
    before.
    """
    first = np.searchsorted(curve.seconds, 0.0, side="right")
    seconds, examples = curve.seconds[first:], curve.examples[first:]
    if len(seconds) < 3:
        return np.zeros(0), np.zeros(0)
    width = max(BIN, 4 * (seconds[-1] - seconds[0]) / len(seconds), (seconds[-1] - seconds[0]) / 60)
    edges = np.arange(seconds[0], seconds[-1], width)
    if len(edges) < 2:
        return np.zeros(0), np.zeros(0)
    return edges[1:], np.diff(np.interp(edges, seconds, examples)) / width


def latest(curve: Curve, over: float = 2.0) -> float | None:
    """Examples a second in the last few seconds; None while there is too little to tell."""
    if len(curve.seconds) < 3 or curve.seconds[-1] <= 0:
        return None
    since = max(0.0, curve.seconds[-1] - over)
    first = int(np.searchsorted(curve.seconds, since, side="right")) - 1
    seconds = curve.seconds[-1] - curve.seconds[max(first, 0)]
    return (
        float(curve.examples[-1] - curve.examples[max(first, 0)]) / seconds if seconds > 0 else None
    )
