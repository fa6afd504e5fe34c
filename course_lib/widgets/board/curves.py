"""Curves of a run that goes on: the loss and the test accuracy over time and over the examples seen, kept up to date."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from course_lib.trace import Metric

WINDOW = 10  # batches over which a loss is averaged: that of a single one goes up and down by chance


class Curve(NamedTuple):
    """Arrays of equal length, in order of time: `seconds` from the start of the clock, `examples` seen by then, and the `values`."""

    seconds: np.ndarray
    examples: np.ndarray
    values: np.ndarray

    @property
    def last(self) -> float | None:
        return float(self.values[-1]) if len(self.values) else None


EMPTY = Curve(np.zeros(0), np.zeros(0, np.int64), np.zeros(0))


class Goal(NamedTuple):
    """What is raced for: a value of the `loss`, to be reached from above, or of the test `accuracy`, from below."""

    what: str
    value: float

    def reached(self, curve: Curve) -> tuple[float, int] | None:
        """Seconds and examples until a curve was there first; None if it never was."""
        there = curve.values >= self.value if self.what == "accuracy" else curve.values <= self.value
        hits = np.flatnonzero(there)
        return (float(curve.seconds[hits[0]]), int(curve.examples[hits[0]])) if len(hits) else None

    def __str__(self) -> str:
        return f"{self.what} {self.value:.3g}"


class Readings:
    """The values of a metric. Tasks that report one and the same give one reading, at the time of the first."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, float], int] = {}
        self._at, self._value, self._samples, self._step = array("d"), array("d"), array("q"), array("q")

    def add(self, m: Metric) -> None:
        number = self._known.setdefault((m.step, m.samples, m.value), len(self._at))
        if number < len(self._at):
            self._at[number] = min(m.at, self._at[number])
            return
        self._at.append(m.at)
        self._value.append(m.value)
        self._samples.append(m.samples)
        self._step.append(m.step)

    def loss(self, batch: int, zero: float, early: Sequence[int]) -> Curve:
        """Means over the last `WINDOW` batches' worth of examples. Losses of `early` steps are at 0 s, as all are that came before `zero`."""
        if not len(self._at):
            return EMPTY
        at, values, samples, step = self._sorted()
        examples = np.maximum.accumulate(samples)  # workers that count together may write down their counts in another order
        total = np.concatenate([[0.0], np.cumsum(values)])
        after = np.arange(1, len(at) + 1)
        oldest = np.searchsorted(examples, examples - WINDOW * batch, side="right")
        mean = (total[after] - total[oldest]) / (after - oldest)
        return Curve(_since(at, zero) * ~np.isin(step, early), examples, mean)

    def plain(self, zero: float) -> Curve:
        """The values as they are."""
        at, values, samples, _ = self._sorted()
        return Curve(_since(at, zero), samples, values)

    def _sorted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        at = np.array(self._at)
        order = np.argsort(at, kind="stable")
        return at[order], np.array(self._value)[order], np.array(self._samples)[order], np.array(self._step)[order]


def _since(at: np.ndarray, zero: float) -> np.ndarray:
    return np.maximum(0.0, at - zero) if np.isfinite(zero) else np.zeros(len(at))
