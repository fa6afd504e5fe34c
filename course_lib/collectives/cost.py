"""The cost of a schedule: the bytes that each rank and link carries, and the time in the
alpha-beta-gamma model.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from course_lib.collectives.model import Terms, Topology
from course_lib.collectives.schedule import Kind, Round, Schedule
from course_lib.collectives.turns import take_turns


@dataclass(frozen=True)
class Cost:
    """What `cost` returns. Bytes are exact whole numbers.

    `sent`, `received` and `reduced` have an entry for each rank, `up` and `down` for each host.
    """

    schedule: Schedule
    bytes: int
    rounds: int
    messages: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    reduced: tuple[int, ...]
    up: tuple[int, ...]
    down: tuple[int, ...]
    terms: Terms
    seconds: float

    @property
    def bytes_per_rank(self) -> int:
        """The bytes sent by the rank that sends most."""
        return max(self.sent)

    @property
    def busiest_link(self) -> tuple[str, int]:
        """The link between hosts that carries most, such as ("host 1 up", 4194304); ("none", 0) if
        nothing leaves a host.
        """
        sides = ("up", self.up), ("down", self.down)
        links = {f"host {host} {way}": n for way, side in sides for host, n in enumerate(side)}
        name = max(links, key=links.__getitem__)
        return (name, links[name]) if links[name] else ("none", 0)

    @property
    def bus_bandwidth(self) -> float:
        """Bytes a second, see `bus_bandwidth`."""
        return bus_bandwidth(self.bytes, self.seconds, self.schedule.workers, self.schedule.kind)

    def __repr__(self) -> str:
        link, most = self.busiest_link
        across = f", busiest link {link} {most} bytes" if most else ""
        each = f"at most {self.bytes_per_rank} bytes sent by a rank"
        return (
            f"Cost({self.schedule.name}: {self.rounds} rounds, {self.messages} messages, "
            f"{each}{across}, {self.seconds:.3g} s)"
        )


def cost(
    schedule: Schedule,
    bytes: int,
    topology: Topology = Topology(),  # noqa: B008  # frozen
    itemsize: int = 1,
) -> Cost:
    """The cost of a schedule that `verify` accepts, for a buffer of `bytes` bytes; chunks are whole
    elements of `itemsize` bytes.

    The time is the sum over rounds, as if each began when the last was over. In a round a rank
    sends its messages one after another, and at the same time receives one after another; bytes
    that cross between hosts share the uplink and the downlink of their host; the longest delay of
    the messages is paid once; then what was received is added. The round takes as long as its
    slowest rank or link. If ranks share `cores` there are no such rounds, and the time is that of
    `turns`. Raises SpecError if `bytes` is no whole number of elements, or if the topology does not
    fit the schedule.
    """
    place = topology.place(schedule)
    by_rank, by_host = np.zeros((3, schedule.ranks)), np.zeros((2, int(place.max()) + 1))
    times, count = np.zeros(len(Terms._fields)), 0
    last, share = None, (by_rank, by_host, times)
    for m in messages(schedule, bytes, itemsize):
        if m is not last:
            last, share = m, _share(m, place, topology)
        for total, part in zip((by_rank, by_host, times), share, strict=True):
            total += part
        count += len(m.src)
    terms = Terms(*times.tolist())
    if topology.cores:
        terms = take_turns(schedule, bytes, topology, itemsize).terms
    sent, received, reduced, up, down = (
        tuple(row.astype(np.int64).tolist()) for row in (*by_rank, *by_host)
    )
    rounds, seconds = len(schedule.rounds), terms.seconds(topology)
    return Cost(schedule, bytes, rounds, count, sent, received, reduced, up, down, terms, seconds)


def bus_bandwidth(bytes: int, seconds: float, workers: int, kind: Kind = "all_reduce") -> float:
    """Bytes a second that each worker's link must have carried, if all have equal links
    (nccl-tests, doc/PERFORMANCE.md).

    For P workers and S bytes in t seconds: S/t times 2(P-1)/P for an all-reduce, (P-1)/P for a
    reduce-scatter or an all-gather (S is the whole buffer), and 1 for a reduction or a broadcast.
    So algorithms and numbers of workers can be compared with the hardware. If hosts have slow
    links, it can exceed the speed of these: an algorithm that first adds up inside the hosts sends
    less over them than the factor says.
    """
    factor = {"all_reduce": 2 * (workers - 1) / workers, "reduce": 1.0, "broadcast": 1.0}.get(
        kind, (workers - 1) / workers
    )
    return factor * bytes / seconds if seconds else 0.0


class Messages(NamedTuple):
    """The messages of a round, as arrays with one row for each message. All that goes from `src` to
    `dst` in a round is one message; they are in the order in which the round first names them.

    `bytes`: how many are sent; `reduced`: how many of these are added. An empty chunk still makes a
    message.
    """

    src: np.ndarray
    dst: np.ndarray
    bytes: np.ndarray
    reduced: np.ndarray


def messages(schedule: Schedule, nbytes: int, itemsize: int = 1) -> Iterator[Messages]:
    """The messages of each round of a schedule that `verify` accepts.

    If arrays, or all of them, are as in the round before, the same array objects, or the same
    `Messages` object, are returned again, so that a caller can keep what it computed from them.
    Raises SpecError if `nbytes` is no whole number of elements.
    """
    ends = schedule.byte_ends(nbytes, itemsize)
    sizes = np.diff(ends)
    even = bool((sizes == sizes[0]).all())
    last, found = None, None
    for r in schedule.rounds:
        if last is None or r.src is not last.src or r.dst is not last.dst:
            src, dst, of_row = _pairs(r, schedule.ranks)
            alike, nothing = np.full(len(r.src), sizes[0]), np.zeros(len(r.src), dtype=np.int64)
        last = r
        amount = alike if even else sizes[r.chunk]
        if r.span is not None:
            amount = ends[r.chunk + r.span] - ends[r.chunk]
        reduced = nothing if not r.reduce.any() else amount if r.reduce.all() else amount * r.reduce
        if of_row is not None:
            amount, reduced = (
                np.bincount(of_row, column, len(src)).astype(np.int64)
                for column in (amount, reduced)
            )
        now = Messages(src, dst, amount, reduced)
        if found is None or any(map(operator.is_not, now, found)):
            found = now
        yield found


def _pairs(r: Round, ranks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The pairs (src, dst) of a round, in the order in which it first names them, and for each row
    the number of its pair (None: row i is pair i).
    """
    pair = r.src.astype(np.int64) * ranks + r.dst
    unique, first, of_row = np.unique(pair, return_index=True, return_inverse=True)
    if len(unique) == len(pair):
        return r.src, r.dst, None
    order = np.argsort(first)
    rank_of = np.empty_like(order)
    rank_of[order] = np.arange(len(order))
    return r.src[first[order]], r.dst[first[order]], rank_of[of_row]


def _share(
    m: Messages, place: np.ndarray, topology: Topology
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a round adds to the cost: bytes sent, received and added by rank, shape (3, ranks);
    bytes up and down by host, (2, hosts); and the terms of its slowest port or link, (8,).
    """
    ranks, hosts = len(place), int(place.max()) + 1
    of_ranks = [(m.src, m.bytes), (m.dst, m.bytes), (m.dst, m.reduced)]
    by_rank = np.array([np.bincount(who, n, ranks) for who, n in of_ranks])
    across = place[m.src] != place[m.dst]
    links = [np.bincount(place[end], across * m.bytes, hosts) for end in (m.src, m.dst)]
    loads = [_load(who, m.bytes, across, ranks) for who in (m.src, m.dst)]
    # On a shared link delays overlap, but bytes do not.
    loads += [
        _rows(hosts, messages_across=n > 0, bytes_across=n, delays_across=n > 0) for n in links
    ]
    rows = np.concatenate(loads)
    slowest = rows[np.argmax(rows @ topology.parameters)].copy()
    slowest[Terms._fields.index("reduced")] = by_rank[2].max()
    return by_rank, np.array(links), slowest


def _load(who: np.ndarray, nbytes: np.ndarray, across: np.ndarray, ranks: int) -> np.ndarray:
    """The terms of what each rank sends (or receives), one row for each rank."""
    inside, outside = (np.bincount(who, way, ranks) for way in (~across, across))
    return _rows(
        ranks,
        messages=inside,
        bytes=np.bincount(who, ~across * nbytes, ranks),
        messages_across=outside,
        bytes_across=np.bincount(who, across * nbytes, ranks),
        delays=(inside > 0) & (outside == 0),
        delays_across=outside > 0,
    )


def _rows(count: int, **columns: np.ndarray) -> np.ndarray:
    """`Terms` as an array, one row for each of `count`, from some of its columns."""
    rows = np.zeros((count, len(Terms._fields)))
    for name, column in columns.items():
        rows[:, Terms._fields.index(name)] = column
    return rows
