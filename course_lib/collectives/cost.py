"""The price of a schedule: what every rank and link carries, and how long it takes in the
alpha-beta-gamma model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from course_lib.collectives.messages import Messages, messages
from course_lib.collectives.model import AlphaBeta, Terms, Topology
from course_lib.collectives.schedule import Kind, Schedule
from course_lib.collectives.turns import take_turns

__all__ = ["AlphaBeta", "Cost", "Terms", "Topology", "bus_bandwidth", "cost"]


@dataclass(frozen=True)
class Cost:
    """What `cost` returns; bytes are whole numbers and exact.

    `sent`, `received` and `reduced` are by rank, `up` and `down` by host.
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
        """What the rank that sends most sends."""
        return max(self.sent)

    @property
    def busiest_link(self) -> tuple[str, int]:
        """The link between hosts that carries most, such as ("host 1 up", 4194304); ("none", 0)
        where nothing leaves a host.
        """
        links = [
            (f"host {h} {way}", n)
            for way, side in (("up", self.up), ("down", self.down))
            for h, n in enumerate(side)
        ]
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


def cost(
    schedule: Schedule,
    bytes: int,
    topology: Topology = Topology(),  # noqa: B008  # frozen
    itemsize: int = 1,
) -> Cost:
    """The price of a schedule that `verify` accepts, for a buffer of `bytes` bytes in chunks of
    whole elements of `itemsize` bytes.

    The time is the sum over rounds, as if each began when the last was over. In a round a rank
    sends its messages one after another, and receives at the same time, also one after another; the
    bytes that cross between hosts share the uplink and the downlink of the host; the messages are
    under way for the longest delay among them, together; then what came is added. The slowest rank
    or link makes the round. Where ranks share `cores` there are no such rounds, and the time is
    that of `turns`. May raise SpecError.
    """
    place = topology.place(schedule)
    total = _Share.none(schedule.ranks, int(place.max()) + 1)
    last, share = None, total
    for m in messages(schedule, bytes, itemsize):
        if last is None or any(
            new is not old
            for new, old in zip((m.src, m.dst, m.bytes, m.reduced), last, strict=True)
        ):
            share = _share(m, place, topology)
            last = (m.src, m.dst, m.bytes, m.reduced)
        for sum_, part in zip(total, share, strict=True):
            sum_ += part
    ranks = {
        name: tuple(getattr(total, name).astype(np.int64).tolist())
        for name in ("sent", "received", "reduced", "up", "down")
    }
    terms = (
        take_turns(schedule, bytes, topology, itemsize).terms
        if topology.cores
        else Terms(*total.terms.tolist())
    )
    return Cost(
        schedule,
        bytes,
        len(schedule.rounds),
        int(total.messages[0]),
        **ranks,
        terms=terms,
        seconds=terms.seconds(topology),
    )


def bus_bandwidth(bytes: int, seconds: float, workers: int, kind: Kind = "all_reduce") -> float:
    """Bytes a second that each worker's link must have carried, if all have links alike
    (nccl-tests, doc/PERFORMANCE.md).

    For P workers and S bytes in t seconds: S/t times 2(P-1)/P for an all-reduce, (P-1)/P for a
    reduce-scatter or an all-gather (S is the whole buffer), and 1 for a reduction or a broadcast.
    So algorithms, and numbers of workers, can be compared with the hardware. Where hosts have slow
    links it can be more than these carry: who adds up inside the hosts first sends less over them
    than the factor says.
    """
    factor = {"all_reduce": 2 * (workers - 1) / workers, "reduce": 1.0, "broadcast": 1.0}.get(
        kind, (workers - 1) / workers
    )
    return factor * bytes / seconds if seconds else 0.0


class _Share(NamedTuple):
    """What one round adds to the price: bytes by rank, bytes by host, the terms of its time, and
    how many messages it has.
    """

    sent: np.ndarray
    received: np.ndarray
    reduced: np.ndarray
    up: np.ndarray
    down: np.ndarray
    terms: np.ndarray
    messages: np.ndarray

    @classmethod
    def none(cls, ranks: int, hosts: int) -> _Share:
        return cls(
            *(np.zeros(n) for n in (ranks, ranks, ranks, hosts, hosts, len(Terms._fields), 1))
        )


def _share(m: Messages, place: np.ndarray, topology: Topology) -> _Share:
    """The share of one round; of its time those terms count that belong to its slowest port or
    link.
    """
    ranks, hosts = len(place), int(place.max()) + 1
    if not len(m.src):
        return _Share.none(ranks, hosts)
    across = place[m.src] != place[m.dst]
    sent, received, reduced = (
        np.bincount(*by, ranks) for by in ((m.src, m.bytes), (m.dst, m.bytes), (m.dst, m.reduced))
    )
    up, down = (np.bincount(place[end[across]], m.bytes[across], hosts) for end in (m.src, m.dst))
    candidates = [_load(who, m.bytes, across, ranks) for who in (m.src, m.dst)]
    # On a shared link the delays overlap, the bytes do not.
    candidates += [np.stack([0 * n, 0 * n, n > 0, n, 0 * n, n > 0], axis=1) for n in (up, down)]
    rows = np.concatenate(candidates)
    slowest = rows[np.argmax(rows @ np.delete(topology.parameters, (4, 7)))]
    return _Share(
        sent,
        received,
        reduced,
        up,
        down,
        np.append(np.insert(slowest, 4, reduced.max()), 0),
        np.array([len(m.src)]),
    )


def _load(who: np.ndarray, nbytes: np.ndarray, across: np.ndarray, ranks: int) -> np.ndarray:
    """For each rank: messages and bytes inside hosts, the same across, and whether there is a delay
    inside or across.
    """
    load = np.zeros((ranks, 6))
    for column, chosen in ((0, ~across), (2, across)):
        if chosen.any():
            load[:, column] = np.bincount(who[chosen], None, ranks)
            load[:, column + 1] = np.bincount(who[chosen], nbytes[chosen], ranks)
    load[:, 5] = load[:, 2] > 0
    load[:, 4] = (load[:, 0] > 0) * (load[:, 5] == 0)
    return load
