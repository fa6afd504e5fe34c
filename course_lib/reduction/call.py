"""`allreduce`: carry out one algorithm, or several side by side, and see what it cost beside what
it should cost.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.collectives import (
    ALGORITHMS,
    FOILS,
    Schedule,
    Topology,
    build,
    bus_bandwidth,
    cost,
    simulate,
    verify,
)
from course_lib.collectives.simulate import MOST_TRACED
from course_lib.errors import SpecError
from course_lib.exchange.communicator import check_dtype
from course_lib.record.events import Message
from course_lib.record.trace import Trace
from course_lib.reduction.measure import (
    REPEATS,
    Measured,
    calibration,
    check,
    expected,
    imposed,
    job,
    measure,
    measure_over,
    parameters,
)
from course_lib.reduction.role import Job
from course_lib.spec import Link, parse_bytes

Algorithm = str | Callable[..., Schedule]


@dataclass(frozen=True)
class AllReduce:
    """What an all-reduce of `bytes` bytes for each worker did and took.

    `bytes_sent_per_worker` is what the worker that sent most has sent, `busiest_link_bytes` what
    the busiest link between two hosts carried, both counted in the trace. `seconds` is the quickest
    of several calls; `predicted_seconds` what the model says, with parameters found on other calls
    of the same processes. `bus_bandwidth` is in bytes a second, as nccl-tests define it. `exact`:
    every worker had the exact sum. `reality` is "measured" (real processes), "emulated" (and links
    that are held to a speed) or "simulated". `arrays`: the results, if arrays were given. `link`:
    the one that was imposed.
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

    def as_dict(self) -> dict[str, Any]:
        """The figures, as plain values."""
        left_out = ("schedule", "trace", "arrays", "link")
        return {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name not in left_out
        }

    def __repr__(self) -> str:
        took = f"{self.seconds * 1e3:.3g} ms {self.reality}, {self.predicted_seconds * 1e3:.3g} ms predicted"
        right = "exact" if self.exact else "NOT EXACT"
        return f"AllReduce({self.algorithm}, {self.workers} workers, {self.bytes} bytes: {self.rounds} rounds, {took}, {right})"


def allreduce(
    what: int | str | Sequence[np.ndarray],
    algorithm: Algorithm = "ring",
    workers: int | None = None,
    hosts: int = 1,
    dtype: str = "float32",
    repeats: int = REPEATS,
    simulated: bool = False,
    link: Link | None = None,
    **options: Any,
) -> AllReduce:
    """Sum arrays over workers, by an algorithm of the course or a function of your own, in real
    processes on this machine.

    `what`: one array for each worker (same shape and dtype), or how many bytes each worker brings
    (a number, or a text like "4MiB"), which then are known numbers whose sum is checked. Workers of
    one host share memory, hosts talk over TCP, through a `link` of each if one is given. With
    `simulated` no process starts, and the time is that of the model. `options` go to the algorithm.

    Raises `SpecError` before any process starts; for a function of yours that is
    not right, with the reason.

        allreduce("4MiB", "hierarchical", workers=8, hosts=2).seconds
    """
    return compare(what, [algorithm], workers, hosts, dtype, repeats, simulated, link, **options)[0]


def compare(
    what: int | str | Sequence[np.ndarray],
    algorithms: Sequence[Algorithm] = tuple(ALGORITHMS),
    workers: int | None = None,
    hosts: int = 1,
    dtype: str = "float32",
    repeats: int = REPEATS,
    simulated: bool = False,
    link: Link | None = None,
    **options: Any,
) -> list[AllReduce]:
    """`allreduce` with several algorithms side by side (default: all), in the same processes where
    they need equally many.
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
        _checked(algorithm, 4 if workers is None else workers, hosts, options)
        for algorithm in algorithms
    ]
    if link and hosts == 1:
        raise SpecError(
            "link", str(link), "a link is between hosts, and there is one: set hosts to 2 or more"
        )
    if simulated:
        topology = imposed(link) if link else Topology()
        return [
            _simulated(schedule, length, np.dtype(dtype).itemsize, topology)
            for schedule in schedules
        ]
    found: dict[int, AllReduce] = {}
    with _saved(arrays) as files:
        groups = defaultdict(list)
        for i, schedule in enumerate(schedules):
            groups[schedule.hosts].append(i)
        jobs = {
            i: replace(job(schedules[i], length, dtype, repeats), arrays=files)
            for i in range(len(schedules))
        }
        check(list(jobs.values()))
        for same in groups.values():
            found.update(zip(same, _carried_out([jobs[i] for i in same], link), strict=True))
    shape = arrays[0].shape if arrays else ()
    return [
        replace(found[i], arrays=[a.reshape(shape) for a in found[i].arrays])
        for i in range(len(schedules))
    ]


def _carried_out(jobs: list[Job], link: Link | None) -> list[AllReduce]:
    """What came of jobs with the same ranks; the model is fitted in the same processes, or, for
    links, in the same way without them.
    """
    if link:
        done, model = measure_over(link, jobs)
        return [replace(_result(m, expected(m.job, model), "emulated"), link=link) for m in done]
    tests = calibration(jobs[0].schedule) if jobs[0].schedule.ranks > 1 else []
    done = measure([*tests, *jobs])
    model = parameters([m.sample for m in done[: len(tests)]]).topology if tests else Topology()
    return [_result(m, expected(m.job, model), "measured") for m in done[len(tests) :]]


def _result(measured: Measured, predicted: float, reality: str) -> AllReduce:
    sample = measured.sample
    exact = bool(measured.exact)
    if measured.job.arrays:
        total = functools.reduce(np.add, map(np.load, measured.job.arrays))
        exact = all(np.array_equal(array, total) for array in measured.arrays)
    return _described(
        sample.schedule,
        sample.bytes,
        measured.trace,
        sample.seconds,
        predicted,
        exact,
        reality,
        measured.arrays,
    )


def _simulated(schedule: Schedule, length: int, itemsize: int, topology: Topology) -> AllReduce:
    nbytes = length * itemsize
    traced = sum(map(len, schedule.rounds)) <= MOST_TRACED
    priced = cost(schedule, nbytes, topology, itemsize)
    simulation = simulate(schedule, nbytes, topology, itemsize=itemsize, trace=traced)
    trace = simulation.trace or Trace()
    result = _described(
        schedule,
        nbytes,
        trace,
        simulation.seconds,
        priced.seconds,
        bool(verify(schedule)),
        "simulated",
        [],
    )
    sent, busiest = max(priced.sent[: schedule.workers]), priced.busiest_link[1]
    return replace(
        result, rounds=priced.rounds, bytes_sent_per_worker=sent, busiest_link_bytes=busiest
    )


def _described(
    schedule: Schedule,
    nbytes: int,
    trace: Trace,
    seconds: float,
    predicted: float,
    exact: bool,
    reality: str,
    arrays: list[np.ndarray],
) -> AllReduce:
    """The figures of a run, measured or simulated; what was sent is counted in its trace."""
    host = {schedule.task(rank): schedule.hosts[rank] for rank in range(schedule.ranks)}
    sent: Counter[str] = Counter()
    link: Counter[tuple[str, int]] = Counter()
    messages = trace.all(Message)
    for m in messages:
        sent[m.src] += m.bytes
        if host[m.src] != host[m.dst]:
            link["up", host[m.src]] += m.bytes
            link["down", host[m.dst]] += m.bytes
    return AllReduce(
        algorithm=schedule.name,
        workers=schedule.workers,
        hosts=len(set(schedule.hosts)),
        bytes=nbytes,
        rounds=len({m.round for m in messages}),
        bytes_sent_per_worker=max(
            (sent[schedule.task(w)] for w in range(schedule.workers)), default=0
        ),
        busiest_link_bytes=max(link.values(), default=0),
        seconds=seconds,
        predicted_seconds=predicted,
        bus_bandwidth=bus_bandwidth(nbytes, seconds, schedule.workers),
        exact=exact,
        reality=reality,
        schedule=schedule,
        trace=trace,
        arrays=arrays,
    )


def _alike(arrays: list[np.ndarray], workers: int | None) -> int:
    """How many workers bring these arrays. Raises `SpecError` if they do not go together."""
    if not arrays:
        raise SpecError("arrays", [], "one array for each worker")
    if workers not in (None, len(arrays)):
        raise SpecError("workers", workers, f"{len(arrays)} arrays were given, one for each worker")
    for i, array in enumerate(arrays):
        if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            kinds = f"{array.dtype} of shape {array.shape}, and arrays[0] {arrays[0].dtype} of shape {arrays[0].shape}"
            raise SpecError(
                f"arrays[{i}]", kinds, "all workers must bring the same shape and dtype"
            )
    return len(arrays)


def _length(what: object, dtype: str) -> int:
    """How many elements of a dtype so many bytes are."""
    nbytes = parse_bytes(str(what))
    try:
        itemsize = np.dtype(dtype).itemsize
        check_dtype(np.dtype(dtype))
    except TypeError:
        raise SpecError(
            "dtype", dtype, "the name of a numpy dtype, such as float32 or int64"
        ) from None
    if nbytes % itemsize:
        near = nbytes // itemsize * itemsize
        raise SpecError(
            "bytes",
            nbytes,
            f"a whole number of {dtype} elements of {itemsize} bytes, such as {near} or {near + itemsize}",
        )
    return nbytes // itemsize


def _checked(algorithm: Algorithm, workers: int, hosts: int, options: dict[str, Any]) -> Schedule:
    """The schedule of an all-reduce. A function of the learner's own is proved first."""
    if isinstance(algorithm, str) and algorithm not in ALGORITHMS | FOILS:
        raise SpecError.unknown("algorithm", algorithm, ALGORITHMS | FOILS)
    schedule = build(algorithm, workers, hosts=hosts, **options)
    if schedule.kind != "all_reduce":
        raise SpecError("algorithm", schedule.name, f"is a {schedule.kind}, not an all_reduce")
    if (
        callable(algorithm)
        and algorithm not in ALGORITHMS.values()
        and not (proof := verify(schedule))
    ):
        raise SpecError("algorithm", schedule.name, f"it is not right yet.\n{proof}")
    return schedule


@contextlib.contextmanager
def _saved(arrays: list[np.ndarray]) -> Iterator[tuple[Path, ...]]:
    """Each worker's array in a file of its own; no files without arrays."""
    if not arrays:
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:
        files = tuple(Path(directory) / f"{i}.npy" for i in range(len(arrays)))
        for file, array in zip(files, arrays, strict=True):
            np.save(file, array)
        yield files
