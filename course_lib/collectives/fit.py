"""Alpha, beta and gamma of a machine, fitted to a few measured times. The fitted model predicts
times that were not measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from course_lib.collectives.cost import cost
from course_lib.collectives.model import AlphaBeta, Topology
from course_lib.collectives.schedule import Schedule
from course_lib.errors import SpecError

NAMES = ("alpha", "beta", "alpha across", "beta across", "gamma", "delay", "delay across", "wire")
# a column counts as a mix of others if it differs from the nearest mix by less than this share of
# its length
ALIKE = 0.02


class Sample(NamedTuple):
    """One measured run: a schedule, its buffer in bytes, and the seconds it took."""

    schedule: Schedule
    bytes: int
    seconds: float
    itemsize: int = 1


@dataclass(frozen=True)
class Fit:
    """A fitted `topology`. `found` names the parameters that the samples determine; `residuals`:
    measured/modelled - 1 for each sample.
    """

    topology: Topology
    found: tuple[str, ...]
    residuals: np.ndarray

    @property
    def error(self) -> float:
        """Median relative error on the samples themselves."""
        return float(np.median(np.abs(self.residuals)))


def fit(
    samples: Sequence[Sample],
    topology: Topology = Topology(),  # noqa: B008  # frozen
    wanted: Sequence[str] = NAMES,
) -> Fit:
    """Find alpha, beta, gamma and the delays from measured times, by least squares of the relative
    errors, with no parameter below 0.

    `topology` gives the cores, and the numbers from which the search starts; a number stays
    as it is if no sample depends on it or it is not `wanted` (some of `NAMES`). In most algorithms
    the bytes added are half the bytes moved, so samples of one algorithm cannot tell beta from
    gamma: then gamma is 0 and its time is part of beta. To find gamma, add samples of
    `recursive_doubling`, or give a topology whose gamma was measured in another way, and want only
    the others. Raises SpecError unless there are more samples than parameters.
    """
    seconds = np.array([s.seconds for s in samples], dtype=float)
    if not len(samples) or not (seconds > 0).all():
        raise SpecError("samples", seconds.tolist(), "measured times above 0")
    fixed = ~np.isin(NAMES, wanted)
    columns = free = np.zeros(0)
    # the parameters decide which rank or link is slowest: repeat with those just found
    for _ in range(8):
        terms = _terms(samples, topology)
        if columns.size and np.array_equal(terms, columns):
            break
        columns, free = terms, _can_tell(terms / seconds[:, None], ~fixed)
        if len(samples) <= free.sum():
            what = f"to find {free.sum()} parameters and how well they fit"
            raise SpecError("samples", len(samples), f"at least {free.sum() + 1}, {what}")
        topology = _with(topology, _solve(columns, seconds, topology.parameters, free, fixed))
    found = tuple(name for name, is_free in zip(NAMES, free, strict=True) if is_free)
    return Fit(topology, found, seconds / (columns @ topology.parameters) - 1)


def _terms(samples: Sequence[Sample], topology: Topology) -> np.ndarray:
    """The `Terms` of each sample, one row each; the cost of each schedule and size is computed
    once.
    """
    jobs = {(id(s.schedule), s.bytes, s.itemsize): s for s in samples}
    terms = {job: cost(s.schedule, s.bytes, topology, s.itemsize).terms for job, s in jobs.items()}
    return np.array([terms[id(s.schedule), s.bytes, s.itemsize] for s in samples])


def _can_tell(columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which of the wanted columns are not all zero and are no mix of those before them."""
    kept: list[int] = []
    for i in np.flatnonzero(wanted & columns.any(axis=0)):
        if kept:
            others = columns[:, kept] / np.linalg.norm(columns[:, kept], axis=0)
            mix = others @ np.linalg.lstsq(others, columns[:, i], rcond=None)[0]
            if np.linalg.norm(columns[:, i] - mix) < ALIKE * np.linalg.norm(columns[:, i]):
                continue
        kept.append(int(i))
    return np.isin(np.arange(len(wanted)), kept)


def _solve(
    columns: np.ndarray, seconds: np.ndarray, start: np.ndarray, free: np.ndarray, fixed: np.ndarray
) -> np.ndarray:
    """The parameters, each 0 or more, with the least sum of squared relative errors.

    They are so few that every subset can be tried as the set of those above 0.
    """
    found = np.where(fixed | ~columns.any(axis=0), start, 0.0)
    rows = columns / seconds[:, None]
    tried = [found]
    for size in range(1, free.sum() + 1):
        for chosen in map(list, combinations(np.flatnonzero(free), size)):
            norms = np.linalg.norm(rows[:, chosen], axis=0)
            scaled = np.linalg.lstsq(rows[:, chosen] / norms, 1 - rows @ found, rcond=None)[0]
            if (scaled >= 0).all():
                tried.append(found.copy())
                tried[-1][chosen] = scaled / norms
    return min(tried, key=lambda parameters: float(np.sum((1 - rows @ parameters) ** 2)))


def _with(topology: Topology, parameters: np.ndarray) -> Topology:
    a, b, a_across, b_across, gamma, delay, delay_across, wire = parameters.tolist()
    intra, inter = AlphaBeta(a, b, delay), AlphaBeta(a_across, b_across, delay_across)
    return replace(topology, intra=intra, inter=inter, gamma=gamma, wire=wire)
