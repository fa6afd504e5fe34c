"""`allreduce`: carry out one algorithm, or several side by side, and compare the measured time with
the predicted one.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib import hardware
from course_lib.collectives import Schedule, Topology, bus_bandwidth, cost, simulate, verify
from course_lib.collectives.algorithms import ALGORITHMS, FOILS, Algorithm, build
from course_lib.collectives.simulate import MOST_TRACED
from course_lib.errors import Interrupted, SpecError
from course_lib.exchange.communicator import check_dtype
from course_lib.record.events import Message
from course_lib.record.progress import Line
from course_lib.record.reality import SIMULATED, over
from course_lib.record.trace import Trace
from course_lib.reduction.measure import REPEATS, Watch, check_fits, imposed, job
from course_lib.reduction.prediction import measure_and_predict
from course_lib.reduction.role import Job
from course_lib.spec.fields import Link, parse_bytes
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.gate import Request, refusals
from course_lib.text import amount, count

if TYPE_CHECKING:
    from course_lib.widgets.stage import AllReduceStage

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
    counted in the trace. `seconds` is the time of the quickest of several calls;
    `predicted_seconds` is that of the formula, with alpha and beta from timings of a ring.
    `exact`: whether every worker had the exact sum. `reality` is "measured" (real processes),
    "emulated" (over links that are held to a speed) or "simulated". `arrays`: the results, if
    arrays were given. `link`: the link that was imposed, if any.
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
        """Why it is as real as `reality` says, in a sentence."""
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
    watch: Watch | None = None,
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
        workers, dtype, length = _alike(arrays, workers), arrays[0].dtype.str, arrays[0].size
        check_dtype(arrays[0].dtype)
    else:
        length = _length(what, dtype)
    schedules = [
        _schedule(algorithm, 4 if workers is None else workers, hosts, options)
        for algorithm in algorithms or ALGORITHMS
    ]
    few = min(hosts, 2)  # what is simulated may have thousands
    where = RunSpec(workers=few, hosts=few, link=link, engine=engine, address=address)
    for refusal in refusals(Request(where)):
        raise refusal
    if link:
        link.check_lossless()
    jobs = [job(schedule, length, dtype, repeats, link=link) for schedule in schedules]
    if simulated:
        topology = imposed(link) if link else Topology()
        return [_simulated(one, topology) for one in jobs]
    check_fits(jobs, where)
    began = time.monotonic()

    def says() -> str:
        names = ", ".join(schedule.name for schedule in schedules)
        each = f"{amount(jobs[0].bytes)} on each of {count(schedules[0].workers, 'worker')}"
        seconds = time.monotonic() - began
        return f"All-reduce in real processes for {seconds:.0f} s. {names}: {each}"

    try:
        with _saved(arrays, where) as files, Line(says):
            jobs = [replace(one, arrays=files) for one in jobs]
            measured = measure_and_predict(jobs, where, watch)
    except KeyboardInterrupt:
        raise Interrupted("The all-reduce was cancelled, and its processes have ended.") from None
    return [
        AllReduce(
            m.job.schedule,
            m.job.bytes,
            *_counted(m.job.schedule, m.trace),
            seconds=min(m.seconds),
            predicted_seconds=predicted,
            exact=bool(m.exact),
            reality=over(link).word,
            trace=m.trace,
            arrays=m.arrays,
            link=link,
        )
        for m, predicted in measured
    ]


def stage(
    *algorithms: str | Algorithm | AllReduce,
    workers: int = 8,
    hosts: int = 2,
    bytes: int | str = "4MiB",
    link: Link | None = None,
    **options: Any,
) -> AllReduceStage:
    """All-reduce algorithms side by side, as in `AllReduceStage`, whose other `options` it takes as
    well; its button carries them out in real processes.

    stage("ring", "hierarchical", workers=8, hosts=2, bytes="4MiB", link=Link(mbit=200))
    """
    # importing widgets takes long
    from course_lib.widgets.stage import AllReduceStage

    options |= {"workers": workers, "hosts": hosts, "bytes": bytes, "link": link}
    run, cores = functools.partial(compare, repeats=3), hardware.probe().cores
    return AllReduceStage(*algorithms, run=run, cores=cores, **options)


def _alike(arrays: list[np.ndarray], workers: int | None) -> int:
    """The number of workers that bring these arrays, one each. Raises `SpecError` if it is not
    `workers`, or if the arrays differ in shape or dtype.
    """
    if not arrays:
        raise SpecError("arrays", [], "one array for each worker")
    if workers not in (None, len(arrays)):
        raise SpecError("workers", workers, f"{len(arrays)} arrays were given, one for each worker")
    for i, array in enumerate(arrays):
        if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            this, first = (f"{a.dtype} of shape {a.shape}" for a in (array, arrays[0]))
            allowed = "all workers must bring the same shape and dtype"
            raise SpecError(f"arrays[{i}]", f"{this}, and arrays[0] {first}", allowed)
    return len(arrays)


def _length(what: object, dtype: str) -> int:
    """The number of elements of a dtype in `what` bytes. Raises `SpecError`."""
    nbytes = parse_bytes(str(what))
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # numpy evaluates what stands before a comma
        allowed = "the name of a numpy dtype, such as float32 or int64"
        raise SpecError("dtype", dtype, allowed) from None
    check_dtype(kind)
    itemsize = kind.itemsize
    if nbytes % itemsize:
        near = nbytes // itemsize * itemsize
        allowed = f"a whole number of {dtype} elements of {itemsize} bytes"
        raise SpecError("bytes", nbytes, f"{allowed}, such as {near} or {near + itemsize}")
    return nbytes // itemsize


def _schedule(
    algorithm: str | Algorithm, workers: int, hosts: int, options: dict[str, Any]
) -> Schedule:
    """The schedule of an all-reduce. One from a learner's own function is verified first; raises
    `SpecError` if it is wrong.
    """
    if isinstance(algorithm, str) and algorithm not in ALGORITHMS | FOILS:
        raise SpecError.unknown("algorithm", algorithm, ALGORITHMS | FOILS)
    schedule = build(algorithm, workers, hosts=hosts, **options)
    if schedule.kind != "all_reduce":
        raise SpecError("algorithm", schedule.name, f"is a {schedule.kind}, not an all_reduce")
    own = callable(algorithm) and algorithm not in ALGORITHMS.values()
    if own and not (proof := verify(schedule)):
        raise SpecError("algorithm", schedule.name, f"it is not right yet.\n{proof}")
    return schedule


def _simulated(job: Job, topology: Topology) -> AllReduce:
    """A job in simulated time. The bytes come from `cost`, because a schedule with too many
    transfers leaves no trace.
    """
    schedule, traced = job.schedule, sum(map(len, job.schedule.rounds)) <= MOST_TRACED
    price = cost(schedule, job.bytes, topology, job.itemsize)
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


def _counted(schedule: Schedule, trace: Trace) -> tuple[int, int, int]:
    """The traffic in the trace of a call: its rounds, the bytes that the worker that sends most
    sends, and those on the busiest link between hosts.
    """
    messages = trace.all(Message)
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
