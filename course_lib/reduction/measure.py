"""Carries out schedules in one cluster, one after the other, and measures each."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from course_lib import hardware
from course_lib.cluster.run import Run
from course_lib.collectives import AlphaBeta, Fit, Sample, Schedule, Topology, cost, fit
from course_lib.collectives.algorithms.ring import ring, ring_worst_order
from course_lib.errors import LockstepError, SpecError
from course_lib.hardware.limits import gigabytes
from course_lib.launch import start
from course_lib.network.wires import PAYLOAD
from course_lib.record.events import Message
from course_lib.record.trace import Trace
from course_lib.reduction.role import Done, Job, carry_out, loaded
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from course_lib.spec.settings import MAX_WORKERS

Watch = Callable[[Run, str], None]
"""Told of each cluster when it has been started, and what that carries out. May raise, or stop the
run: then that is the end of all.
"""
HERE = RunSpec(workers=1)
FITTING = "rings of three sizes, for the prediction"
REPEATS = 20
_FEW = 5  # timings of each calibration job before the jobs over links, and as many after them
# bytes; the parameters of a machine are fitted to their times
SIZES = (4 << 10, 256 << 10, 4 << 20)
_LONG = 2 << 20  # bytes that all calls of one timing move together, about
_MOST_TRACED = 20  # of them the quickest is played
_MOST_CALLS = 8  # with more calls, other programs disturb almost every timing
TIMEOUT = 300.0  # seconds
# seconds for all timings of a job over imposed links; at least three timings are taken
_ENOUGH = 4.0
# seconds of one timing over imposed links: then it hardly matters that not all ranks begin at the
# same moment
_AWAITED = 0.08
_TCP = 60e-6  # alpha of a message between hosts in simulations: seconds, as measured on a laptop


@dataclass(frozen=True)
class Measured:
    """A job and its measurements: the `seconds` of a call in each repeat, the messages of the
    quickest traced call in `trace`, whether every worker had the `exact` sum (None if that was not
    checked), and the resulting `arrays` if arrays were given.
    """

    job: Job
    seconds: tuple[float, ...]
    trace: Trace
    exact: bool | None
    arrays: list[np.ndarray]

    @property
    def sample(self) -> Sample:
        """The job with its quickest time: other programs made the others longer, as the
        documentation of `timeit` explains.
        """
        return Sample(self.job.schedule, self.job.bytes, min(self.seconds), self.job.itemsize)


def job(
    schedule: Schedule,
    length: int,
    dtype: str = "float32",
    repeats: int = REPEATS,
    checked: bool = True,
) -> Job:
    """A job with enough calls in each timing for its quickest time to be reliable. Of a short call
    more are traced, as other programs disturb most of them.
    """
    nbytes = max(1, length * np.dtype(dtype).itemsize)
    calls = max(1, min(_MOST_CALLS, _LONG // nbytes))
    traced = max(3, min(_MOST_TRACED, 8 * _LONG // nbytes))
    return Job(schedule, length, dtype, repeats, calls, checked, traced=traced)


def measure(
    jobs: Sequence[Job], where: RunSpec = HERE, watch: Watch | None = None
) -> list[Measured]:
    """Carry out jobs in one cluster of real processes, with the engine and the link of `where`.

    All jobs must have the same ranks on the same hosts. Raises `SpecError` if they do not, or if
    they do not fit on this machine, and LockstepError if somebody stops the run.
    """
    # the schedule with servers, if there is one: with equally many ranks it has fewer workers
    first = min((j.schedule for j in jobs), key=lambda schedule: schedule.workers)
    if any(j.schedule.hosts != first.hosts for j in jobs):
        names = [j.schedule.name for j in jobs]
        raise SpecError("jobs", names, "all must have the same ranks on the same hosts")
    check_fits(jobs, where)
    role = functools.partial(carry_out, jobs=list(jobs))
    programs = {"worker": role, **({"ps": role} if first.servers else {})}
    placement = {first.task(rank): host for rank, host in enumerate(first.hosts)}
    tasks: dict[str, Any] = {"workers": first.workers, "ps": first.servers, "placement": placement}
    on = {name: getattr(where, name) for name in ("engine", "address", "link")}
    with start(programs, framework="python", **tasks, **on) as run:
        if watch:
            watch(run, ", ".join(j.schedule.name for j in jobs if j.checked) or FITTING)
        if run.wait(TIMEOUT).state == "stopped":
            raise LockstepError("the all-reduce was stopped before its end")
        values = run.values
        traces = _by_job(run.trace, [j for j in jobs if j.checked])
    # servers may be told to leave before they have returned anything
    done = [values[first.task(rank)] for rank in range(first.workers)]
    return [
        _measured(j, [ranks[i] for ranks in done], next(traces) if j.checked else Trace())
        for i, j in enumerate(jobs)
    ]


def calibration(schedule: Schedule) -> list[Job]:
    """The jobs whose times `parameters` needs: a ring in three sizes, on the ranks and hosts of a
    schedule.

    On several hosts the ring is measured in two orders: in one, few messages cross between hosts;
    in the other, most do. So the cost inside hosts can be told from the cost across.
    """
    schedules = [ring(schedule.ranks).placed(schedule.hosts)]
    if len(set(schedule.hosts)) > 1:
        schedules.append(ring_worst_order(schedule.ranks, schedule.hosts))
    return [job(s, size // 4, checked=False) for s in schedules for size in SIZES]


def parameters(samples: Sequence[Sample], cores: int | None = None) -> Fit:
    """Alpha and beta of a machine with so many cores (None: this one), inside hosts and across,
    fitted to measured samples.

    Gamma is 0: adding to numbers in memory takes as long as replacing them. If each rank is on a
    host of its own, there is too little work inside hosts to find its alpha and beta, and those of
    a laptop are used.
    """
    cores = cores or hardware.probe().cores
    start = Topology(intra=AlphaBeta(6e-6, 1 / 16e9), gamma=0.0, cores=cores)
    inside = any(len(set(s.schedule.hosts)) < s.schedule.ranks for s in samples)
    wanted = ("alpha across", "beta across", *(("alpha", "beta") if inside else ()))
    return fit(samples, start, wanted=wanted)


def measure_and_model(
    jobs: Sequence[Job], where: RunSpec = HERE, watch: Watch | None = None
) -> tuple[list[Measured], Topology]:
    """`measure`, and the model that predicts its times, fitted to a `calibration`.

    The calibration is timed in turn with the jobs, in the same processes. With a `link` for each
    host it is timed without links, in processes of its own: the model is the work of the cores plus
    the time on the links. It is then timed before the jobs and after them, so that other programs
    rarely disturb both; the quickest time of the two counts. On the nodes of a cluster each rank
    has a core of its own.
    """
    tests = calibration(jobs[0].schedule) if jobs[0].schedule.ranks > 1 else []
    if not (link := where.link):
        done = measure([*tests, *jobs], where, watch)
        samples = [m.sample for m in done[: len(tests)]]
        cores = jobs[0].schedule.ranks if where.on_nodes else None
        return done[len(tests) :], parameters(samples, cores).topology if tests else Topology()
    tests = [replace(j, repeats=_FEW) for j in tests]
    before = measure(tests, watch=watch)
    done = measure([_patient(j, link) for j in jobs], where, watch)
    both = zip(before, measure(tests, watch=watch), strict=True)
    quickest = [replace(a, seconds=a.seconds + b.seconds).sample for a, b in both]
    return done, imposed(link, parameters(quickest).topology)


def imposed(link: Link, on: Topology | None = None) -> Topology:
    """The model of hosts that are joined to a switch, each by a `link`; the headers of packets take
    part of its bytes a second.

    With `on`, the time on the links is added to the cores' work in that topology, which is most of
    the time of short messages. Without it, each rank has a core of its own with the usual numbers
    of a laptop, as in textbooks.
    """
    wire = 1 / (link.bytes_per_second * PAYLOAD)
    if on is None:
        return Topology(inter=AlphaBeta(_TCP, wire, link.delay))
    return replace(on, inter=replace(on.inter, delay=link.delay), wire=wire)


def expected(job: Job, topology: Topology) -> float:
    """Seconds that one call of a job should take."""
    return cost(job.schedule, job.bytes, topology, job.itemsize).seconds


def _patient(job: Job, link: Link) -> Job:
    """The job, with fewer timings, fewer calls in each, and fewer traced ones, if a call takes long
    over its links.
    """
    seconds = expected(job, imposed(link))
    # ranks that meet over a link with a latency begin some latencies apart
    calls = min(job.calls, max(1, round((_AWAITED + 20 * link.delay) / seconds)))
    repeats = min(job.repeats, max(3, round(_ENOUGH / (calls * seconds))))
    traced = min(job.traced, max(1, round(_AWAITED / seconds)))
    return replace(job, repeats=repeats, calls=calls, traced=traced)


def _measured(job: Job, ranks: list[Done], trace: Trace) -> Measured:
    spans = zip(*(rank.spans for rank in ranks), strict=True)
    # from when the last rank has begun to when the last one is done
    seconds = tuple(
        (max(end for _, end in span) - max(begin for begin, _ in span)) / job.calls
        for span in spans
    )
    checks = [rank.exact for rank in ranks if rank.exact is not None]
    results = [rank.result for rank in ranks if rank.result is not None]
    if job.arrays:
        total = functools.reduce(np.add, map(loaded, job.arrays))
        checks = [np.array_equal(result, total) for result in results]
    return Measured(job, seconds, trace, all(checks) if checks else None, results)


def _by_job(trace: Trace, jobs: list[Job]) -> Iterator[Trace]:
    """The messages of the quickest traced call of each job, from time 0. Every rank has recorded
    those that it received, in the order of the jobs and their calls.
    """
    left = {task: iter(trace.all(Message, task)) for task in trace.tasks}
    for job in jobs:
        received = [job.schedule.task(t.dst) for r in job.schedule.rounds for t in r]
        calls = [_from_zero([next(left[task]) for task in received]) for _ in range(job.traced)]
        quickest = min(calls, key=lambda call: max((m.end for m in call), default=0.0))
        yield Trace(quickest)


def _from_zero(messages: list[Message]) -> list[Message]:
    origin = min((m.start for m in messages), default=0.0)
    return [m._replace(start=m.start - origin, end=m.end - origin) for m in messages]


def check_fits(jobs: Sequence[Job], where: RunSpec) -> None:
    """Raise `SpecError` for jobs that do not fit on this machine: each rank needs its array, the
    shared buffer, and room for the check. How much the nodes of a cluster have is not known here.
    """
    machine = hardware.probe()
    for j in jobs:
        if j.schedule.workers > MAX_WORKERS:
            allowed = f"a whole number from 1 to {MAX_WORKERS}; more than that can be simulated"
            raise SpecError("workers", j.schedule.workers, allowed)
        need = 4 * j.bytes * j.schedule.ranks
        if not where.on_nodes and machine.memory_total and need > machine.memory:
            on, free = f"on {j.schedule.ranks} ranks", gigabytes(machine.memory)
            raise SpecError("bytes", j.bytes, f"needs {gigabytes(need)} {on}, and {free} are free")
