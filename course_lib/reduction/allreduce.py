"""`allreduce`: carry out one algorithm, or several side by side, and compare the measured time with
the predicted one.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib.collectives import Schedule, verify
from course_lib.collectives.algorithms import ALGORITHMS, Algorithm, build
from course_lib.errors import Interrupted, SpecError
from course_lib.exchange.communicator import check_dtype
from course_lib.record.progress import Line
from course_lib.reduction import measure
from course_lib.reduction.measure import REPEATS, AllReduce, Watch
from course_lib.spec.fields import Link, parse_bytes
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.gate import Request, refusals
from course_lib.text import amount, count

if TYPE_CHECKING:
    from course_lib.widgets.stage import AllReduceStage


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
    **options: Any,
) -> AllReduce:
    """Sum arrays over workers in real processes, with an algorithm of the course or a function of
    your own.

    `what`: one array for each worker (same shape and dtype), or how many bytes each worker brings
    (a number, or a text like "4MiB"). In the second case the workers bring known numbers, and their
    result is checked. The algorithm may also be that of another collective, such as
    "ring_all_gather" or "direct_all_to_all" (`Schedule.kind` says which). Workers of one host share
    memory; hosts talk over TCP, each through a `link` if one is given. With `engine="ray"` hosts
    are nodes of a Ray cluster, with links as they are. With `simulated` no process starts, and the
    time is the model's. `options` are passed to the algorithm.

    Raises `SpecError` before any process starts. If a function of your own is wrong, the error says
    why.

        allreduce("4MiB", "hierarchical", workers=8, hosts=2).seconds
    """
    given = workers, hosts, dtype, repeats, simulated, link, None, engine
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
    ranks = 4 if workers is None else workers
    schedules = [_schedule(each, ranks, hosts, options) for each in algorithms or ALGORITHMS]
    few = min(hosts, 2)  # what is simulated may have thousands
    where = RunSpec(workers=few, hosts=few, link=link, engine=engine)
    for refusal in refusals(Request(where)):
        raise refusal
    if link:
        link.check_lossless()
    jobs = [measure.job(schedule, length, dtype, repeats, link=link) for schedule in schedules]
    if simulated:
        return [measure.in_simulated_time(one, link) for one in jobs]
    names, began = ", ".join(schedule.name for schedule in schedules), time.monotonic()
    each = f"{amount(jobs[0].bytes)} on each of {count(schedules[0].workers, 'worker')}"

    def status() -> str:
        seconds = time.monotonic() - began
        return f"All-reduce in real processes for {seconds:.0f} s. {names}: {each}"

    try:
        with _saved(arrays, where) as files, Line(status):
            jobs = [replace(one, arrays=files) for one in jobs]
            return measure.measure_and_predict(jobs, where, watch)
    except KeyboardInterrupt:
        raise Interrupted("The all-reduce was cancelled, and its processes have ended.") from None


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
    return AllReduceStage(*algorithms, run=functools.partial(compare, repeats=3), **options)


def _alike(arrays: list[np.ndarray], workers: int | None) -> int:
    """The number of workers that bring these arrays, one each. Raises `SpecError` if it is not
    `workers`, or if the arrays differ in shape or dtype.
    """
    if not arrays or workers not in (None, len(arrays)):
        raise SpecError("workers", workers, f"{len(arrays)} arrays were given, one for each worker")
    kinds = [f"{array.dtype} of shape {array.shape}" for array in arrays]
    for i, kind in enumerate(kinds):
        if kind != kinds[0]:
            allowed = "all workers must bring the same shape and dtype"
            raise SpecError(f"arrays[{i}]", f"{kind}, and arrays[0] {kinds[0]}", allowed)
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
    """The schedule of an algorithm. One from a learner's own function is verified first; raises
    `SpecError` if it is wrong.
    """
    schedule = build(algorithm, workers, hosts=hosts, **options)
    own = callable(algorithm) and algorithm not in ALGORITHMS.values()
    if own and not (proof := verify(schedule)):
        raise SpecError("algorithm", schedule.name, f"it is not right yet.\n{proof}")
    return schedule


@contextlib.contextmanager
def _saved(arrays: list[np.ndarray], where: RunSpec) -> Iterator[tuple[Path | np.ndarray, ...]]:
    """Each worker's array in a file of its own; for other machines, the arrays themselves."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:
        files = [Path(directory, f"{i}.npy") for i in range(len(arrays))]
        for file, array in zip(files, arrays, strict=True):
            np.save(file, array)
        yield tuple(arrays if where.on_nodes else files)
