"""Carries out schedules in real processes, one after the other, and measures each."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from course_lib import hardware
from course_lib.cluster.run import Run
from course_lib.collectives import AlphaBeta, Schedule, Topology, cost
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
_LONG = 2 << 20  # bytes that all calls of one timing move together, about
_MOST_TRACED = 20  # of them the quickest is played
_MOST_CALLS = 8  # with more calls, other programs disturb almost every timing
TIMEOUT = 300.0  # seconds
# seconds for all timings of a job over imposed links; at least three timings are taken
_ENOUGH = 4.0
# seconds of one timing over imposed links: then it hardly matters that not all ranks begin at the
# same moment
_AWAITED = 0.08


@dataclass(frozen=True)
class Measured:
    """A job and its measurements: the `seconds` of a call in each repeat, the messages of the
    quickest traced call in `trace`, whether every worker had the `exact` sum (None if that was not
    checked), and the resulting `arrays` if arrays were given.

    The least of the `seconds` counts: other programs made the others longer, as the documentation
    of `timeit` explains.
    """

    job: Job
    seconds: tuple[float, ...]
    trace: Trace
    exact: bool | None
    arrays: list[np.ndarray]


def job(
    schedule: Schedule,
    length: int,
    dtype: str = "float32",
    repeats: int = REPEATS,
    traced: int = _MOST_TRACED,
    link: Link | None = None,
) -> Job:
    """A job with enough calls in each timing for its quickest time to be reliable. Of a short call
    more are traced, as other programs disturb most of them. If a call takes long over its `link`,
    there are fewer of all.
    """
    one = Job(schedule, length, dtype, repeats, calls=1, traced=traced)
    nbytes = max(1, one.bytes)
    calls = max(1, min(_MOST_CALLS, _LONG // nbytes))
    traced = min(traced, max(3, 8 * _LONG // nbytes))
    if link:
        seconds = cost(schedule, one.bytes, imposed(link), one.itemsize).seconds
        # ranks that meet over a link with a latency begin some latencies apart
        calls = min(calls, max(1, round((_AWAITED + 20 * link.delay) / seconds)))
        repeats = min(repeats, max(3, round(_ENOUGH / (calls * seconds))))
        traced = min(traced, max(1, round(_AWAITED / seconds)))
    return replace(one, repeats=repeats, calls=calls, traced=traced)


def imposed(link: Link, topology: Topology = Topology()) -> Topology:  # noqa: B008  # frozen
    """The same topology with hosts that are joined to a switch, each by a `link`. The headers of
    packets take part of its bytes a second; a speed that it leaves open stays.
    """
    beta = 1 / (link.bytes_per_second * PAYLOAD) or topology.inter.beta
    return replace(topology, inter=AlphaBeta(topology.inter.alpha, beta, link.delay))


def measure(
    jobs: Sequence[Job], where: RunSpec = HERE, watch: Watch | None = None
) -> list[Measured]:
    """Carry out jobs in real processes, with the engine and the link of `where`; those with the
    same ranks on the same hosts share a cluster.

    Raises `SpecError` before any process starts if a job does not fit on this machine, and
    LockstepError if somebody stops a run.
    """
    check_fits(jobs, where)
    together: dict[tuple[int, ...], list[Job]] = defaultdict(list)
    for one in jobs:
        together[one.schedule.hosts].append(one)
    done = {hosts: iter(_in_a_cluster(same, where, watch)) for hosts, same in together.items()}
    return [next(done[one.schedule.hosts]) for one in jobs]


def _in_a_cluster(jobs: list[Job], where: RunSpec, watch: Watch | None) -> list[Measured]:
    # the schedule with servers, if there is one: with equally many ranks it has fewer workers
    first = min((j.schedule for j in jobs), key=lambda schedule: schedule.workers)
    role = functools.partial(carry_out, jobs=jobs)
    programs = {"worker": role, **({"ps": role} if first.servers else {})}
    placement = {first.task(rank): host for rank, host in enumerate(first.hosts)}
    tasks: dict[str, Any] = {"workers": first.workers, "ps": first.servers, "placement": placement}
    on = {name: getattr(where, name) for name in ("engine", "address", "link")}
    with start(programs, framework="python", **tasks, **on) as run:
        if watch:
            watch(run, ", ".join(j.schedule.name for j in jobs if j.traced) or FITTING)
        if run.wait(TIMEOUT).state == "stopped":
            raise LockstepError("the all-reduce was stopped before its end")
        values = run.values
        traces = _by_job(run.trace, jobs)
    # servers may be told to leave before they have returned anything
    done = [values[first.task(rank)] for rank in range(first.workers)]
    return [_measured(j, [ranks[i] for ranks in done], next(traces)) for i, j in enumerate(jobs)]


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
        ends = [max((m.end for m in call), default=0.0) for call in calls]
        yield Trace(calls[int(np.argmin(ends))] if calls else ())


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
