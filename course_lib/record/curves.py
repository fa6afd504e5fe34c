"""Curves of a run that goes on: the loss and the test accuracy over time and over the examples
seen, kept up to date.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from course_lib.record.events import Metric

# batches over which a loss is averaged: that of a single one goes up and down by chance
WINDOW = 10


class Curve(NamedTuple):
    """Arrays of equal length, in order of time: `seconds` from the start of the clock, `examples`
    seen by then, `values`, the `best` so far.
    """

    seconds: np.ndarray
    examples: np.ndarray
    values: np.ndarray
    best: np.ndarray

    @property
    def last(self) -> float | None:
        return float(self.values[-1]) if len(self.values) else None

    @property
    def record(self) -> float | None:
        """The best value of all; None while there is no finite one."""
        return float(self.best[-1]) if len(self.best) and np.isfinite(self.best[-1]) else None


EMPTY = Curve(*np.zeros((4, 0)))


class Goal(NamedTuple):
    """What is raced for: a value of the `loss`, to be reached from above, or of the test
    `accuracy`, from below.
    """

    what: str
    value: float

    def reached(self, curve: Curve) -> tuple[float, int] | None:
        """Seconds and examples until a curve was there first; None if it never was."""
        sign = 1 if self.what == "accuracy" else -1
        first = bisect_left(curve.best, True, key=lambda best: sign * best >= sign * self.value)
        return (
            (float(curve.seconds[first]), int(curve.examples[first]))
            if first < len(curve.best)
            else None
        )

    def __str__(self) -> str:
        return f"{self.what} {self.value:.3g}"


Key = tuple[int, int, float]  # of a reading: its step, the examples seen by then, the value


class Readings:
    """The values of a metric. Tasks that report one and the same give one reading, at the time of
    the first.

    `best`: `np.fmin` or `np.fmax`. `window`: over how many examples values are averaged; 0 leaves
    them as they are. What a curve costs depends on how many readings are new, not on how many there
    are: they are kept in order of time, and only the end is worked out anew.
    """

    def __init__(self, best: np.ufunc, window: int = 0) -> None:
        self._best, self._window = best, window
        self._at: dict[Key, float] = {}
        self._new: dict[Key, None] = {}
        self._sorted: list[Key] = []
        self._clock: tuple[float, list[int]] = (math.inf, [])
        self._columns = {
            name: np.zeros(1024)
            for name in ("at", "step", "examples", "sum", "value", "best", "seconds")
        }

    def add(self, m: Metric) -> None:
        key = (m.step, m.samples, m.value)
        if m.at < self._at.get(key, math.inf):
            self._at[key] = m.at
            self._new[key] = None

    def curve(self, zero: float, early: Sequence[int] = ()) -> Curve:
        """The readings so far.

        All are at 0 s until one comes after `zero` that is not of an `early` step.
        """
        begin = self._sort()
        count = len(self._sorted)
        if count > len(self._columns["at"]):
            self._columns = {
                name: np.resize(column, 2 * count) for name, column in self._columns.items()
            }
        column = {name: column[:count] for name, column in self._columns.items()}
        if begin < count:
            self._work_out(column, begin)
        if self._clock != (zero, list(early)):
            self._clock, begin = (zero, list(early)), 0
        after = np.maximum(0.0, column["at"][begin:] - zero)  # nothing is after infinity
        late = (after > 0) & ~np.isin(column["step"][begin:], early)
        late[:1] |= begin > 0 and column["seconds"][begin - 1] > 0
        column["seconds"][begin:] = after * np.logical_or.accumulate(late)
        return Curve(column["seconds"], column["examples"], column["value"], column["best"])

    def _sort(self) -> int:
        """Put what is new in its place; from where on anything is."""
        new, self._new = self._new, {}
        if not new:
            return len(self._sorted)
        time = self._at.__getitem__
        begin = bisect_left(self._sorted, min(map(time, new)), key=time)
        self._sorted[begin:] = sorted(
            [*(key for key in self._sorted[begin:] if key not in new), *new], key=time
        )
        return begin

    def _work_out(self, column: dict[str, np.ndarray], begin: int) -> None:
        """Fill the columns from `begin` on, but for the seconds."""
        tail = self._sorted[begin:]
        column["at"][begin:] = [self._at[key] for key in tail]
        column["step"][begin:], examples, values = np.array(tail, float).T
        before = max(0, begin - 1)
        if self._window:
            column["examples"][begin:] = examples
            # workers that count together may write down their counts in another order
            counts = column["examples"]
            counts[before:] = np.maximum.accumulate(counts[before:])
            column["sum"][begin:] = values
            column["sum"][before:] = np.cumsum(column["sum"][before:])
            oldest = np.searchsorted(counts, counts[begin:] - self._window, side="right")
            gone = np.where(oldest > 0, column["sum"][oldest - 1], 0.0)
            column["value"][begin:] = (column["sum"][begin:] - gone) / (
                np.arange(begin + 1, len(counts) + 1) - oldest
            )
        else:
            column["examples"][begin:], column["value"][begin:] = examples, values
        column["best"][begin:] = column["value"][begin:]
        column["best"][before:] = self._best.accumulate(column["best"][before:])
