"""A schedule in simulated time. There is no barrier between rounds: each rank goes on when its own
inputs are there.

This is the textbook model. A rank goes through its rounds in order. In a round it sends its
messages one after another, without waiting for their receivers; each takes α + nβ. A message
between hosts then waits for its turn on the two links, and every message is under way for the delay
of its path. Meanwhile the rank receives its messages one after another as they come in, and each
keeps it busy for α + nβ as well. When all its messages have left and all that it expects have come,
it adds (γ a byte) and goes on. If all ranks are alike, this gives the time of `cost`; with a
straggler it shows which rank waits for which. It is computed a round at a time, and is fast enough
for thousands of ranks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from course_lib.collectives.cost import Messages, Topology, messages
from course_lib.collectives.schedule import Schedule
from course_lib.errors import SpecError
from course_lib.record.events import Message
from course_lib.record.trace import Trace

MOST_TRACED = 1_000_000


@dataclass(frozen=True)
class Simulation:
    """A simulated run: when each rank was done (`finish`, in seconds, shape (ranks,)), when all
    were (`seconds`), and the `trace` if it was asked for.
    """

    schedule: Schedule
    bytes: int
    finish: np.ndarray
    messages: int
    trace: Trace | None = field(repr=False)

    @property
    def seconds(self) -> float:
        return float(self.finish.max())

    def __repr__(self) -> str:
        of = f"{self.schedule.name}, {self.messages} messages"
        return f"Simulation({of}, {self.seconds:.3g} s simulated)"


def simulate(
    schedule: Schedule,
    bytes: int,
    topology: Topology = Topology(),  # noqa: B008  # frozen
    delay: Mapping[int, float] | None = None,
    itemsize: int = 1,
    trace: bool = False,
) -> Simulation:
    """Run a schedule that `verify` accepts in simulated time, for a buffer of `bytes` bytes.

    `delay`: the seconds by which ranks start late, such as `{3: 0.1}`. With `trace=True` there is
    a `Message` for each transfer (a million at most), with the times of its message.
    Raises SpecError for a delay that does not fit the schedule.
    """
    if trace and sum(map(len, schedule.rounds)) > MOST_TRACED:
        allowed = f"false for a schedule of this size: at most {MOST_TRACED} transfers are kept"
        raise SpecError("trace", trace, allowed)
    at = np.zeros(schedule.ranks)  # when each rank has done all rounds so far
    for rank, late in (delay or {}).items():
        if not (0 <= rank < schedule.ranks and 0 <= late < math.inf):
            allowed = f"seconds, 0 or more, of ranks from 0 to {schedule.ranks - 1}"
            raise SpecError("delay", dict(delay or {}), allowed)
        at[rank] = late
    network, count = _Network(topology, np.array(schedule.hosts)), 0
    tasks = [schedule.task(rank) for rank in range(schedule.ranks)]
    sizes = np.diff(schedule.byte_ends(bytes, itemsize)).tolist()
    events: list[Message] = []
    sent = messages(schedule, bytes, itemsize)
    for number, (r, m) in enumerate(zip(schedule.rounds, sent, strict=True)):
        at = network.round(m, at)
        count += len(m.src)
        spans = network.spans(m) if trace else {}
        for t in r if trace else ():  # the receiving rank is the task of an event
            src, dst, span = tasks[t.src], tasks[t.dst], spans[t.src, t.dst]
            events.append(Message(dst, src, dst, sizes[t.chunk], number, t.chunk, *span))
    return Simulation(schedule, bytes, at, count, Trace(events) if trace else None)


class _Network:
    """Ports and links. What was computed for a round is kept for the next one, in case the same
    ranks exchange as many bytes again: in a ring all rounds are alike.
    """

    def __init__(self, topology: Topology, place: np.ndarray) -> None:
        self.topology, self.place = topology, place
        hosts = int(place.max()) + 1
        self.up, self.down = np.zeros(hosts), np.zeros(hosts)  # when each link is free again
        self.last: Messages | None = None

    def round(self, m: Messages, at: np.ndarray) -> np.ndarray:
        """Return the times at which ranks are done with a round that they begin at the times `at`;
        both have shape (ranks,).
        """
        if m is not self.last:
            self._prepare(m, self.last)
            self.last = m
        if self.one_each:  # no queues at the ports: much faster
            self.sent = at + self.taking
            over = self._links(self.sent)
            self.came = np.maximum(over + self.under_way, at[m.dst] + self.taking)
            return np.maximum(over, self.came[self.into]) + self.adding
        self.sent = serve(m.src, at.copy(), np.full(len(m.src), -np.inf), self.taking)
        over = self._links(self.sent)
        self.came = serve(m.dst, at.copy(), over + self.under_way, self.taking)
        after = at.copy()
        np.maximum.at(after, m.src, over)
        np.maximum.at(after, m.dst, self.came)
        return after + self.adding

    def spans(self, m: Messages) -> dict[tuple[int, int], tuple[float, float]]:
        """The times at which each message of the last round began to leave, and had been received,
        by its sender and receiver.
        """
        columns = m.src, m.dst, self.sent - self.taking, self.came
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return {(src, dst): (start, end) for src, dst, start, end in rows}

    def _prepare(self, m: Messages, last: Messages | None) -> None:
        """Find which ranks exchange messages in a round, and how long that takes them."""
        if last is None or m.src is not last.src or m.dst is not last.dst:
            ranks = np.arange(len(self.place))
            self.into = np.argsort(m.dst)
            # as in a ring: message i is the only one from rank i, and each rank receives one
            self.one_each = np.array_equal(m.src, ranks) and np.array_equal(m.dst[self.into], ranks)
            self.across = np.flatnonzero(self.place[m.src] != self.place[m.dst])
            self.at_up, self.at_down = (self.place[end[self.across]] for end in (m.src, m.dst))
        intra, inter = self.topology.intra, self.topology.inter
        # a message takes as long to send as to receive
        self.taking = intra.alpha + intra.beta * m.bytes
        self.taking[self.across] = inter.alpha + inter.beta * m.bytes[self.across]
        self.under_way = np.full(len(m.src), intra.delay)
        self.under_way[self.across] = inter.delay
        self.adding = self.topology.gamma * np.bincount(m.dst, m.reduced, len(self.place))
        self.on_link = inter.beta * m.bytes[self.across]

    def _links(self, sent: np.ndarray) -> np.ndarray:
        """Return the end of each message; those across take turns on uplinks and downlinks."""
        if not len(self.across):
            return sent
        over = sent.copy()
        there = serve(self.at_up, self.up, sent[self.across], self.on_link)
        over[self.across] = serve(self.at_down, self.down, there, self.on_link)
        return over


def serve(server: np.ndarray, free: np.ndarray, arrive: np.ndarray, work: np.ndarray) -> np.ndarray:
    """Serve n messages and return when each is over, shape (n,): every server takes messages one at
    a time, in the order in which they arrive.

    `server`, `arrive`, `work`, each of shape (n,): the server of each message, when it arrives, and
    the seconds that it takes. `free`: when each server is first free; on return, when it is free
    again (changed in place). A message is over no earlier than it arrives: it comes in while its
    sender is still sending it.
    """
    end = np.empty(len(server))
    if not len(server):
        return end
    order = np.lexsort((arrive, server))
    # where the queue of each server begins in `order`
    starts = np.flatnonzero(np.diff(server[order], prepend=-1))
    lengths = np.diff(starts, append=len(order))
    if len(starts) <= lengths.max():  # few servers with long queues: one queue at a time
        for begin, length in zip(starts, lengths, strict=True):
            queue = order[begin : begin + length]
            one, done = server[queue[0]], np.cumsum(work[queue])
            # unrolled: end[i] = max(arrive[i], end[i - 1] + work[i]), with end[-1] = free
            begun = np.maximum(np.maximum.accumulate(arrive[queue] - done), free[one])
            end[queue] = done + begun
            free[one] = end[queue[-1]]
        return end
    # many servers with short queues: the first of each queue, the second of each, ...
    for turn in range(lengths.max()):
        now = order[starts[lengths > turn] + turn]
        end[now] = np.maximum(arrive[now], free[server[now]] + work[now])
        free[server[now]] = end[now]
    return end
