"""A schedule carried out on small integer arrays in this process: the plain meaning of rounds,
against which the proof is held.
"""

from __future__ import annotations

import numpy as np

from course_lib.collectives import Schedule
from course_lib.collectives.verify import goal


def contributions(schedule: Schedule, length: int) -> np.ndarray:
    """Array (worker, element) of integers so large and odd that no two different sums of them are
    likely to be equal.
    """
    return np.random.default_rng(7).integers(2**30, 2**40, (schedule.workers, length))


def run(schedule: Schedule, data: np.ndarray) -> np.ndarray:
    """Array (rank, element) after the last round, from what each worker contributes.

    Every round reads the state before it.
    """
    ends = schedule.bounds(data.shape[1])
    parts = [slice(*ends[c : c + 2]) for c in range(schedule.chunks)]
    state = np.zeros((schedule.ranks, data.shape[1]), dtype=data.dtype)
    state[: schedule.workers] = data
    if schedule.kind in ("all_gather", "broadcast", "all_to_all"):
        state[:] = 0
        for part, owner in zip(parts, schedule.owners, strict=True):
            state[owner, part] = data[owner, part]
    for transfers in schedule.rounds:
        before = state.copy()
        for src, dst, chunk, op in transfers:
            part = parts[chunk]
            state[dst, part] = before[src, part] + (state[dst, part] if op == "reduce" else 0)
    return state


def is_right(schedule: Schedule, end: np.ndarray, data: np.ndarray) -> bool:
    """Whether every rank has what the goal of the schedule says."""
    ends = schedule.bounds(data.shape[1])
    for rank, chunk in np.ndindex(schedule.workers, schedule.chunks):
        want = goal(schedule, rank, chunk)
        if want is not None:
            part = slice(*ends[chunk : chunk + 2])
            whose = [r for r in range(schedule.workers) if want >> r & 1]
            if not np.array_equal(end[rank, part], data[whose, part].sum(axis=0)):
                return False
    return True
