"""The same schedule in simulated time: no barrier between rounds, every rank goes on when its own
inputs are there.

The model. A rank goes through its rounds in order. In a round it sends its messages one after
another, without waiting for those who receive them; each takes α + nβ, and a message between hosts
also waits for its turn on the two links; then it is under way for the delay of its link. Meanwhile
a rank receives its messages one after another as they come in, and each keeps it for α + nβ as
well. When all that it sends has left and all that it expects is there, it adds (γ a byte) and goes
on. Where every rank is alike this gives the time of `cost`; with stragglers it shows who waits for
whom. Where ranks share `Topology.cores`, the model is that of `turns`, which is slower: for tens of
ranks, not for thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from course_lib.collectives.cost import bus_bandwidth
from course_lib.collectives.messages import Messages, chunk_ends, messages
from course_lib.collectives.model import Topology
from course_lib.collectives.schedule import Schedule
from course_lib.collectives.serve import serve
from course_lib.collectives.turns import Times, take_turns
from course_lib.errors import SpecError
from course_lib.record.events import Message
from course_lib.record.trace import Trace

PerRank = Mapping[int, float] | Sequence[float] | None
MOST_TRACED = 1_000_000


@dataclass(frozen=True)
class Simulation:
    """A simulated run: when each rank was done (`finish`, seconds), and the whole of it
    (`seconds`); `trace` if it was asked for.
    """

    schedule: Schedule
    bytes: int
    finish: np.ndarray
    messages: int
    trace: Trace | None = field(repr=False)

    @property
    def seconds(self) -> float:
        return float(self.finish.max())

    @property
    def bus_bandwidth(self) -> float:
        """Bytes a second, as nccl-tests define it."""
        return bus_bandwidth(self.bytes, self.seconds, self.schedule.workers, self.schedule.kind)

    def __repr__(self) -> str:
        return f"Simulation({self.schedule.name}, {self.schedule.ranks} ranks, {self.messages} messages, {self.seconds:.3g} s simulated)"


def simulate(
    schedule: Schedule,
    bytes: int,
    topology: Topology = Topology(),  # noqa: B008  # frozen
    delay: PerRank = None,
    slow: PerRank = None,
    itemsize: int = 1,
    trace: bool = False,
) -> Simulation:
    """Run a schedule that `verify` accepts in simulated time, for a buffer of `bytes` bytes.

    `delay`: seconds by which a rank starts late. `slow`: the factor by which all that a rank does
    takes longer. Both by rank, such as `{3: 0.1}`, or one for each. With `trace=True` a `Message`
    is kept for each transfer (a million at most), with the times of the message that held it. May
    raise SpecError.
    """
    if trace and sum(map(len, schedule.rounds)) > MOST_TRACED:
        raise SpecError(
            "trace",
            trace,
            f"false for a schedule of this size: at most {MOST_TRACED} transfers are kept",
        )
    at = _per_rank("delay", delay, schedule.ranks, 0.0)  # when each rank has done all rounds so far
    slow_by = _per_rank("slow", slow, schedule.ranks, 1.0)
    if topology.cores:
        turns = take_turns(schedule, bytes, topology, itemsize, at.tolist(), slow_by.tolist())
        told = (
            Trace(_in_turn(schedule, turns.times, chunk_ends(schedule, bytes, itemsize)))
            if trace
            else None
        )
        return Simulation(schedule, bytes, turns.finish, len(turns.times), told)
    network = _Network(topology, topology.place(schedule), slow_by)
    events: list[Message] = []
    count = 0
    for number, m in enumerate(messages(schedule, bytes, itemsize)):
        if len(m.src):
            at = network.round(m, at)
            count += len(m.src)
            if trace:
                events += _events(
                    schedule, number, m, network, chunk_ends(schedule, bytes, itemsize)
                )
    return Simulation(schedule, bytes, at, count, Trace(events) if trace else None)


class _Network:
    """Ports and links, and what is known of a round from the one before, where the same ranks
    exchange as much again.
    """

    def __init__(self, topology: Topology, place: np.ndarray, slow: np.ndarray) -> None:
        self.topology, self.place, self.slow = topology, place, slow
        hosts = int(place.max()) + 1
        self.up, self.down = np.zeros(hosts), np.zeros(hosts)  # when each link is free again
        self.pairs: tuple[np.ndarray, ...] = (np.empty(0),) * 2
        self.sizes: tuple[np.ndarray, ...] = (np.empty(0),) * 2

    def round(self, m: Messages, at: np.ndarray) -> np.ndarray:
        """When each rank has done the round that it begins at `at`.

        When each message left and when it came are kept for `times`.
        """
        self._look(m)
        if self.everyone:
            self.sent = (at if self.in_order else at[m.src]) + self.sending
            over = self._links(m, self.sent)
            self.came = np.maximum((over + self.under_way)[self.into], at + self.receiving_by_rank)
            return np.maximum(self.came, over if self.in_order else over[self.out_of]) + self.adding
        self.sent = serve(m.src, at.copy(), np.full(len(m.src), -np.inf), self.sending)
        over = self._links(m, self.sent)
        self.came = serve(m.dst, at.copy(), over + self.under_way, self.receiving)
        after = at.copy()
        np.maximum.at(after, m.src, over)
        np.maximum.at(after, m.dst, self.came)
        return after + self.adding

    def times(self, m: Messages) -> tuple[np.ndarray, np.ndarray]:
        """When each message of the last round began to leave, and when it had been received."""
        return self.sent - self.sending, self.came[m.dst] if self.everyone else self.came

    def _look(self, m: Messages) -> None:
        """Who talks to whom, and how long that takes: over the rounds of a ring it all stays the
        same.
        """
        if m.src is not self.pairs[0] or m.dst is not self.pairs[1]:
            self.pairs, self.sizes = (m.src, m.dst), (np.empty(0),) * 2
            ranks = np.arange(len(self.place))
            self.in_order = np.array_equal(m.src, ranks)
            # One message from each rank and one to each, as in a ring
            self.everyone = (
                len(m.src) == len(ranks)
                and np.array_equal(np.sort(m.src), ranks)
                and np.array_equal(np.sort(m.dst), ranks)
            )
            # of each rank, if everyone has one
            self.out_of, self.into = np.argsort(m.src), np.argsort(m.dst)
            self.across = np.flatnonzero(self.place[m.src] != self.place[m.dst])
            self.at_up, self.at_down = (
                self.place[m.src[self.across]],
                self.place[m.dst[self.across]],
            )
            self.one_up, self.one_down = (
                len(np.unique(link)) == len(link) for link in (self.at_up, self.at_down)
            )
        if m.bytes is not self.sizes[0] or m.reduced is not self.sizes[1]:
            self.sizes = m.bytes, m.reduced
            intra, inter = self.topology.intra, self.topology.inter
            taking = intra.alpha + intra.beta * m.bytes
            taking[self.across] = inter.alpha + inter.beta * m.bytes[self.across]
            self.sending, self.receiving = taking * self.slow[m.src], taking * self.slow[m.dst]
            self.under_way = np.full(len(m.src), intra.delay)
            self.under_way[self.across] = inter.delay
            self.receiving_by_rank = self.receiving[self.into]
            self.adding = (
                self.topology.gamma * self.slow * np.bincount(m.dst, m.reduced, len(self.place))
            )
            self.on_link = inter.beta * m.bytes[self.across]

    def _links(self, m: Messages, sent: np.ndarray) -> np.ndarray:
        """When each message is over, if those between hosts take turns on the uplink and the
        downlink.
        """
        if not len(self.across):
            return sent
        over = sent.copy()
        there = serve(self.at_up, self.up, sent[self.across], self.on_link, self.one_up)
        over[self.across] = serve(self.at_down, self.down, there, self.on_link, self.one_down)
        return over


def _events(
    schedule: Schedule, number: int, m: Messages, network: _Network, ends: np.ndarray
) -> list[Message]:
    """One event for each transfer, told by the rank that receives it."""
    r = schedule.rounds[number]
    rows = np.arange(len(r.src)) if r.span is None else np.repeat(np.arange(len(r.src)), r.span)
    which = (rows if m.of_row is None else m.of_row[rows]).tolist()
    task = [schedule.task(rank) for rank in range(schedule.ranks)]
    size, (start, end) = np.diff(ends).tolist(), (times.tolist() for times in network.times(m))
    return [
        Message(
            task[t.dst], task[t.src], task[t.dst], size[t.chunk], number, t.chunk, start[i], end[i]
        )
        for t, i in zip(r, which, strict=True)
    ]


def _in_turn(schedule: Schedule, times: Times, ends: np.ndarray) -> Iterator[Message]:
    """The same for ranks that take turns."""
    size, task = np.diff(ends).tolist(), schedule.task
    for number, r in enumerate(schedule.rounds):
        for t in r:
            yield Message(
                task(t.dst),
                task(t.src),
                task(t.dst),
                size[t.chunk],
                number,
                t.chunk,
                *times[number, t.src, t.dst],
            )


def _per_rank(name: str, given: PerRank, ranks: int, default: float) -> np.ndarray:
    values = np.full(ranks, default)
    if isinstance(given, Mapping):
        unknown = [rank for rank in given if not 0 <= rank < ranks]
        if unknown:
            raise SpecError(name, dict(given), f"ranks from 0 to {ranks - 1}")
        values[list(given)] = list(given.values())
    elif given is not None:
        if len(given) != ranks:
            raise SpecError(name, f"{len(given)} numbers", f"one for each of {ranks} ranks")
        values[:] = given
    if not (np.isfinite(values) & (values >= 0)).all():
        raise SpecError(name, given, "numbers that are 0 or more")
    return values
