"""The time of a schedule if ranks take turns on a few cores, as on a laptop, where one machine
plays all ranks.

Rank r works on core r modulo `Topology.cores`. It goes through its program, the same list of
operations that `exchange` carries out, and keeps the core until it has to wait; then the rank that
has been ready for longest goes on. There is no barrier.

To offer a piece to a rank of its host, a rank works for α seconds. The other works for α + nβ to
read the n bytes, and for nγ more if it adds them. Between hosts both work for α + nβ, with the α
and β of that path, and the bytes are then added as if they had come from the same host. If
`Topology.wire` is set, the bytes also queue for the uplink of one host and the downlink of the
other, as in `network.wires`. All other work is counted in α and β as well, so that α and β, found
with one algorithm, give the time of any other.
"""

import heapq
import itertools
import operator
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from course_lib.collectives import program
from course_lib.collectives.model import Terms, Topology
from course_lib.collectives.program import Operation
from course_lib.collectives.schedule import Schedule

# Found once, by measuring nine algorithms on 2, 3, 4 and 8 ranks. If any one of them is halved or
# doubled, most predicted times are a few per cent worse.
CALL = Terms(messages=7)  # a rank begins and ends a call
HEARD = Terms(messages=2)  # a rank sees that what it will overwrite has been read
SWAP = 1.5  # in β: a sum that has to wait is written to a spare array, and copied from there
TURN = Terms(messages=2)  # a core turns to a rank that has waited

Times = dict[tuple[int, int, int], tuple[float, float]]
"""(Round, sender, receiver) of a message -> when it was offered, and when all of it had been read.
"""

Word = tuple[str, int, int]
"""What ranks tell each other: ("sent", a, b) that a piece from a is there for b, ("read", a, b)
that b has read a piece from a.
"""

_SOON = 1e-12  # seconds: times that differ by less are equal but for rounding


@dataclass(frozen=True)
class Turns:
    """When each rank was done (`finish`, in seconds, shape (ranks,)), the `terms` of the time of
    the last one, and the `times` of each message.
    """

    finish: np.ndarray
    terms: Terms
    times: Times


def take_turns(
    schedule: Schedule,
    nbytes: int,
    topology: Topology,
    itemsize: int = 1,
    late: list[float] | None = None,
    slow: list[float] | None = None,
) -> Turns:
    """Carry out a schedule that `verify` accepts, in simulated time, on `topology.cores` cores
    (None: one for each rank), with the callers' numbers in shared memory.

    `late`: for each rank, how many seconds late it begins; `slow`: for each rank, how many times as
    long its work takes (`terms` show neither). Raises SpecError if the bytes are no whole
    number of elements.
    """
    cores = _Cores(schedule, nbytes, topology, itemsize, slow or [1.0] * schedule.ranks)
    return cores.run(late or [0.0] * schedule.ranks)


def work(op: Operation, near: bool, itemsize: int = 1) -> Terms:
    """What an operation costs the core of its rank; `near`: its peer is on the same host."""
    match op:
        case program.Begin():
            return CALL
        case program.Offer() if near:
            return Terms(messages=1)
        case program.Offer():
            return Terms(messages_across=1, bytes_across=itemsize * _sum(s for _, s in op.parts))
        case program.UntilRead() if near:
            return HEARD
        case program.Take():
            whole = itemsize * _sum(part.span for part in op.parts)
            added = itemsize * _sum(part.span for part in op.parts if part.source is not None)
            if near:
                return Terms(messages=1, bytes=whole, reduced=added)
            return Terms(bytes=added, messages_across=1, bytes_across=whole, reduced=added)
        case program.Store():
            return Terms(bytes=SWAP * itemsize * _sum([op.span]))
    return Terms()  # waiting costs nothing, and the system waits for far readers


def _looking_ahead(operations: list[Operation]) -> list[Operation]:
    """A program, with each `UntilRead` that directly follows an `Await` moved before it: a rank
    sees while it waits whether its pieces have been read, so that takes no extra time.
    """
    found: list[Operation] = []
    for op in operations:
        early = isinstance(op, program.UntilRead) and isinstance(found[-1], program.Await)
        found.insert(len(found) - early, op)
    return found


def _sum(spans: Iterable[slice]) -> int:
    return sum(span.stop - span.start for span in spans)


class _Event(NamedTuple):
    """Something that happens at `time` (in seconds), with the work on the chain of events that led
    to it. Events of the same time happen in the order of their numbers.
    """

    time: float
    number: int
    work: Terms


class _Cores:
    """The cores, the ranks that queue for them, and what ranks have been told."""

    def __init__(
        self, schedule: Schedule, nbytes: int, topology: Topology, itemsize: int, slow: list[float]
    ) -> None:
        self.topology, self.itemsize, self.slow = topology, itemsize, slow
        self.place = schedule.hosts
        length = int(schedule.byte_ends(nbytes, itemsize)[-1]) // itemsize
        of_schedule = program.Programs(schedule, self.place, private=False)
        each = (of_schedule.program(rank, length, itemsize) for rank in range(schedule.ranks))
        self.programs = list(map(_looking_ahead, each))
        self.parameters = topology.parameters.tolist()
        self.cores = topology.cores or schedule.ranks
        self.line: dict[int, deque[int]] = defaultdict(deque)  # the ranks that queue for a core
        self.busy: set[int] = set()  # cores
        self.next = [0] * schedule.ranks  # the operation of each rank
        self.told: Counter[Word] = Counter()  # but for the pieces that were awaited and have come
        # how often the waiting rank must be told, and the rank
        self.waiting: dict[Word, tuple[int, int]] = {}
        self.numbers = itertools.count()
        # a heap: event, what to do then, and with what
        self.coming: list[tuple[_Event, Callable[..., None], tuple[Any, ...]]] = []
        # when the uplink and the downlink of each host are free
        self.free: dict[tuple[str, int], _Event] = defaultdict(lambda: _Event(0.0, -1, Terms()))
        self.finish = [0.0] * schedule.ranks
        self.times: Times = {}

    def run(self, late: list[float]) -> Turns:
        for rank, begin in enumerate(late):
            self._then(_Event(begin, next(self.numbers), Terms()), self._ready, rank)
        while self.coming:
            now, do, what = heapq.heappop(self.coming)
            do(now, *what)
        return Turns(np.array(self.finish), now.work, self.times)

    def _then(self, event: _Event, do: Callable[..., None], *what: Any) -> None:
        """Call `do(event, *what)` when it is time for the event."""
        heapq.heappush(self.coming, (event, do, what))

    def _after(self, event: _Event, done: Terms, time: float) -> _Event:
        """The event at `time` that follows from another one by the work `done`."""
        return _Event(time, next(self.numbers), Terms(*map(operator.add, event.work, done)))

    def _ready(self, now: _Event, rank: int) -> None:
        core = rank % self.cores
        if core in self.busy:
            self.line[core].append(rank)
        else:
            self._turn(now, rank)

    def _turn(self, now: _Event, rank: int) -> None:
        self.busy.add(rank % self.cores)
        turned = self._after(now, TURN, now.time + self._seconds(TURN))
        self._then(turned, self._go_on, rank)

    def _go_on(self, now: _Event, rank: int) -> None:
        """Begin the next operation of a rank, or let the next rank go on if this one has to wait or
        is done.
        """
        while self.next[rank] < len(self.programs[rank]):
            op = self.programs[rank][self.next[rank]]
            if self._has_to_wait(rank, op):
                break
            self.next[rank] += 1
            if not isinstance(op, program.Await):
                self._do(now, rank, op)
                return
            self.told["sent", op.peer, rank] -= 1
        else:
            self.finish[rank] = now.time
        core = rank % self.cores
        self.busy.remove(core)
        if self.line[core]:
            self._turn(now, self.line[core].popleft())

    def _has_to_wait(self, rank: int, op: Operation) -> bool:
        if isinstance(op, program.Await):
            word, number = ("sent", op.peer, rank), 1
        elif isinstance(op, program.UntilRead) and self.place[rank] == self.place[op.peer]:
            word, number = ("read", rank, op.peer), op.pieces
        else:
            return False
        if self.told[word] >= number:
            return False
        self.waiting[word] = number, rank
        return True

    def _do(self, now: _Event, rank: int, op: Operation) -> None:
        peer = rank if isinstance(op, program.Begin | program.Store) else op.peer
        near = self.place[rank] == self.place[peer]
        done = work(op, near, self.itemsize)
        end = now.time + self._seconds(done) * self.slow[rank]
        over = self._after(now, done, end)
        self._then(over, self._go_on, rank)
        if isinstance(op, program.Offer):
            self.times.setdefault((op.round, rank, peer), (end, end))
            if self.topology.wire and not near:
                at_link = self._after(over, Terms(), end)
                self._then(at_link, self._cross, rank, peer, Terms(wired=done.bytes_across))
            else:
                self._under_way(over, rank, peer)
        elif isinstance(op, program.Take):
            begin, _ = self.times[op.round, peer, rank]
            self.times[op.round, peer, rank] = begin, end
            seen = self._after(over, Terms(), end - _SOON)
            self._then(seen, self._tell, ("read", peer, rank))

    def _cross(self, now: _Event, src: int, dst: int, carried: Terms) -> None:
        """A piece between hosts reaches its uplink. It has crossed when the uplink and the downlink
        have carried its bytes, after those of all earlier pieces.
        """
        up, down = ("up", self.place[src]), ("down", self.place[dst])
        begin, seconds = max(now, self.free[up]), self._seconds(carried)
        for link, event in ((up, begin), (down, max(begin, self.free[down]))):
            self.free[link] = self._after(event, carried, event.time + seconds)
        self._under_way(max(self.free[up], self.free[down]), src, dst)

    def _under_way(self, now: _Event, src: int, dst: int) -> None:
        """Let a piece arrive after the delay of its path."""
        near = self.place[src] == self.place[dst]
        way = Terms(delays=1) if near else Terms(delays_across=1)
        arrival = self._after(now, way, now.time + self._seconds(way) - _SOON)
        self._then(arrival, self._tell, ("sent", src, dst))

    def _tell(self, now: _Event, word: Word) -> None:
        self.told[word] += 1
        number, rank = self.waiting.get(word, (0, 0))
        if self.told[word] == number:
            del self.waiting[word]
            self._ready(now._replace(time=now.time + _SOON), rank)

    def _seconds(self, done: Terms) -> float:
        return sum(map(operator.mul, done, self.parameters))
