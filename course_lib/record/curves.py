"""Curves of a run, kept up to date while it goes on: its loss and its test accuracy over time and
over the examples used.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from course_lib.record.events import Metric

# batches over which a loss is averaged, because the loss of one batch varies by chance
WINDOW = 10


class Curve(NamedTuple):
    """Arrays of equal length, in order of time: `seconds` from the start of the clock, `examples`
    used by then, `values` as recorded, their `means` over the last `WINDOW` batches' worth of
    examples (for an accuracy, the values themselves), and the `best` mean so far.
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
    def duration(self) -> float:
        """Seconds from the start of the clock to the last reading; 0 if there is none."""
        return float(self.seconds[-1]) if len(self.seconds) else 0.0

    @property
    def record(self) -> float | None:
        """The best of all means; None if none is finite."""
        return float(self.best[-1]) if len(self.best) and np.isfinite(self.best[-1]) else None

    def thinned(self, most: int) -> Curve:
        """At most `most` points, evenly spaced, with the first and the last among them."""
        if len(self.seconds) <= most:
            return self
        chosen = np.linspace(0, len(self.seconds) - 1, most).round().astype(int)
        return Curve(*(column[chosen] for column in self))

    def examples_at(self, seconds: float) -> float:
        """Examples used at a time, between two readings in proportion."""
        return float(np.interp(seconds, self.seconds, self.examples)) if len(self.seconds) else 0.0

    def rate(self, over: float = math.inf) -> float | None:
        """Examples a second since the start of the clock, or in the last `over` seconds; None if
        there is no reading in that time.
        """
        if not len(self.seconds):
            return None
        since = max(0.0, self.seconds[-1] - over)
        before = int(np.searchsorted(self.seconds, since, side="right")) - 1
        start, seen = (self.seconds[before], self.examples[before]) if before >= 0 else (0.0, 0)
        seconds = self.seconds[-1] - start
        return float((self.examples[-1] - seen) / seconds) if seconds > 0 else None


EMPTY = Curve(*np.zeros((5, 0)))


class Readings:
    """The values of a metric. If several tasks report the same value, it is one reading, at the
    time of the first report.

    `best`: `np.fmin` or `np.fmax`. `window`: the number of examples over which values are averaged;
    0: they are not averaged. `steps`: average over as many steps' worth of examples instead, if the
    values tell how many those are. Adding a value costs a tuple; making a curve costs a few numpy
    passes over all readings.
    """

    def __init__(self, best: np.ufunc, window: int = 0, steps: int = 0) -> None:
        self._best, self._window, self._steps = best, window, steps
        self._numbers: dict[tuple[int, int, float], int] = {}  # step, examples, value -> number
        # of each reading: its time; and its step, examples and value
        self._at, self._rows = array("d"), array("d")

    def add(self, m: Metric) -> None:
        """Add a value."""
        row = (m.step, m.samples, m.value)
        number = self._numbers.setdefault(row, len(self._at))
        if number == len(self._at):
            self._at.append(m.at)
            self._rows.extend(row)
        self._at[number] = min(m.at, self._at[number])

    def curve(self, zero: float, early: Sequence[int] = ()) -> Curve:
        """The readings so far.

        Readings before the clock starts (`zero`), and those of `early` steps, are put at 0 s.
        """
        at = np.array(self._at)
        order = np.argsort(at, kind="stable")
        step, examples, values = np.array(self._rows).reshape(-1, 3).take(order, axis=0).T
        after = np.maximum(0.0, at[order] - zero)  # nothing is after infinity
        late = np.logical_or.accumulate((after > 0) & ~np.isin(step, early))
        means = values
        if self._window:
            # workers that share a counter may record its values out of order
            examples, window = np.maximum.accumulate(examples), self._window
            if self._steps and len(step):
                window = self._steps * examples[-1] / (step.max() + 1) or window
            oldest = np.searchsorted(examples, examples - window, side="right")
            finite = np.isfinite(values)  # NaN or infinity spoils only the windows that it is in
            sums, lost = (
                np.concatenate([[0.0], np.cumsum(each)])
                for each in (np.where(finite, values, 0.0), ~finite)
            )
            means = (sums[1:] - sums[oldest]) / (np.arange(1, len(values) + 1) - oldest)
            means[lost[1:] > lost[oldest]] = np.nan
        return Curve(after * late, examples, values, means, self._best.accumulate(means))
