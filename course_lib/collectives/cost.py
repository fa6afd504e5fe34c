"""The price of a schedule: what every rank and link carries, and how long it takes in the alpha-beta-gamma model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from course_lib.collectives.messages import Messages, chunk_ends, messages
from course_lib.collectives.schedule import Kind, Round, Schedule
from course_lib.collectives.topology import Link, Topology

__all__ = ["Cost", "Link", "Terms", "Topology", "bus_bandwidth", "cost"]


class Terms(NamedTuple):
    """What the time is made of, along the slowest way through the rounds: messages and bytes inside hosts and across, bytes added, and delays."""

    messages: float = 0
    bytes: float = 0
    messages_across: float = 0
    bytes_across: float = 0
    reduced: float = 0
    delays: float = 0
    delays_across: float = 0

    def seconds(self, topology: Topology) -> float:
        """α messages + β bytes + γ reduced + delays, with the α, β and delay of each link."""
        return float(np.dot(self, topology.parameters))


@dataclass(frozen=True)
class Cost:
    """What `cost` returns; bytes are whole numbers and exact. `sent`, `received` and `reduced` are by rank, `up` and `down` by host."""

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
        """What the rank that sends most sends."""
        return max(self.sent)

    @property
    def busiest_link(self) -> tuple[str, int]:
        """The link between hosts that carries most, such as ("host 1 up", 4194304); ("none", 0) where nothing leaves a host."""
        links = [(f"host {h} {way}", n) for way, side in (("up", self.up), ("down", self.down)) for h, n in enumerate(side)]
        name, most = max(links, key=lambda link: link[1])
        return (name, most) if most else ("none", 0)

    @property
    def bus_bandwidth(self) -> float:
        """Bytes a second, see `bus_bandwidth`."""
        return bus_bandwidth(self.bytes, self.seconds, self.schedule.workers, self.schedule.kind)

    def __repr__(self) -> str:
        link, most = self.busiest_link
        across = f", busiest link {link} {most} bytes" if most else ""
        each = f"at most {self.bytes_per_rank} bytes sent by a rank"
        return f"Cost({self.schedule.name}: {self.rounds} rounds, {self.messages} messages, {each}{across}, {self.seconds:.3g} s)"


def cost(schedule: Schedule, bytes: int, topology: Topology = Topology(), itemsize: int = 1) -> Cost:  # noqa: B008  # frozen
    """The price of a schedule that `verify` accepts, for a buffer of `bytes` bytes in chunks of whole elements of `itemsize` bytes.

    The time is the sum over rounds, as if each began when the last was over. In a round a rank sends its messages one after another, and
    receives at the same time, also one after another; the bytes that cross between hosts share the uplink and the downlink of the host;
    the messages are under way for the longest delay among them, together; then what came is added. The slowest rank or
    link makes the round. May raise SpecError.
    """
    place = topology.place(schedule)
    total = _Share.none(schedule.ranks, int(place.max()) + 1)
    ends = chunk_ends(schedule, bytes, itemsize)
    last, share = None, total
    for r, m in zip(schedule.rounds, messages(schedule, bytes, itemsize), strict=True):
        if topology.fetch or last is None or any(new is not old for new, old in zip((m.src, m.dst, m.bytes, m.reduced), last, strict=True)):
            share = _share(m, _copied_again(r, m, ends) if topology.fetch else None, place, topology)
            last = (m.src, m.dst, m.bytes, m.reduced)
        for sum_, part in zip(total, share, strict=True):
            sum_ += part
    ranks = {name: tuple(getattr(total, name).astype(np.int64).tolist()) for name in ("sent", "received", "reduced", "up", "down")}
    terms = Terms(*total.terms.tolist())
    return Cost(schedule, bytes, len(schedule.rounds), int(total.messages[0]), **ranks, terms=terms, seconds=terms.seconds(topology))


def bus_bandwidth(bytes: int, seconds: float, workers: int, kind: Kind = "all_reduce") -> float:
    """Bytes a second that the slowest link must have carried, whatever the algorithm (nccl-tests, doc/PERFORMANCE.md).

    For P workers and S bytes in t seconds: S/t times 2(P-1)/P for an all-reduce, (P-1)/P for a reduce-scatter or an all-gather (S is the
    whole buffer), and 1 for a reduction or a broadcast. So algorithms, and numbers of workers, can be compared with the hardware.
    """
    factor = {"all_reduce": 2 * (workers - 1) / workers, "reduce": 1.0, "broadcast": 1.0}.get(kind, (workers - 1) / workers)
    return factor * bytes / seconds if seconds else 0.0


class _Share(NamedTuple):
    """What one round adds to the price: bytes by rank, bytes by host, the terms of its time, and how many messages it has."""

    sent: np.ndarray
    received: np.ndarray
    reduced: np.ndarray
    up: np.ndarray
    down: np.ndarray
    terms: np.ndarray
    messages: np.ndarray

    @classmethod
    def none(cls, ranks: int, hosts: int) -> _Share:
        return cls(*(np.zeros(n) for n in (ranks, ranks, ranks, hosts, hosts, len(Terms._fields), 1)))


def _copied_again(r: Round, m: Messages, ends: np.ndarray) -> np.ndarray:
    """For each message of a round: bytes added to a chunk that its rank sends in that round. Their sum waits beside it, and is then copied."""
    again = np.zeros(len(m.src), dtype=np.int64)
    if not r.reduce.any():
        return again
    span = np.ones(len(r.src), dtype=np.int64) if r.span is None else r.span
    row = np.repeat(np.arange(len(span)), span)
    chunk = np.repeat(r.chunk - np.cumsum(span) + span, span) + np.arange(span.sum())
    parts = len(ends) - 1
    swapped = np.isin(r.dst[row] * parts + chunk, r.src[row] * parts + chunk) & r.reduce[row]
    np.add.at(again, row if m.of_row is None else m.of_row[row], np.where(swapped, np.diff(ends)[chunk], 0))
    return again


def _share(m: Messages, again: np.ndarray | None, place: np.ndarray, topology: Topology) -> _Share:
    """The share of one round; of its time those terms count that belong to its slowest port, link or the cores.

    `again`: bytes of each message that its receiver copies once more, where ranks fetch. It has to hear first that the old ones have been read,
    which costs as much as another message.
    """
    ranks, hosts = len(place), int(place.max()) + 1
    if not len(m.src):
        return _Share.none(ranks, hosts)
    across = place[m.src] != place[m.dst]
    sent, received, reduced = (np.bincount(*by, ranks) for by in ((m.src, m.bytes), (m.dst, m.bytes), (m.dst, m.reduced)))
    up, down = (np.bincount(place[end[across]], m.bytes[across], hosts) for end in (m.src, m.dst))
    again = np.zeros(len(m.src), dtype=np.int64) if again is None else again
    candidates = [_load(m.src, m.bytes, across, ranks), _load(m.dst, m.bytes + again, across, ranks, 1 + (again > 0))]
    if topology.fetch:
        candidates[0][:, :2] = 0
    for load in candidates:
        load[:, 5] = load[:, 2] > 0
        load[:, 4] = (load[:, 0] > 0) * (load[:, 5] == 0)
        load[:, 4:] *= 1 + again.any()
    # On a shared link the delays overlap, the bytes do not; and while a message is on its way, cores work for other ranks.
    candidates += [np.stack([0 * n, 0 * n, n > 0, n, 0 * n, n > 0], axis=1) for n in (up, down)]
    most_added = reduced.max()
    if topology.cores:
        candidates.append(_load(np.zeros_like(m.src), m.bytes + again, across, 1, 1 + (again > 0)) / topology.cores)
        most_added = max(most_added, reduced.sum() / topology.cores)
    rows = np.concatenate(candidates)
    slowest = rows[np.argmax(rows @ np.delete(topology.parameters, 4))]
    return _Share(sent, received, reduced, up, down, np.insert(slowest, 4, most_added), np.array([len(m.src)]))


def _load(who: np.ndarray, nbytes: np.ndarray, across: np.ndarray, count: int, times: np.ndarray | None = None) -> np.ndarray:
    """For each of `count` ranks or hosts: messages and bytes inside hosts, the same across, and no delays. `times`: as how many each counts."""
    load = np.zeros((count, 6))
    for column, chosen in ((0, ~across), (2, across)):
        if chosen.any():
            load[:, column] = np.bincount(who[chosen], None if times is None else times[chosen], count)
            load[:, column + 1] = np.bincount(who[chosen], nbytes[chosen], count)
    return load
