"""The cost of a schedule: the bytes that each rank and link carries, and the time in the
alpha-beta-gamma model, which gives each rank a core and a port of its own.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from course_lib.collectives.schedule import CollectiveKind, Round, Schedule
from course_lib.errors import SpecError


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise SpecError(name, value, "seconds, 0 or more")


@dataclass(frozen=True)
class AlphaBeta:
    """The cost of a path between two ranks: n bytes keep both ends busy for alpha + n beta seconds.

    `alpha`: seconds for each message. `beta`: seconds for each byte. `delay`: further seconds for
    which a message is under way, without keeping either end busy (the L of LogP, Culler et al.
    1993; books on the alpha-beta model leave it out). Raises SpecError for a negative or infinite
    number.
    """

    alpha: float
    beta: float
    delay: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _check_seconds(name, value)


@dataclass(frozen=True)
class Topology:
    """The paths between ranks, and the speed of an addition. On which host a rank is, its schedule
    says (`Schedule.placed`).

    - `intra`, `inter`: the path between two ranks of one host, and between two hosts. A rank sends
      one message at a time and receives one at a time. All ranks of a host share one uplink and one
      downlink, each of 1/inter.beta bytes a second.
    - `gamma`: seconds to add one byte to another.

    The defaults have only the right order of magnitude, for processes on a laptop and 1 Gbit/s
    between hosts. Raises SpecError for a negative or infinite number.
    """

    intra: AlphaBeta = AlphaBeta(alpha=10e-6, beta=1 / 2e9)
    inter: AlphaBeta = AlphaBeta(alpha=50e-6, beta=1 / 125e6)
    gamma: float = 1 / 8e9

    def __post_init__(self) -> None:
        _check_seconds("gamma", self.gamma)

    @property
    def parameters(self) -> np.ndarray:
        """The seconds that each of the `Terms` is multiplied by, in the order of `Terms`."""
        i, x = self.intra, self.inter
        return np.array([i.alpha, i.beta, x.alpha, x.beta, self.gamma, i.delay, x.delay])


class Terms(NamedTuple):
    """The counts that a time is made of, in the order of `Topology.parameters`: messages and bytes
    inside hosts and across, bytes added, and delays inside and across.
    """

    messages: float = 0
    bytes: float = 0
    messages_across: float = 0
    bytes_across: float = 0
    reduced: float = 0
    delays: float = 0
    delays_across: float = 0

    def seconds(self, topology: Topology) -> float:
        """α messages + β bytes + γ reduced + delays, each with the numbers of its path."""
        return float(np.dot(self, topology.parameters))


@dataclass(frozen=True)
class ClosedForm:
    """The textbook cost of an algorithm, from formulas and not from its schedule: rounds, the bytes
    that the busiest rank sends, and the terms of the time.

    It holds for sizes that divide evenly into the chunks, with all ranks on one host (for
    `hierarchical`: on equal hosts). It is exact, or with `exact=False` an upper bound.
    """

    rounds: int
    bytes_per_rank: float
    terms: Terms
    exact: bool = True


@dataclass(frozen=True)
class Cost:
    """The cost of a schedule, as `cost` returns it. Bytes are exact whole numbers.

    `sent` and `received` have an entry for each rank, `up` and `down` for each host.
    """

    schedule: Schedule
    bytes: int
    rounds: int
    messages: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
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
        links = [(n, f"host {i} {way}") for way, side in sides for i, n in enumerate(side) if n]
        most, name = max(links, key=operator.itemgetter(0), default=(0, "none"))
        return name, most

    def __repr__(self) -> str:
        each = f"{self.rounds} rounds, at most {self.bytes_per_rank} bytes sent by a rank"
        return f"Cost({self.schedule.name}: {each}, {self.seconds:.3g} s)"


def cost(
    schedule: Schedule,
    bytes: int,
    topology: Topology = Topology(),  # frozen
    itemsize: int = 1,
) -> Cost:
    """The cost of a schedule that `verify` accepts, for a buffer of `bytes` bytes; chunks are whole
    elements of `itemsize` bytes.

    The time is the sum over rounds, as if each began when the last was over. In a round a rank
    sends its messages one after another, and at the same time receives one after another; bytes
    that cross between hosts share the uplink and the downlink of their host; the longest delay of
    the messages is paid once; then what was received is added. The round takes as long as its
    slowest rank or link. Raises SpecError if `bytes` is no whole number of elements.
    """
    place = np.array(schedule.hosts)
    ranks, hosts = schedule.ranks, int(place.max()) + 1
    carried = np.zeros(2 * (ranks + hosts))
    times, count = np.zeros(len(Terms._fields)), 0
    for _, alike in groupby(messages(schedule, bytes, itemsize), key=id):
        m, *others = alike
        repeats = 1 + len(others)
        loads, amounts = _loads(m, place)
        slowest = loads[np.argmax(loads @ topology.parameters)]
        slowest[Terms._fields.index("reduced")] = np.bincount(m.dst, m.reduced, ranks).max()
        times += repeats * slowest
        carried += repeats * amounts
        count += repeats * len(m.src)
    terms = Terms(*times.tolist())
    parts = np.split(carried.astype(int), [ranks, 2 * ranks, 2 * ranks + hosts])
    sent, received, up, down = (tuple(part.tolist()) for part in parts)
    rounds, seconds = len(schedule.rounds), terms.seconds(topology)
    return Cost(schedule, bytes, rounds, count, sent, received, up, down, terms, seconds)


def bus_bandwidth(
    bytes: int, seconds: float, workers: int, kind: CollectiveKind = "all_reduce"
) -> float:
    """Bytes a second that each worker's link must have carried, if all have equal links
    (nccl-tests, doc/PERFORMANCE.md).

    For P workers and S bytes in t seconds: S/t times 2(P-1)/P for an all-reduce, (P-1)/P for a
    reduce-scatter or an all-gather (S is the whole buffer), (P-1)/P² for an all-to-all (S is P
    times what a worker sends), and 1 for a reduction or a broadcast.
    So algorithms and numbers of workers can be compared with the hardware. If hosts have slow
    links, it can exceed the speed of these: an algorithm that first adds up inside the hosts sends
    less over them than the factor says.
    """
    others = (workers - 1) / workers
    of_kind = {"all_reduce": 2 * others, "all_to_all": others / workers}
    factor = (of_kind | {"reduce": 1.0, "broadcast": 1.0}).get(kind, others)
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
    `Messages` object, are returned, so that a caller can keep what it computed from them.
    Raises SpecError if `nbytes` is no whole number of elements.
    """
    ends = schedule.byte_ends(nbytes, itemsize)
    sizes = np.diff(ends)
    even = bool((sizes == sizes[0]).all())
    last, latest = None, None
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
            sums = [np.bincount(of_row, column, len(src)) for column in (amount, reduced)]
            amount, reduced = np.array(sums, dtype=np.int64)
        now = Messages(src, dst, amount, reduced)
        if latest is None or any(map(operator.is_not, now, latest)):
            latest = now
        yield latest


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


def _loads(m: Messages, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add up the load of each port and link in a round, with an entry for each sending rank, each
    receiving rank, each uplink and each downlink: its `Terms` without `reduced`, shape (entries,
    7), and its bytes, shape (entries,).
    """
    ranks, hosts = len(place), int(place.max()) + 1
    ports = [m.src, ranks + m.dst]
    links = [2 * ranks + place[m.src], 2 * ranks + hosts + place[m.dst]]

    def total(column: np.ndarray, entries: list[np.ndarray]) -> np.ndarray:
        columns = np.tile(column, len(entries))
        return np.bincount(np.concatenate(entries), columns, 2 * (ranks + hosts))

    across = place[m.src] != place[m.dst]
    messages, nbytes = total(~across, ports), total(~across * m.bytes, ports)
    messages_across = total(across, ports + links)
    bytes_across = total(across * m.bytes, ports + links)
    # On a shared link delays overlap, but bytes do not.
    messages_across[2 * ranks :] = messages_across[2 * ranks :] > 0
    delays_across = messages_across > 0
    delays = (messages > 0) & ~delays_across
    none = np.zeros_like(nbytes)
    terms = [messages, nbytes, messages_across, bytes_across, none, delays, delays_across]
    return np.column_stack(terms), nbytes + bytes_across
