"""All-reduce between four processes: schedules over shared memory and over TCP, against gloo and
against what copying alone would allow.

Every figure is bus bandwidth, as nccl-tests define it, of float32. Both sides work in place on one
and the same array, in the same four processes, call by call in turn, and every result is checked.
The trace is on, as it is for learners.

A barrier of ours stands before each call, as gloo's own leaves ranks apart by more than a small
call takes. The time of a call runs from the moment at which the first rank leaves the barrier to
the moment at which the last rank is done. Counted from the last rank that leaves, it would be too
short: where ranks share cores, that one often gets its core only when others have done a good part
of their work.

The limit: each of the P ranks copies 2(P-1)/P S bytes, as many as it must send in an all-reduce of
S bytes, from one private array to another, all ranks at the same time. Nothing is added, nobody
waits for anybody. A schedule is held to a third of that: it adds where the limit only copies, and
takes the numbers into shared memory and out again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

import course_lib
from course_lib.cluster.task import Task
from course_lib.collectives import build, bus_bandwidth
from course_lib.exchange import Communicator
from course_lib.record.events import clock
from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Row, Rows, turns

RANKS = 4
ALGORITHMS = ("direct", "ring")
# what an all-reduce leaves where every rank brings its number, counted from 1
SUM = RANKS * (RANKS + 1) / 2
KIB, MIB = 2**10, 2**20
# of each side in one repeat, by bytes; the median of them is its figure
CALLS = {64 * KIB: 200, MIB: 60, 16 * MIB: 9, 64 * MIB: 5}
WARM_UP = 3  # calls of each side that are not counted
THIRD = 0.33


class Way(NamedTuple):
    """What ranks reach each other over: the host of each rank, and the aims against gloo by
    bytes.
    """

    name: str
    place: tuple[int, ...]
    aims: Mapping[int, float]


SHARED = Way("shared memory", (0,) * RANKS, {64 * KIB: 1, MIB: 3, 16 * MIB: 3, 64 * MIB: 2})
TCP = Way("TCP", tuple(range(RANKS)), {64 * KIB: 0, MIB: 1, 16 * MIB: 1, 64 * MIB: 1})


class Side(NamedTuple):
    """One of the two that are compared: a call, and what then stands in the array, which held rank
    + 1.
    """

    call: Callable[[], object]
    result: float


class Peer(NamedTuple):
    """`side` makes it, in a process of its own, for a rank, its array, and how often in a row; one
    call is to work through `least` bytes.
    """

    name: str
    side: Callable[[int, np.ndarray, int], Side]
    least: int

    def times(self, size: int) -> int:
        return max(1, self.least // size)


def gloo(rank: int, array: np.ndarray, times: int) -> Side:
    """torch's own all-reduce of the same bytes in the same place."""
    import torch
    import torch.distributed as dist

    tensor = torch.from_numpy(array)
    return Side(lambda: dist.all_reduce(tensor), SUM)


def copies(rank: int, array: np.ndarray, times: int) -> Side:
    """The limit."""
    target, part = np.zeros_like(array), 2 * (RANKS - 1) * array.size // RANKS

    def copy() -> None:
        for _ in range(times):
            for begin in range(0, part, array.size):
                end = min(array.size, part - begin)
                np.copyto(target[:end], array[:end])

    return Side(copy, rank + 1)


GLOO = Peer("gloo", gloo, 0)
# long enough for the way out of the barrier not to count
COPIES = Peer("copies alone", copies, 64 * MIB)


def rows(options: Options) -> Rows:
    """A row for each way, size and algorithm; then the limit, for sizes at which bytes count for
    more than waking up.
    """
    clusters.warm("torch")
    sizes = [size for size in CALLS if size <= MIB or not options.quick]
    for way in (SHARED, TCP):
        for size in sizes:
            for algorithm in ALGORITHMS:
                yield row(algorithm, size, way, GLOO, aim(way.aims[size]), options)
    for size in [size for size in sizes if size > MIB] or sizes[-1:]:
        for algorithm in ALGORITHMS:
            yield row(algorithm, size, SHARED, COPIES, Aim("at least", THIRD), options)


def aim(times: float) -> Aim:
    return Aim("at least", times) if times else Aim("shown")


def row(algorithm: str, size: int, way: Way, peer: Peer, held_to: Aim, options: Options) -> Row:
    work = taking_turns(algorithm, size, way.place, peer)

    def pairs() -> Iterator[tuple[float, float]]:
        run = course_lib.start(work, framework="torch", workers=RANKS).wait(clusters.LONGEST)
        ours, theirs = zip(*run.result.values(), strict=True)
        yield gigabytes(size, ours), gigabytes(size * peer.times(size), theirs)

    amount = f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
    return turns(
        f"all-reduce over {way.name}, {algorithm}, {amount}",
        "GB/s",
        pairs,
        peer.name,
        held_to,
        options,
    )


Span = Sequence[float]
"""When a rank left the barrier, and when it was done."""


def gigabytes(size: int, by_rank: Sequence[Sequence[Span]]) -> float:
    """Bus bandwidth of the middle one of all calls, in GB/s, from what each rank noted of each."""
    return (
        bus_bandwidth(size, statistics.median(map(seconds, zip(*by_rank, strict=True))), RANKS)
        / 1e9
    )


def seconds(spans: Sequence[Span]) -> float:
    """The time of one call, from what each rank noted of it."""
    return max(end for _, end in spans) - min(start for start, _ in spans)


def taking_turns(
    algorithm: str, size: int, place: tuple[int, ...], peer: Peer
) -> Callable[[Task], list[list[Span]]]:
    """What each process does. Returns the spans of our calls and those of the peer's."""
    barrier = build("recursive_doubling", RANKS)

    def work(task: Task) -> list[list[Span]]:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        array = np.empty(size // 4, np.float32)
        meet = Communicator(task.rank, (0,) * RANKS, task.run_dir / "barrier")
        schedule, group = (
            build(algorithm, RANKS),
            Communicator(task.rank, place, task.run_dir / "exchange", task.recorder.add),
        )
        sides = (
            Side(lambda: group.execute(schedule, array), SUM),
            peer.side(task.rank, array, peer.times(size)),
        )
        pairs = [
            [timed(side, array, task.rank, meet) for side in sides]
            for _ in range(WARM_UP + CALLS[size])
        ]
        group.close()
        meet.close()
        ours, theirs = zip(*pairs[WARM_UP:], strict=True)
        return [list(ours), list(theirs)]

    def timed(side: Side, array: np.ndarray, rank: int, meet: Communicator) -> Span:
        array.fill(rank + 1)
        meet.execute(barrier, np.zeros(1))
        start = clock()
        side.call()
        end = clock()
        if not (array == side.result).all():
            raise ValueError(
                f"{algorithm} or {peer.name}: {side.result} was to be everywhere in {size} bytes,"
                " and is not"
            )
        return start, end

    return work
