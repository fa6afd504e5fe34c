"""Panels: the charts of a board as plain data. `charts` makes one live plotly figure of them,
`still` and `html` pictures.
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


def progress(what: str, over: str, curves: Sequence[Curve], goal: Goal | None) -> Panel:
    """The curves of all entrants, `what` is the loss or the accuracy, over `seconds` or `examples`,
    with the goal if it is about them.
    """
    lines = [(getattr(c, over), c.means) for c in (curve.thinned(POINTS) for curve in curves)]
    if goal is None or goal.what != what:
        return Panel(f"{what} over {over}", over, what, lines)
    axis = ("seconds", "examples").index(over)
    marks = [(r[axis], goal.value) if (r := goal.reached(c)) else None for c in curves]
    return Panel(f"{what} over {over}", over, what, lines, goal.value, marks)


def throughput(curves: Sequence[Curve]) -> Panel:
    """The rates of all entrants over time."""
    return Panel("examples a second", "seconds", "examples/s", [_rates(c) for c in curves])


def _rates(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Throughput over time: (seconds, examples a second), each a mean over the time since the one
    before.
    """
    first = np.searchsorted(curve.seconds, 0.0, side="right")
    seconds, examples = curve.seconds[first:], curve.examples[first:]
    if len(seconds) < 3:
        return np.zeros(0), np.zeros(0)
    whole = seconds[-1] - seconds[0]
    width = max(BIN, 4 * whole / len(seconds), whole / 60)
    edges = np.arange(seconds[0], seconds[-1], width)
    if len(edges) < 2:
        return np.zeros(0), np.zeros(0)
    return edges[1:], np.diff(np.interp(edges, seconds, examples)) / width
