"""Carries out schedules in real processes, one after the other, measures each, and predicts its
time by a formula: alpha and beta from timings of a ring, then the `cost` of the schedule with them.
Or carries them out in simulated time.

The formula gives each rank a core and a port of its own, so it misses. On one machine ranks share
cores and take turns. In a ring all work all the time: its alpha and beta contain these turns, and
an algorithm that leaves some ranks idle is quicker than predicted. A ring adds half of what it
receives, and copies the rest: an algorithm that adds more is slower. Each prediction is shown with
its error.
"""

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from course_lib import hardware
from course_lib.cluster.run import Run
from course_lib.collectives import Schedule, closed_form, simulate, verify
from course_lib.collectives.algorithms.ring import ring
from course_lib.collectives.cost import AlphaBeta, Topology, bus_bandwidth
from course_lib.collectives.simulate import MOST_TRACED
from course_lib.errors import LockstepError, SpecError
from course_lib.hardware.limits import gigabytes
from course_lib.launch import start
from course_lib.network.layout import PAYLOAD
from course_lib.record.events import Message
from course_lib.record.reality import SIMULATED, over
from course_lib.record.trace import Trace
from course_lib.reduction.role import Done, Job, carry_out, loaded
from course_lib.spec.fields import ALL, Link
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
_TRACED_CALLS = 20  # of them the quickest is played
_MOST_CALLS = 8  # with more calls, other programs disturb almost every timing
TIMEOUT = 300.0  # seconds
# seconds for all timings of a job over imposed links; at least three timings are taken
_ENOUGH = 4.0
# seconds of one timing over imposed links: then it hardly matters that not all ranks begin at the
# same moment
_AWAITED = 0.08


FIGURES = (
    *("algorithm", "workers", "hosts", "bytes", "rounds", "bytes_sent_per_worker"),
    *("busiest_link_bytes", "seconds", "predicted_seconds", "prediction_error", "bus_bandwidth"),
    *("exact", "reality"),
)


@dataclass(frozen=True)
class AllReduce:
    """The result of an all-reduce of `bytes` bytes for each worker.

    `bytes_sent_per_worker`: the bytes that the worker that sent most has sent;
    `busiest_link_bytes`: the bytes on the busiest link between a host and the others; both are
    counted in the trace. `seconds` is the time of the quickest of several calls: other programs
    made the others longer, as the documentation of `timeit` explains. `predicted_seconds` is that
    of the formula, with alpha and beta from timings of a ring. `exact`: whether every worker had
    the exact sum. `reality` is "measured" (real processes), "emulated" (over links that are held to
    a speed) or "simulated". `arrays`: the results, if arrays were given. `link`: the link that was
    imposed, if any.
    """

    schedule: Schedule
    bytes: int
    rounds: int
    bytes_sent_per_worker: int
    busiest_link_bytes: int
    seconds: float
    predicted_seconds: float
    exact: bool
    reality: str
    trace: Trace
    arrays: list[np.ndarray]
    link: Link | None = None

    @property
    def algorithm(self) -> str:
        return self.schedule.name

    @property
    def workers(self) -> int:
        return self.schedule.workers

    @property
    def hosts(self) -> int:
        return len(set(self.schedule.hosts))

    @property
    def prediction_error(self) -> float:
        """By which share of `seconds` the prediction is too long, or too short if negative."""
        return self.predicted_seconds / self.seconds - 1 if self.seconds else 0.0

    @property
    def bus_bandwidth(self) -> float:
        """In bytes a second, as nccl-tests define it."""
        return bus_bandwidth(self.bytes, self.seconds, self.workers)

    @property
    def why(self) -> str:
        """The reason for `reality`, in a sentence."""
        return (SIMULATED if self.reality == SIMULATED.word else over(self.link)).why

    def as_dict(self) -> dict[str, Any]:
        """The figures, as plain values."""
        return {name: getattr(self, name) for name in FIGURES}

    def __repr__(self) -> str:
        return (
            f"AllReduce({self.algorithm}, {self.workers} workers, {self.bytes} bytes: "
            f"{self.rounds} rounds, {self.seconds * 1e3:.3g} ms {self.reality}, "
            f"{self.predicted_seconds * 1e3:.3g} ms predicted ({self.prediction_error:+z.0%}), "
            f"{'exact' if self.exact else 'NOT EXACT'})"
        )


def job(
    schedule: Schedule,
    length: int,
    dtype: str = "float32",
    repeats: int = REPEATS,
    traced: int = _TRACED_CALLS,
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
        seconds = one.price(imposed(link)).seconds
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
) -> list[AllReduce]:
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


def _in_a_cluster(jobs: list[Job], where: RunSpec, watch: Watch | None) -> list[AllReduce]:
    # the schedule with servers, if there is one: with equally many ranks it has fewer workers
    first = min((j.schedule for j in jobs), key=lambda schedule: schedule.workers)
    role = functools.partial(carry_out, jobs=jobs)
    programs = {"worker": role, **({"ps": role} if first.servers else {})}
    placement = {first.task(rank): host for rank, host in enumerate(first.hosts)}
    tasks: dict[str, Any] = {"workers": first.workers, "ps": first.servers, "placement": placement}
    tasks |= {"engine": where.engine, "link": where.link}
    with start(programs, framework="python", **tasks) as run:
        if watch:
            watch(run, ", ".join(j.schedule.name for j in jobs if j.traced) or FITTING)
        if run.wait(TIMEOUT).state == "stopped":
            raise LockstepError("the all-reduce was stopped before its end")
        values, traces = run.values, _by_job(run.trace, jobs)
    # servers may be told to leave before they have returned anything
    done = zip(*(values[first.task(rank)] for rank in range(first.workers)), strict=True)
    return [
        _measured(*of_one, where.link.get(ALL)) for of_one in zip(jobs, done, traces, strict=True)
    ]


def _measured(job: Job, ranks: Sequence[Done], trace: Trace, link: Link | None) -> AllReduce:
    # from when the last rank has begun to when the last one is done
    begins, ends = np.array([rank.spans for rank in ranks]).max(axis=0).T
    checks = [rank.exact for rank in ranks if rank.exact is not None]
    results = [rank.result for rank in ranks if rank.result is not None]
    if job.arrays:
        total = functools.reduce(np.add, map(loaded, job.arrays))
        checks = [np.array_equal(result, total) for result in results]
    return AllReduce(
        job.schedule,
        job.bytes,
        *_counted(job.schedule, trace),
        seconds=float(np.min(ends - begins)) / job.calls,
        predicted_seconds=math.nan,
        exact=bool(checks) and all(checks),
        reality=over(link).word,
        trace=trace,
        arrays=results,
        link=link,
    )


def _counted(schedule: Schedule, trace: Trace) -> tuple[int, int, int]:
    """The traffic in the trace of a call: its rounds, the bytes that the worker that sends most
    sends, and those on the busiest link between hosts.
    """
    messages = trace.all(Message)
    host = {schedule.task(rank): host for rank, host in enumerate(schedule.hosts)}
    sent, links = Counter[str](), Counter[tuple[str, int]]()
    for m in messages:
        sent[m.src] += m.bytes
        if host[m.src] != host[m.dst]:
            links["up", host[m.src]] += m.bytes
            links["down", host[m.dst]] += m.bytes
    busiest = max(sent[schedule.task(worker)] for worker in range(schedule.workers))
    return len({m.round for m in messages}), busiest, max(links.values(), default=0)


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


def in_simulated_time(job: Job, link: Link | None) -> AllReduce:
    """A job in simulated time. The bytes come from its price, because a schedule with too many
    transfers leaves no trace.
    """
    schedule, traced = job.schedule, sum(map(len, job.schedule.rounds)) <= MOST_TRACED
    topology = imposed(link) if link else Topology()
    price = job.price(topology)
    run = simulate(schedule, job.bytes, topology, itemsize=job.itemsize, trace=traced)
    return AllReduce(
        schedule,
        job.bytes,
        price.rounds,
        max(price.sent[: schedule.workers]),
        price.busiest_link[1],
        seconds=run.seconds,
        predicted_seconds=price.seconds,
        exact=bool(verify(schedule)),
        reality=SIMULATED.word,
        trace=run.trace or Trace(),
        arrays=[],
    )


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


# --- prediction ---

SIZES = (4 << 10, 256 << 10, 4 << 20)  # bytes that each rank of a timed ring brings


def fitted(ranks: int, seconds: Sequence[float]) -> AlphaBeta:
    """The alpha and beta with which the closed form of a ring of `ranks` ranks comes nearest to its
    measured `seconds`, one for each of the `SIZES`: least squares of the relative errors.
    """
    terms = [closed_form("ring", ranks, size).terms for size in SIZES]
    counts = np.array([(t.messages, t.bytes) for t in terms])
    ones = np.ones(len(SIZES))
    best, *_ = np.linalg.lstsq(counts / np.array(seconds)[:, None], ones, rcond=None)
    return AlphaBeta(*np.maximum(best, 0.0).tolist())


def measure_and_predict(
    jobs: Sequence[Job], where: RunSpec = HERE, watch: Watch | None = None
) -> list[AllReduce]:
    """Carry out jobs as `measure` does, and predict their times.

    Rings on the same ranks and hosts are timed in turn with the jobs. With a `link` for each host
    they are timed before, without it: the formula then takes the link's own figures across hosts.
    Without one, alpha and beta are the same inside hosts and across.
    """
    check_fits(jobs, where)
    places = list(dict.fromkeys(one.schedule.hosts for one in jobs))
    around = [ring(len(hosts)).placed(hosts) for hosts in places]
    rings = [job(each, size // 4, traced=0) for each in around for size in SIZES]
    if where.link:
        done = measure(rings, HERE, watch) + measure(jobs, where, watch)
    else:
        done = measure([*rings, *jobs], where, watch)
    timed = np.array([one.seconds for one in done[: len(rings)]]).reshape(len(places), -1)
    models: dict[tuple[int, ...], Topology] = {}
    for hosts, seconds in zip(places, timed.tolist(), strict=True):
        path = fitted(len(hosts), seconds)
        model = Topology(path, path, gamma=0.0)  # adding is part of beta
        models[hosts] = imposed(where.link_of(0), model) if where.link else model
    return [
        replace(one, predicted_seconds=job.price(models[job.schedule.hosts]).seconds)
        for job, one in zip(jobs, done[len(rings) :], strict=True)
    ]
