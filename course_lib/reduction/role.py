"""The work of each task in `allreduce` and `measure`: it carries out each job a few times to check
and to trace it, then times all jobs in turn, again and again.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from course_lib.cluster.task import Task
from course_lib.collectives import Schedule
from course_lib.collectives.algorithms.recursive_doubling import recursive_doubling
from course_lib.collectives.cost import Cost, Topology, cost
from course_lib.collectives.verify import goal, members
from course_lib.exchange import Communicator
from course_lib.record.events import Message, clock
from course_lib.spec.settings import MAX_WORKERS

Record = Callable[[Message], None] | None


@dataclass(frozen=True)
class Job:
    """A schedule to be carried out on `length` elements of `dtype`.

    It is first carried out `traced` times on known numbers: their sum is checked and the messages
    are traced. If there are `arrays`, one for each worker, or files with them, they take the place
    of the known numbers, and the result is returned. Then it is timed `repeats` times, each time
    over `calls` calls without a pause.
    """

    schedule: Schedule
    length: int
    dtype: str
    repeats: int
    calls: int
    traced: int = 1
    arrays: tuple[Path | np.ndarray, ...] = ()

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """The bytes that each worker brings."""
        return self.length * self.itemsize

    def price(self, topology: Topology) -> Cost:
        """The cost of a call by the formula."""
        return cost(self.schedule, self.bytes, topology, self.itemsize)


class Done(NamedTuple):
    """The outcome of a job on one rank: whether its result was exact (None if not checked), the
    result (None for known numbers), and the beginning and end of each timing.
    """

    exact: bool | None
    result: np.ndarray | None
    spans: list[tuple[float, float]]


def carry_out(task: Task, jobs: list[Job]) -> list[Done]:
    """The role function. All jobs have ranks on the same hosts."""
    _bind(task.rank)
    group = task.group(jobs[0].schedule)
    traced, group.record = group.record, None
    barrier = recursive_doubling(len(group.place))  # with the servers
    done = []
    for job in jobs:
        _together(group, barrier)
        checked = _checked(task.rank, group, job, barrier, traced) if job.traced else (None, None)
        done.append(Done(*checked, []))
    # in turn, so that a disturbance of the machine disturbs all jobs alike
    for repeat in range(max(job.repeats for job in jobs)):
        for job, so_far in zip(jobs, done, strict=True):
            if repeat < job.repeats:
                so_far.spans.append(_timed(group, barrier, job))
    group.close()
    return done


def loaded(array: Path | np.ndarray) -> np.ndarray:
    """An array of a job, which may be changed."""
    return np.load(array) if isinstance(array, Path) else array.copy()


# small enough that float16 holds their sums, and never 0
_KNOWN = np.random.default_rng(0).integers(1, 8, (MAX_WORKERS, 97))


def known(rank: int, length: int, dtype: np.dtype) -> np.ndarray:
    """The numbers that worker `rank` brings, shape (length,): small and whole, and irregular enough
    that no two sets of workers have the same sum.
    """
    return np.resize(_KNOWN[rank], length).astype(dtype)


def as_due(schedule: Schedule, rank: int, result: np.ndarray) -> bool:
    """Tell whether a worker's result of the known numbers is what the collective is to leave it."""
    bounds = schedule.bounds(len(result))
    for chunk, (start, end) in enumerate(pairwise(bounds)):
        if (bits := goal(schedule, rank, chunk)) is not None:
            its = (known(r, len(result), result.dtype)[start:end] for r in members(bits))
            if not np.array_equal(result[start:end], sum(its, np.zeros((), result.dtype))):
                return False
    return True


def _checked(
    rank: int, group: Communicator, job: Job, barrier: Schedule, record: Record
) -> tuple[bool | None, np.ndarray | None]:
    """Recorded calls on the known numbers or the given arrays: whether the last was exact (None for
    given arrays or a server), and its result.

    A call before them connects the ranks and touches the memory, so that they are typical ones.
    """
    dtype, worker = np.dtype(job.dtype), rank < job.schedule.workers
    array = np.zeros(job.length, dtype)
    if worker:
        array = loaded(job.arrays[rank]) if job.arrays else known(rank, job.length, dtype)
    group.execute(job.schedule, array.copy())
    for call in range(job.traced):
        _together(group, barrier)
        group.record = record
        group.execute(job.schedule, array if call == job.traced - 1 else array.copy())
        group.record = None
    if not worker or job.arrays:
        return None, array if worker else None
    return as_due(job.schedule, rank, array), None


def _timed(group: Communicator, barrier: Schedule, job: Job) -> tuple[float, float]:
    """Start and end of `calls` calls on zeros (which stay zeros) in the shared buffer itself."""
    group.buffer(job.schedule, job.length, job.dtype)[:] = 0
    _together(group, barrier)
    start = clock()
    for _ in range(job.calls):
        group.execute_buffer(job.schedule, job.length, job.dtype)
    return start, clock()


def _bind(rank: int) -> None:
    """Stay on one core, with the ranks spread evenly over all cores, as `mpirun --bind-to core`
    does. If ranks land on cores by chance, times vary twofold.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def _together(group: Communicator, barrier: Schedule) -> None:
    group.execute(barrier, np.zeros(1, np.int8))
