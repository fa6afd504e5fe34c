"""`allreduce`: carry out one algorithm, or several side by side, and compare the measured cost with
the predicted one.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib import hardware
from course_lib.collectives import Schedule, Topology, bus_bandwidth, cost, simulate, verify
from course_lib.collectives.algorithms import ALGORITHMS, Algorithm
from course_lib.collectives.simulate import MOST_TRACED
from course_lib.errors import Interrupted, SpecError
from course_lib.exchange.communicator import check_dtype
from course_lib.record.events import Message
from course_lib.record.progress import Line
from course_lib.record.reality import SIMULATED, over
from course_lib.record.trace import Trace
from course_lib.reduction import measure
from course_lib.reduction.asked import alike, checked, length_of
from course_lib.reduction.measure import REPEATS, Measured
from course_lib.reduction.role import Job
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from course_lib.text import amount, count

if TYPE_CHECKING:
    from course_lib.widgets.stage import AllReduceStage


@dataclass(frozen=True)
class AllReduce:
    """The result of an all-reduce of `bytes` bytes for each worker.

    `bytes_sent_per_worker`: the bytes that the worker that sent most has sent;
    `busiest_link_bytes`: the bytes on the busiest link between a host and the others; both are
    counted in the trace. `seconds` is the time of the quickest of several calls;
    `predicted_seconds` is what the model predicts, with parameters fitted to other calls.
    `bus_bandwidth` is in bytes a second, as nccl-tests define it. `exact`: whether every worker had
    the exact sum. `reality` is "measured" (real processes), "emulated" (over links that are held to
    a speed) or "simulated". `arrays`: the results, if arrays were given. `link`: the link that was
    imposed, if any.
    """

    algorithm: str
    workers: int
    hosts: int
    bytes: int
    rounds: int
    bytes_sent_per_worker: int
    busiest_link_bytes: int
    seconds: float
    predicted_seconds: float
    bus_bandwidth: float
    exact: bool
    reality: str
    schedule: Schedule
    trace: Trace
    arrays: list[np.ndarray]
    link: Link | None = None

    @property
    def why(self) -> str:
        """Why it is as real as `reality` says, in a sentence."""
        return (SIMULATED if self.reality == SIMULATED.word else over(self.link)).why

    def as_dict(self) -> dict[str, Any]:
        """The figures, as plain values."""
        left_out = ("schedule", "trace", "arrays", "link")
        names = [name for name in self.__dataclass_fields__ if name not in left_out]
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return (
            f"AllReduce({self.algorithm}, {self.workers} workers, {self.bytes} bytes: "
            f"{self.rounds} rounds, {self.seconds * 1e3:.3g} ms {self.reality}, "
            f"{self.predicted_seconds * 1e3:.3g} ms predicted, "
            f"{'exact' if self.exact else 'NOT EXACT'})"
        )


def allreduce(
    what: int | str | Sequence[np.ndarray],
    algorithm: str | Algorithm = "ring",
    workers: int | None = None,
    hosts: int = 1,
    dtype: str = "float32",
    repeats: int = REPEATS,
    simulated: bool = False,
    link: Link | None = None,
    engine: str = "local",
    address: str | None = None,
    **options: Any,
) -> AllReduce:
    """Sum arrays over workers in real processes, with an algorithm of the course or a function of
    your own.

    `what`: one array for each worker (same shape and dtype), or how many bytes each worker brings
    (a number, or a text like "4MiB"). In the second case the workers bring known numbers, and their
    sum is checked. Workers of one host share memory; hosts talk over TCP, each through a `link` if
    one is given. With `engine="ray"` hosts are nodes of the Ray cluster at `address`, with links
    as they are. With `simulated` no process starts, and the time is the model's. `options` are
    passed to the algorithm.

    Raises `SpecError` before any process starts. If a function of your own is wrong, the error says
    why.

        allreduce("4MiB", "hierarchical", workers=8, hosts=2).seconds
    """
    given = workers, hosts, dtype, repeats, simulated, link, None, engine, address
    return compare(what, [algorithm], *given, **options)[0]


def compare(
    what: int | str | Sequence[np.ndarray],
    algorithms: Sequence[str | Algorithm] = (),
    workers: int | None = None,
    hosts: int = 1,
    dtype: str = "float32",
    repeats: int = REPEATS,
    simulated: bool = False,
    link: Link | None = None,
    watch: measure.Watch | None = None,
    engine: str = "local",
    address: str | None = None,
    **options: Any,
) -> list[AllReduce]:
    """`allreduce` with several algorithms side by side (default: all). Those that need equally many
    processes run in the same ones. `watch` is told of each cluster of processes that is started.
    """
    if repeats < 1:
        raise SpecError("repeats", repeats, "a whole number from 1 on")
    arrays: list[np.ndarray] = []
    if isinstance(what, (list, tuple, np.ndarray)):
        arrays = [np.asarray(a) for a in what]
        workers, dtype, length = alike(arrays, workers), arrays[0].dtype.str, arrays[0].size
        check_dtype(arrays[0].dtype)
    else:
        length = length_of(what, dtype)
    schedules = [
        checked(algorithm, 4 if workers is None else workers, hosts, options)
        for algorithm in algorithms or ALGORITHMS
    ]
    few = min(hosts, 2)  # what is simulated may have thousands
    where = RunSpec(workers=few, hosts=few, link=link, engine=engine, address=address)
    if link:
        link.check_lossless()
    jobs = [measure.job(schedule, length, dtype, repeats) for schedule in schedules]
    if simulated:
        topology = measure.imposed(link) if link else Topology()
        return [_simulated(one, topology) for one in jobs]
    measure.check_fits(jobs, where)  # all of them, before any process starts
    together: dict[tuple[int, ...], list[Job]] = defaultdict(list)
    began = time.monotonic()

    def says() -> str:
        names = ", ".join(one.schedule.name for one in jobs)
        each = f"{amount(jobs[0].bytes)} on each of {count(schedules[0].workers, 'worker')}"
        seconds = time.monotonic() - began
        return f"All-reduce in real processes for {seconds:.0f} s. {names}: {each}"

    try:
        with _saved(arrays, where) as files, Line(says):
            for one in jobs:
                together[one.schedule.hosts].append(replace(one, arrays=files))
            results = {
                hosts: iter(_carried_out(same, where, watch)) for hosts, same in together.items()
            }
    except KeyboardInterrupt:
        raise Interrupted("The all-reduce was cancelled, and its processes have ended.") from None
    return [next(results[one.schedule.hosts]) for one in jobs]


def stage(
    *algorithms: str | Algorithm | AllReduce,
    workers: int = 8,
    hosts: int = 2,
    bytes: int | str = "4MiB",
    link: Link | None = None,
    labels: Sequence[str] = (),
    **options: Any,
) -> AllReduceStage:
    """All-reduce algorithms side by side, as in `AllReduceStage`, whose other `options` it takes as
    well; its button carries them out in real processes.

    stage("ring", "hierarchical", workers=8, hosts=2, bytes="4MiB", link=Link(mbit=200))
    """
    # importing widgets takes long
    from course_lib.widgets.stage import AllReduceStage

    options |= {"workers": workers, "hosts": hosts, "bytes": bytes, "link": link, "labels": labels}
    run, cores = functools.partial(compare, repeats=3), hardware.probe().cores
    return AllReduceStage(*algorithms, run=run, cores=cores, **options)


def _carried_out(jobs: list[Job], where: RunSpec, watch: measure.Watch | None) -> list[AllReduce]:
    """Carry out jobs with the same ranks on the same hosts."""
    done, model = measure.measure_and_model(jobs, where, watch)
    word, link = over(where.link).word, where.link
    return [_result(m, _counted(m), measure.expected(m.job, model), word, link) for m in done]


def _simulated(job: Job, topology: Topology) -> AllReduce:
    """A job in simulated time. The bytes come from `cost`, because a schedule with too many
    transfers leaves no trace.
    """
    schedule, traced = job.schedule, sum(map(len, job.schedule.rounds)) <= MOST_TRACED
    price = cost(schedule, job.bytes, topology, job.itemsize)
    run = simulate(schedule, job.bytes, topology, itemsize=job.itemsize, trace=traced)
    done = Measured(job, (run.seconds,), run.trace or Trace(), bool(verify(schedule)), [])
    traffic = price.rounds, max(price.sent[: schedule.workers]), price.busiest_link[1]
    return _result(done, traffic, price.seconds, SIMULATED.word)


def _counted(done: Measured) -> tuple[int, int, int]:
    """The traffic in the trace of a job: its rounds, the bytes that the worker that sends most
    sends, and those on the busiest link between hosts.
    """
    schedule, messages = done.job.schedule, done.trace.all(Message)
    host = {schedule.task(rank): host for rank, host in enumerate(schedule.hosts)}
    sent: Counter[str] = Counter()
    links: Counter[tuple[str, int]] = Counter()
    for m in messages:
        sent[m.src] += m.bytes
        if host[m.src] != host[m.dst]:
            links["up", host[m.src]] += m.bytes
            links["down", host[m.dst]] += m.bytes
    busiest = max(sent[schedule.task(worker)] for worker in range(schedule.workers))
    return len({m.round for m in messages}), busiest, max(links.values(), default=0)


def _result(
    done: Measured,
    traffic: tuple[int, int, int],
    predicted: float,
    reality: str,
    link: Link | None = None,
) -> AllReduce:
    """The figures of a job, measured or simulated; `traffic` as `_counted` returns it."""
    schedule, seconds = done.job.schedule, min(done.seconds)
    rounds, sent, busiest = traffic
    return AllReduce(
        algorithm=schedule.name,
        workers=schedule.workers,
        hosts=len(set(schedule.hosts)),
        bytes=done.job.bytes,
        rounds=rounds,
        bytes_sent_per_worker=sent,
        busiest_link_bytes=busiest,
        seconds=seconds,
        predicted_seconds=predicted,
        bus_bandwidth=bus_bandwidth(done.job.bytes, seconds, schedule.workers),
        exact=bool(done.exact),
        reality=reality,
        schedule=schedule,
        trace=done.trace,
        arrays=done.arrays,
        link=link,
    )


@contextlib.contextmanager
def _saved(
    arrays: list[np.ndarray], where: RunSpec
) -> Iterator[tuple[Path, ...] | tuple[np.ndarray, ...]]:
    """Each worker's array in a file of its own; for other machines, the arrays themselves."""
    if where.on_nodes:
        yield tuple(arrays)
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:
        files = tuple(Path(directory) / f"{i}.npy" for i in range(len(arrays)))
        for file, array in zip(files, arrays, strict=True):
            np.save(file, array)
        yield files
