"""Curves of a run: its loss and its test accuracy over time and over the examples seen, kept up to
date while it goes on.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from course_lib.record.events import Metric

# batches over which a loss is averaged: that of a single batch goes up and down by chance
WINDOW = 10


class Curve(NamedTuple):
    """Arrays of equal length, in order of time: `seconds` from the start of the clock, `examples`
    seen by then, `values` as recorded, their `means` over the last `WINDOW` batches' worth of
    examples (of an accuracy the values themselves), and the `best` mean so far.
    """

    seconds: np.ndarray
    examples: np.ndarray
    values: np.ndarray
    means: np.ndarray
    best: np.ndarray

    @property
    def last(self) -> float | None:
        """The last mean."""
        return float(self.means[-1]) if len(self.means) else None

    @property
    def record(self) -> float | None:
        """The best mean of all; None while there is no finite one."""
        return float(self.best[-1]) if len(self.best) and np.isfinite(self.best[-1]) else None

    def thinned(self, most: int) -> Curve:
        """At most so many points, evenly chosen; the first and the last are among them."""
        if len(self.seconds) <= most:
            return self
        chosen = np.linspace(0, len(self.seconds) - 1, most).round().astype(int)
        return Curve(*(column[chosen] for column in self))

    def rate(self, over: float = math.inf) -> float | None:
        """Examples a second, from the start of the clock or in the last `over` seconds; None
        without a reading in that time.
        """
        if not len(self.seconds):
            return None
        since = max(0.0, self.seconds[-1] - over)
        before = int(np.searchsorted(self.seconds, since, side="right")) - 1
        start, seen = (self.seconds[before], self.examples[before]) if before >= 0 else (0.0, 0)
        seconds = self.seconds[-1] - start
        return float((self.examples[-1] - seen) / seconds) if seconds > 0 else None


EMPTY = Curve(*np.zeros((5, 0)))


class Goal(NamedTuple):
    """What is raced for: a mean `loss`, to be reached from above, or a test `accuracy`, to be
    reached from below.
    """

    what: str
    value: float

    @staticmethod
    def of_all(what: str, curves: Iterable[Curve]) -> Goal | None:
        """What all curves have reached: the best of the one whose best is worst. Curves without a
        value do not count; None if there is no other.
        """
        best = [curve.record for curve in curves if curve.record is not None]
        worst = min if what == "accuracy" else max
        return Goal(what, worst(best)) if best else None

    def reached(self, curve: Curve) -> tuple[float, int] | None:
        """Seconds and examples until a curve was there first; None if it never was."""
        sign = 1 if self.what == "accuracy" else -1
        first = bisect_left(curve.best, True, key=lambda best: sign * best >= sign * self.value)
        if first == len(curve.best):
            return None
        return float(curve.seconds[first]), int(curve.examples[first])

    def __str__(self) -> str:
        return f"{self.what} {self.value:.3g}"


Key = tuple[int, int, float]  # of a reading: its step, the examples seen by then, the value


class Readings:
    """The values of a metric. Tasks that report one and the same give one reading, at the time of
    the first.

    `best`: `np.fmin` or `np.fmax`. `window`: over how many examples values are averaged; 0 leaves
    them as they are. The cost of a curve depends on how many readings are new, not on how many
    there are: readings are kept in order of time, and only the end is worked out again.
    """

    def __init__(self, best: np.ufunc, window: int = 0) -> None:
        self._best, self._window = best, window
        self._at: dict[Key, float] = {}
        self._new: dict[Key, None] = {}
        self._sorted: list[Key] = []
        self._clock: tuple[float, list[int]] = (math.inf, [])
        names = ("at", "step", "sum", *Curve._fields)
        self._columns = {name: np.zeros(1024) for name in names}

    def add(self, m: Metric) -> None:
        """Take in a value."""
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
        return Curve(*(column[name] for name in Curve._fields))

    def _sort(self) -> int:
        """Put what is new in its place; returns from where on anything changed."""
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
        fields = np.array(tail, float).T
        for name, values in zip(("step", "examples", "values"), fields, strict=True):
            column[name][begin:] = values
        column["means"][begin:] = column["values"][begin:]
        before = max(0, begin - 1)
        if self._window:
            # workers that count together may write down their counts in another order
            counts = column["examples"]
            counts[before:] = np.maximum.accumulate(counts[before:])
            column["sum"][begin:] = column["values"][begin:]
            column["sum"][before:] = np.cumsum(column["sum"][before:])
            oldest = np.searchsorted(counts, counts[begin:] - self._window, side="right")
            gone = np.where(oldest > 0, column["sum"][oldest - 1], 0.0)
            number = np.arange(begin + 1, len(counts) + 1) - oldest
            column["means"][begin:] = (column["sum"][begin:] - gone) / number
        column["best"][begin:] = column["means"][begin:]
        column["best"][before:] = self._best.accumulate(column["best"][before:])
