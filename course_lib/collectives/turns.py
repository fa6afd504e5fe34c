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
import operator
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from course_lib.collectives.model import Terms, Topology
from course_lib.collectives.program import (
    Await,
    Begin,
    Offer,
    Operation,
    Programs,
    Store,
    Take,
    UntilRead,
)
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

Moment = tuple[float, int]
"""A time in seconds, and the event that happened then."""

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
    late: Sequence[float] | None = None,
    slow: Sequence[float] | None = None,
) -> Turns:
    """Carry out a schedule that `verify` accepts, in simulated time, on `topology.cores` cores
    (None: one for each rank), with the callers' numbers in shared memory.

    `late`: for each rank, how many seconds late it begins; `slow`: for each rank, how many times as
    long its work takes (`terms` show neither). Raises SpecError if the bytes or the topology do not
    fit the schedule.
    """
    length = int(schedule.byte_ends(nbytes, itemsize)[-1]) // itemsize
    place = topology.place(schedule).tolist()
    of_schedule = Programs(schedule, place, private=False)
    each = (of_schedule.program(rank, length, itemsize) for rank in range(schedule.ranks))
    programs = list(map(_looking_ahead, each))
    cores = _Cores(programs, place, topology, itemsize, slow or [1.0] * schedule.ranks)
    return cores.run(late or [0.0] * schedule.ranks)


def work(op: Operation, near: bool, itemsize: int = 1) -> Terms:
    """What an operation costs the core of its rank; `near`: its peer is on the same host."""
    match op:
        case Begin():
            return CALL
        case Offer() if near:
            return Terms(messages=1)
        case Offer():
            return Terms(messages_across=1, bytes_across=itemsize * _sum(s for _, s in op.parts))
        case UntilRead() if near:
            return HEARD
        case Take():
            whole = itemsize * _sum(part.span for part in op.parts)
            added = itemsize * _sum(part.span for part in op.parts if part.source is not None)
            if near:
                return Terms(messages=1, bytes=whole, reduced=added)
            return Terms(bytes=added, messages_across=1, bytes_across=whole, reduced=added)
        case Store():
            return Terms(bytes=SWAP * itemsize * _sum([op.span]))
    return Terms()  # waiting costs nothing, and the system waits for far readers


def _looking_ahead(program: list[Operation]) -> list[Operation]:
    """The program, with each `UntilRead` that directly follows an `Await` moved before it: a rank
    sees while it waits whether its pieces have been read, so that takes no extra time.
    """
    found: list[Operation] = []
    for op in program:
        early = isinstance(op, UntilRead) and isinstance(found[-1], Await)
        found.insert(len(found) - early, op)
    return found


def _sum(spans: Iterable[slice]) -> int:
    return sum(span.stop - span.start for span in spans)


class _Cores:
    """The cores, the ranks that queue for them, and what ranks have been told.

    Each event is kept with the event that it followed and the work in between. So from the last
    event a chain leads back to the beginning; the work along it is what the time was spent on.
    """

    def __init__(
        self,
        programs: list[list[Operation]],
        place: list[int],
        topology: Topology,
        itemsize: int,
        slow: Sequence[float],
    ) -> None:
        self.programs, self.place, self.topology = programs, place, topology
        self.itemsize, self.slow = itemsize, slow
        self.parameters = topology.parameters.tolist()
        self.cores = topology.cores or len(programs)
        self.line: list[deque[int]] = [deque() for _ in range(self.cores)]
        self.busy = [False] * self.cores
        self.next = [0] * len(programs)  # the operation of each rank
        self.awaited: Counter[tuple[int, int]] = Counter()  # pieces, by receiver and sender
        self.told: Counter[Word] = Counter()
        # how often the waiting rank must be told, and the rank
        self.waiting: dict[Word, tuple[int, int]] = {}
        # the event that each followed, and the work between
        self.past: list[tuple[int, Terms]] = []
        # time, event, what it does, and with what
        self.coming: list[tuple[float, int, Callable[..., None], Any]] = []
        # when the uplink and the downlink of each host are free
        self.free: dict[tuple[str, int], Moment] = defaultdict(lambda: (0.0, -1))
        self.finish = [0.0] * len(programs)
        self.times: Times = {}

    def run(self, late: Sequence[float]) -> Turns:
        for rank, begin in enumerate(late):
            self._after(-1, Terms(), begin, self._ready, rank)
        now, event = 0.0, -1
        while self.coming:
            now, event, do, what = heapq.heappop(self.coming)
            do(what, now, event)
        return Turns(np.array(self.finish), self._way_to(event), self.times)

    def _after(
        self, event: int, done: Terms, time: float, do: Callable[..., None], what: Any
    ) -> int:
        """Schedule `do(what, ...)` for `time`, as a consequence of an event and the work `done`
        after it.
        """
        self.past.append((event, done))
        heapq.heappush(self.coming, (time, len(self.past) - 1, do, what))
        return len(self.past) - 1

    def _ready(self, rank: int, now: float, event: int) -> None:
        core = rank % self.cores
        if self.busy[core]:
            self.line[core].append(rank)
        else:
            self._turn(rank, now, event)

    def _turn(self, rank: int, now: float, event: int) -> None:
        self.busy[rank % self.cores] = True
        self._after(event, TURN, now + self._seconds(TURN), self._go_on, rank)

    def _go_on(self, rank: int, now: float, event: int) -> None:
        """Begin the next operation of a rank, or let the next rank go on if this one has to wait or
        is done.
        """
        while self.next[rank] < len(self.programs[rank]):
            op = self.programs[rank][self.next[rank]]
            if self._has_to_wait(rank, op):
                break
            self.next[rank] += 1
            if isinstance(op, Await):
                self.awaited[rank, op.peer] += 1
            else:
                self._do(rank, op, now, event)
                return
        else:
            self.finish[rank] = now
        core = rank % self.cores
        self.busy[core] = False
        if self.line[core]:
            self._turn(self.line[core].popleft(), now, event)

    def _has_to_wait(self, rank: int, op: Operation) -> bool:
        if isinstance(op, Await):
            word, number = ("sent", op.peer, rank), self.awaited[rank, op.peer] + 1
        elif isinstance(op, UntilRead) and self.place[rank] == self.place[op.peer]:
            word, number = ("read", rank, op.peer), op.pieces
        else:
            return False
        if self.told[word] >= number:
            return False
        self.waiting[word] = number, rank
        return True

    def _do(self, rank: int, op: Operation, now: float, event: int) -> None:
        peer = op.peer if isinstance(op, (Offer, Take, UntilRead)) else rank
        near = self.place[rank] == self.place[peer]
        done = work(op, near, self.itemsize)
        end = now + self._seconds(done) * self.slow[rank]
        event = self._after(event, done, end, self._go_on, rank)
        if isinstance(op, Offer):
            self.times.setdefault((op.round, rank, peer), (end, end))
            if self.topology.wire and not near:
                self._after(event, Terms(), end, self._cross, (rank, peer, done.bytes_across))
            else:
                self._under_way(rank, peer, end, event)
        elif isinstance(op, Take):
            begin, _ = self.times[op.round, peer, rank]
            self.times[op.round, peer, rank] = begin, end
            self._after(event, Terms(), end - _SOON, self._tell, ("read", peer, rank))

    def _cross(self, what: tuple[int, int, float], now: float, event: int) -> None:
        """A piece between hosts reaches its uplink. It has crossed when the uplink and the downlink
        have carried its bytes, after those of all earlier pieces.
        """
        src, dst, size = what
        up, down = ("up", self.place[src]), ("down", self.place[dst])
        begin = max((now, event), self.free[up])
        self.free[up] = self._carried(begin, size)
        self.free[down] = self._carried(max(begin, self.free[down]), size)
        self._under_way(src, dst, *max(self.free[up], self.free[down]))

    def _carried(self, begin: Moment, size: float) -> Moment:
        """When a link is free again that begins to carry `size` bytes at `begin`."""
        carried = Terms(wired=size)
        self.past.append((begin[1], carried))
        return begin[0] + self._seconds(carried), len(self.past) - 1

    def _under_way(self, src: int, dst: int, now: float, event: int) -> None:
        """Let a piece arrive after the delay of its path."""
        near = self.place[src] == self.place[dst]
        way = Terms(delays=1) if near else Terms(delays_across=1)
        self._after(event, way, now + self._seconds(way) - _SOON, self._tell, ("sent", src, dst))

    def _tell(self, word: Word, now: float, event: int) -> None:
        self.told[word] += 1
        number, rank = self.waiting.get(word, (0, 0))
        if self.told[word] == number:
            del self.waiting[word]
            self._ready(rank, now + _SOON, event)

    def _seconds(self, done: Terms) -> float:
        return sum(map(operator.mul, done, self.parameters))

    def _way_to(self, event: int) -> Terms:
        """The work along the chain of events from the beginning to an event."""
        total = np.zeros(len(self.parameters))
        while event >= 0:
            event, done = self.past[event]
            total += done
        return Terms(*total.tolist())
