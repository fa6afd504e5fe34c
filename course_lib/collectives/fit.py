"""Alpha, beta and gamma of a machine, found from a few measured times, and what they say about
times that were not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from course_lib.collectives.cost import cost
from course_lib.collectives.model import AlphaBeta, Topology
from course_lib.collectives.schedule import Schedule
from course_lib.errors import SpecError

NAMES = ("alpha", "beta", "alpha across", "beta across", "gamma", "delay", "delay across", "wire")
# a column that is a mix of others but for this part of its length cannot be told from them
ALIKE = 0.02


class Sample(NamedTuple):
    """One measured run: a schedule, its buffer in bytes, and the seconds it took."""

    schedule: Schedule
    bytes: int
    seconds: float
    itemsize: int = 1


class Prediction(NamedTuple):
    """Seconds expected, and the interval from `low` to `high` in which a measurement should lie."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """A fitted `topology`. `found` names the parameters that the samples could tell; `residuals`:
    measured/modelled - 1 for each.
    """

    topology: Topology
    found: tuple[str, ...]
    residuals: np.ndarray
    # parameters fitted again to resampled measurements, one row each
    _draws: np.ndarray = field(repr=False)
    # residuals, widened for what the fit itself has used up
    _spread: np.ndarray = field(repr=False)

    @property
    def error(self) -> float:
        """Median relative error on the samples themselves."""
        return float(np.median(np.abs(self.residuals)))

    def predict(
        self, schedule: Schedule, bytes: int, itemsize: int = 1, level: float = 0.9
    ) -> Prediction:
        """The time of a schedule that was not measured, with an interval that should hold `level`
        of all measurements.

        The interval speaks of scatter in the measurements; an algorithm that the model does not
        describe well can still lie outside.
        """
        priced = cost(schedule, bytes, self.topology, itemsize)
        times = np.outer(self._draws @ np.array(priced.terms), 1 + self._spread).ravel()
        low, high = np.quantile(times, [(1 - level) / 2, (1 + level) / 2]).tolist()
        return Prediction(priced.seconds, min(low, priced.seconds), max(high, priced.seconds))


def fit(
    samples: Sequence[Sample],
    topology: Topology = Topology(),  # noqa: B008  # frozen
    gamma: float | None = None,
    wanted: Sequence[str] = NAMES,
    draws: int = 200,
    seed: int = 0,
) -> Fit:
    """Find alpha, beta, gamma and the delays from measured times, by least squares of the relative
    errors, with no parameter below 0.

    `topology` gives hosts and cores; its numbers are only where the search starts, but those stay
    that no sample used or that are not `wanted` (some of `NAMES`). In most algorithms the bytes
    added are half the bytes moved, so that samples of one alone cannot tell beta from gamma: then
    gamma is 0 and its time is in beta. Give a `gamma` measured otherwise, or add samples of
    `recursive_doubling`. Raises SpecError if there are not more samples than parameters.
    """
    seconds = np.array([s.seconds for s in samples], dtype=float)
    if not len(samples) or not (seconds > 0).all():
        raise SpecError("samples", seconds.tolist(), "measured times above 0")
    if gamma is not None:
        topology = replace(topology, gamma=gamma)
    fixed = np.array(
        [name not in wanted or (name == "gamma" and gamma is not None) for name in NAMES]
    )
    columns = free = np.zeros(0)
    # which rank or link is the slowest depends on the parameters, so look again with those just
    # found
    for _ in range(8):
        terms = _terms(samples, topology)
        if columns.size and np.array_equal(terms, columns):
            break
        columns, free = terms, _can_tell(terms / seconds[:, None], ~fixed)
        if len(samples) <= free.sum():
            raise SpecError(
                "samples",
                len(samples),
                f"at least {free.sum() + 1}, to find {free.sum()} parameters and how far they can be trusted",
            )
        topology = _with(topology, _solve(columns, seconds, topology.parameters, free, fixed))
    modelled = columns @ topology.parameters
    residuals = seconds / modelled - 1
    spread = residuals * np.sqrt(len(samples) / (len(samples) - free.sum()))
    random = np.random.default_rng(seed)
    drawn = [modelled * (1 + random.choice(spread, len(samples))) for _ in range(draws)]
    again = np.array(
        [
            _solve(columns, np.maximum(d, modelled * 0.01), topology.parameters, free, fixed)
            for d in drawn
        ]
    )
    found = tuple(name for name, is_free in zip(NAMES, free, strict=True) if is_free)
    return Fit(topology, found, residuals, again, spread)


def _terms(samples: Sequence[Sample], topology: Topology) -> np.ndarray:
    """What stands before each parameter, one row for each sample; each schedule and size is priced
    once.
    """
    priced: dict[tuple[int, int, int], tuple[float, ...]] = {}
    for s in samples:
        key = (id(s.schedule), s.bytes, s.itemsize)
        if key not in priced:
            priced[key] = cost(s.schedule, s.bytes, topology, s.itemsize).terms
    return np.array([priced[id(s.schedule), s.bytes, s.itemsize] for s in samples])


def _can_tell(columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which of the wanted columns are there and are no mix of those before them."""
    kept: list[int] = []
    for i in np.flatnonzero(wanted & columns.any(axis=0)):
        if kept:
            others = _unit(columns[:, kept])
            mix = others @ np.linalg.lstsq(others, columns[:, i], rcond=None)[0]
            if np.linalg.norm(columns[:, i] - mix) < ALIKE * np.linalg.norm(columns[:, i]):
                continue
        kept.append(int(i))
    return np.isin(np.arange(len(wanted)), kept)


def _solve(
    columns: np.ndarray, seconds: np.ndarray, start: np.ndarray, free: np.ndarray, fixed: np.ndarray
) -> np.ndarray:
    """The parameters, 0 or more, with the least squares of relative errors.

    They are so few that every set that may be above 0 is tried.
    """
    found = np.where(fixed | ~columns.any(axis=0), start, 0.0)
    target = (seconds - columns @ found) / seconds
    rows = columns / seconds[:, None]
    least = np.inf
    best = found
    free_at = np.flatnonzero(free)
    for size in range(len(free_at) + 1):
        for chosen in map(list, combinations(free_at, size)):
            norms = np.linalg.norm(rows[:, chosen], axis=0)
            values = (
                np.linalg.lstsq(rows[:, chosen] / norms, target, rcond=None)[0] / norms
                if chosen
                else np.zeros(0)
            )
            left = float(np.sum((target - rows[:, chosen] @ values) ** 2))
            if (values >= 0).all() and left < least * (1 - 1e-9):
                least, best = left, found.copy()
                best[chosen] = values
    return best


def _unit(columns: np.ndarray) -> np.ndarray:
    return columns / np.linalg.norm(columns, axis=0)


def _with(topology: Topology, parameters: np.ndarray) -> Topology:
    a, b, a_across, b_across, gamma, delay, delay_across, wire = parameters.tolist()
    return replace(
        topology,
        intra=AlphaBeta(a, b, delay),
        inter=AlphaBeta(a_across, b_across, delay_across),
        gamma=gamma,
        wire=wire,
    )
