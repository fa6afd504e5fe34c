"""Ranks that take turns on a few cores, as on a laptop: the time of a schedule where one machine
plays all ranks.

The model. Rank r works on core r modulo `Topology.cores`. It goes through its `steps` and keeps the
core until it has to wait; then the rank goes on that has been ready for longest. There is no
barrier. What crosses between hosts costs the cores' time as well; where `Topology.wire` says so, it
then stands in line for the uplink of its host and the downlink of the other, as in `network.wires`.
"""

from __future__ import annotations

import heapq
import operator
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from course_lib.collectives.model import Terms, Topology
from course_lib.collectives.schedule import Schedule
from course_lib.collectives.steps import Step, Word, steps

# a core turns to a rank that has waited; found together with the numbers in `steps`
TURN = Terms(messages=2)
Times = dict[tuple[int, int, int], tuple[float, float]]
"""By round, sender and receiver of a message: when it was handed over, and when all of it had been
taken.
"""

Moment = tuple[float, int]
"""When, and by which event."""

_SOON = 1e-12  # seconds: what differs by less happens at the same time, but for rounding


@dataclass(frozen=True)
class Turns:
    """When each rank was done (`finish`, in seconds), what the last one's time is made of
    (`terms`), and when each message went.
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
    (None: one for each rank).

    By rank: `late` is by how many seconds it begins late, `slow` how many times longer all takes
    that it does (`terms` show neither). May raise SpecError.
    """
    place = topology.place(schedule).tolist()
    cores = _Cores(
        steps(schedule, nbytes, place, itemsize), place, topology, slow or [1.0] * schedule.ranks
    )
    return cores.run(late or [0.0] * schedule.ranks)


class _Cores:
    """The cores, the ranks in line for them, and what ranks have been told.

    All that happens is noted with the one thing that it came after: that leads back from the end to
    the beginning, and says what the time went into.
    """

    def __init__(
        self,
        programs: list[list[Step]],
        place: list[int],
        topology: Topology,
        slow: Sequence[float],
    ) -> None:
        self.programs, self.place, self.topology, self.slow = programs, place, topology, slow
        self.parameters = topology.parameters.tolist()
        self.cores = topology.cores or len(programs)
        self.line: list[deque[int]] = [deque() for _ in range(self.cores)]
        self.busy = [False] * self.cores
        self.next = [0] * len(programs)  # the step of each rank
        self.told: Counter[Word] = Counter()
        # how often it must have been told, and to which rank
        self.waiting: dict[Word, tuple[int, int]] = {}
        self.past: list[tuple[int, Terms]] = []  # what each event came after, and the work between
        # when, the event, what it does, and with what
        self.coming: list[tuple[float, int, Callable[..., None], Any]] = []
        # when each host's uplink and downlink are free
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
        self, event: int, work: Terms, time: float, do: Callable[..., None], what: Any
    ) -> None:
        """Let something happen at a time, as the consequence of an event and the work that follows
        it.
        """
        self.past.append((event, work))
        heapq.heappush(self.coming, (time, len(self.past) - 1, do, what))

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
        """The next step of a rank, or the next rank if it has to wait."""
        if self.next[rank] == len(self.programs[rank]):
            self.finish[rank] = now
            self._leave(rank, now, event)
            return
        step = self.programs[rank][self.next[rank]]
        if step.waits and self.told[step.waits] < step.number:
            self.waiting[step.waits] = step.number, rank
            self._leave(rank, now, event)
            return
        self.next[rank] += 1
        end = now + self._seconds(step.work) * self.slow[rank]
        self._after(event, step.work, end, self._go_on, rank)
        if step.tells and self.topology.wire and self._way(step.tells).delays_across:
            self._after(
                len(self.past) - 1, Terms(), end, self._cross, (step.tells, step.work.bytes_across)
            )
        elif step.tells:
            self._under_way(step.tells, end, len(self.past) - 1)
        if step.message:
            sent = step.message[1] == rank
            begin, _ = self.times.get(step.message, (end, end))
            self.times[step.message] = (begin, begin if sent else end)

    def _leave(self, rank: int, now: float, event: int) -> None:
        core = rank % self.cores
        self.busy[core] = False
        if self.line[core]:
            self._turn(self.line[core].popleft(), now, event)

    def _cross(self, what: tuple[Word, float], now: float, event: int) -> None:
        """A message between hosts comes to its uplink: it is over when that and the downlink have
        carried its bytes, after all before it.
        """
        word, size = what
        _, src, dst = word
        up, down = ("up", self.place[src]), ("down", self.place[dst])
        begin = max((now, event), self.free[up])
        self.free[up] = self._carried(begin, size)
        self.free[down] = self._carried(max(begin, self.free[down]), size)
        self._under_way(word, *max(self.free[up], self.free[down]))

    def _carried(self, begin: Moment, size: float) -> Moment:
        """When a link is free again that carries so many bytes from then on."""
        work = Terms(wired=size)
        self.past.append((begin[1], work))
        return begin[0] + self._seconds(work), len(self.past) - 1

    def _under_way(self, word: Word, now: float, event: int) -> None:
        way = self._way(word)
        self._after(event, way, now + self._seconds(way) - _SOON, self._tell, word)

    def _tell(self, word: Word, now: float, event: int) -> None:
        self.told[word] += 1
        number, rank = self.waiting.get(word, (0, 0))
        if self.told[word] == number:
            del self.waiting[word]
            self._ready(rank, now + _SOON, event)

    def _way(self, word: Word) -> Terms:
        """A message is under way for the delay of its link; what has been read stands in shared
        memory.
        """
        what, src, dst = word
        if what == "read":
            return Terms()
        return Terms(delays=1) if self.place[src] == self.place[dst] else Terms(delays_across=1)

    def _seconds(self, work: Terms) -> float:
        return sum(map(operator.mul, work, self.parameters))

    def _way_to(self, event: int) -> Terms:
        """All work on the way from the beginning to an event."""
        total = np.zeros(len(self.parameters))
        while event >= 0:
            event, work = self.past[event]
            total += work
        return Terms(*total.tolist())
