"""Schedules carried out in one cluster, one after the other, and what came of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from course_lib import hardware
from course_lib.collectives import (
    AlphaBeta,
    Fit,
    Sample,
    Schedule,
    Topology,
    cost,
    fit,
    ring,
    ring_worst_order,
)
from course_lib.errors import SpecError
from course_lib.hardware.limits import gigabytes
from course_lib.launch import start
from course_lib.network.wires import PAYLOAD
from course_lib.record.events import Message
from course_lib.record.trace import Trace
from course_lib.reduction.role import Done, Job, carry_out
from course_lib.spec import MAX_WORKERS, Link

REPEATS = 20
_FEW = 5  # of a calibration before what is timed over links, and as many of one after it
SIZES = (4 << 10, 256 << 10, 4 << 20)  # bytes, from which the parameters of a machine are found
_LONG = 2 << 20  # bytes that the calls of one timing move together
_MOST_CALLS = 8  # more, and hardly any timing is free of what other programs do
TIMEOUT = 300.0  # seconds
# seconds that the timings of one job over imposed links may take, but for the first three
_ENOUGH = 4.0
# seconds of one timing over imposed links, from which on it hardly matters that not all ranks begin
# at the same moment
_AWAITED = 0.08
# seconds for a message between hosts, as found on a laptop, for a model of which no process ran
_TCP = 60e-6


@dataclass(frozen=True)
class Measured:
    """A job, its times in seconds, one for each repeat; its messages; and what the check or the
    arrays gave.
    """

    job: Job
    seconds: tuple[float, ...]
    trace: Trace
    exact: bool | None
    arrays: list[np.ndarray]

    @property
    def sample(self) -> Sample:
        """The quickest of the times: what the others took longer was done by other programs, as the
        documentation of `timeit` has it.
        """
        itemsize = np.dtype(self.job.dtype).itemsize
        return Sample(self.job.schedule, self.job.length * itemsize, min(self.seconds), itemsize)


def job(
    schedule: Schedule,
    length: int,
    dtype: str = "float32",
    repeats: int = REPEATS,
    checked: bool = True,
) -> Job:
    """A job that is timed so often, and each time so long, that its quickest time means something."""
    nbytes = max(1, length * np.dtype(dtype).itemsize)
    return Job(schedule, length, dtype, repeats, max(1, min(_MOST_CALLS, _LONG // nbytes)), checked)


def measure(
    jobs: Sequence[Job], timeout: float = TIMEOUT, link: Link | None = None
) -> list[Measured]:
    """Carry out jobs in one cluster of real processes. All must have equally many ranks, on the
    same hosts, each of which has `link`.

    Raises `SpecError` for jobs that do not fit on this machine.
    """
    # one with servers, if there is any
    first = min((j.schedule for j in jobs), key=lambda schedule: schedule.workers)
    if any(j.schedule.hosts != first.hosts for j in jobs):
        raise SpecError(
            "jobs",
            [j.schedule.name for j in jobs],
            "all must have the same ranks on the same hosts",
        )
    check(jobs)
    role = partial(carry_out, jobs=list(jobs))
    programs = {"worker": role, **({"ps": role} if first.servers else {})}
    placement = (
        {first.task(rank): host for rank, host in enumerate(first.hosts)}
        if len(set(first.hosts)) > 1
        else {}
    )
    with start(
        programs,
        framework="python",
        workers=first.workers,
        ps=first.servers,
        placement=placement,
        link=link,
    ) as run:
        values = run.wait(timeout).values
        traces = _by_job(run.trace, [j.schedule for j in jobs if j.checked])
    # servers may be told to leave before they have said anything
    done = [values[first.task(rank)] for rank in range(first.workers)]
    return [
        _measured(j, [ranks[i] for ranks in done], next(traces) if j.checked else Trace())
        for i, j in enumerate(jobs)
    ]


def calibration(schedule: Schedule, dtype: str = "float32") -> list[Job]:
    """The jobs from which `parameters` are found, for the ranks and hosts of a schedule: three
    sizes of a ring.

    On several hosts the ring is measured in two orders: in one few messages go across, in the other
    all that can. That tells them apart.
    """
    itemsize = np.dtype(dtype).itemsize
    schedules = [ring(schedule.ranks).placed(schedule.hosts)]
    if len(set(schedule.hosts)) > 1:
        schedules.append(ring_worst_order(schedule.ranks, schedule.hosts))
    return [job(s, size // itemsize, dtype, checked=False) for s in schedules for size in SIZES]


def parameters(samples: Sequence[Sample]) -> Fit:
    """Alpha and beta of this machine, inside hosts and across, from measured samples.

    Gamma is 0: to add to numbers in memory takes as long as to replace them. Where each rank is a
    host of its own, alpha and beta inside are taken for those of a laptop: work of theirs is left
    then, but too little to find them.
    """
    start = Topology(intra=AlphaBeta(6e-6, 1 / 16e9), gamma=0.0, cores=hardware.probe().cores)
    inside = any(len(set(s.schedule.hosts)) < s.schedule.ranks for s in samples)
    return fit(
        samples,
        start,
        wanted=("alpha across", "beta across", *(("alpha", "beta") if inside else ())),
    )


def measure_over(link: Link, jobs: Sequence[Job]) -> tuple[list[Measured], Topology]:
    """`measure` with a link of each host, and the model of it: what the cores have to do, found
    without the links, and the links' share.

    It is found before and after, so that other programs, if they come or go, disturb both alike.
    """
    tests = [replace(j, repeats=_FEW) for j in calibration(jobs[0].schedule)]
    before, done, after = (
        measure(tests),
        measure([_patient(j, link) for j in jobs], link=link),
        measure(tests),
    )
    quickest = [
        replace(a, seconds=a.seconds + b.seconds).sample for a, b in zip(before, after, strict=True)
    ]
    return done, imposed(link, parameters(quickest).topology)


def imposed(link: Link, on: Topology | None = None) -> Topology:
    """Hosts that `link` joins to a switch: of its bytes a second those that are a message's own,
    not its packets' headers.

    The links' share comes on top of what the cores have to do according to `on`: most of the time
    of short messages is theirs. Without that, each rank has a core of its own and a laptop's usual
    numbers, as in books.
    """
    wire = 1 / (link.bytes_per_second * PAYLOAD)
    if on is None:
        return Topology(inter=AlphaBeta(_TCP, wire, link.delay))
    return replace(on, inter=replace(on.inter, delay=link.delay), wire=wire)


def expected(job: Job, topology: Topology) -> float:
    """Seconds that one call of a job should take."""
    itemsize = np.dtype(job.dtype).itemsize
    return cost(job.schedule, job.length * itemsize, topology, itemsize).seconds


def _patient(job: Job, link: Link) -> Job:
    """A job timed less often, and fewer calls at a time, where each call takes long over its links."""
    seconds = expected(job, imposed(link))
    calls = min(job.calls, max(1, round(_AWAITED / seconds)))
    return replace(
        job, repeats=min(job.repeats, max(3, round(_ENOUGH / (calls * seconds)))), calls=calls
    )


def _measured(job: Job, ranks: list[Done], trace: Trace) -> Measured:
    spans = zip(*(rank.spans for rank in ranks), strict=True)
    # From when the last rank has begun to when the last one is done.
    seconds = tuple(
        (max(end for _, end in span) - max(begin for begin, _ in span)) / job.calls
        for span in spans
    )
    checks = [rank.exact for rank in ranks if rank.exact is not None]
    return Measured(
        job,
        seconds,
        trace,
        all(checks) if checks else None,
        [rank.result for rank in ranks if rank.result is not None],
    )


def _by_job(trace: Trace, schedules: list[Schedule]) -> Iterator[Trace]:
    """The messages of each schedule: every rank has recorded as many as it receives, in the order
    of the schedules. Each begins at time 0.
    """
    left = {task: iter(trace.all(Message, task)) for task in trace.tasks}
    for schedule in schedules:
        received = [schedule.task(t.dst) for r in schedule.rounds for t in r]
        messages = [next(left[task]) for task in received]
        origin = min((m.start for m in messages), default=0.0)
        yield Trace(m._replace(start=m.start - origin, end=m.end - origin) for m in messages)


def check(jobs: Sequence[Job]) -> None:
    """Raise `SpecError` for jobs that do not fit on this machine: each rank has its array, the
    shared buffer, and room for the check.
    """
    machine = hardware.probe()
    for j in jobs:
        if j.schedule.workers > MAX_WORKERS:
            raise SpecError(
                "workers",
                j.schedule.workers,
                f"a whole number from 1 to {MAX_WORKERS}; more than that can be simulated",
            )
        nbytes = j.length * np.dtype(j.dtype).itemsize
        need = 4 * nbytes * j.schedule.ranks
        if machine.memory_total and need > machine.memory:
            free = gigabytes(machine.memory)
            raise SpecError(
                "bytes",
                nbytes,
                f"needs {gigabytes(need)} on {j.schedule.ranks} ranks, and {free} are free",
            )
