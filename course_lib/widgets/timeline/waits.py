"""What each wait in a trace was for: the phase of another task whose end let it go on."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from course_lib.record.events import Phase

BUSY = ("compute", "apply", "checkpoint")  # what others can be waited for to do


class Wait(NamedTuple):
    """A wait, the phase that `released` it (None: the trace does not tell), and whether its task
    waited in a reduction for the `last` to come.

    For the last worker of a reduction the trace is proof. For another wait, `released` is what
    ended last before it: true as a fact, and nearly always the cause. A wait that is over before
    anybody has done anything waited for the wire.
    """

    phase: Phase
    released: Phase | None
    last: bool


def waits(phases: Sequence[Phase]) -> list[Wait]:
    """All waits among the phases that `measures.lanes` gives, in their order."""
    look = _Ends(phases)
    # (step, when the last came) -> who reduced from then on
    meetings: dict[tuple[int, float], set[str]] = defaultdict(set)
    waited: dict[tuple[int, float], set[str]] = defaultdict(set)
    for p in phases:
        if p.what == "reduce":
            meetings[p.step, p.start].add(p.task)
        elif p.what == "wait":
            waited[p.step, p.end].add(p.task)
    found = []
    for p in phases:
        if p.what == "wait":
            met = meetings.get((p.step, p.end), set())
            came_last = met - waited[p.step, p.end] if p.task in met else set()
            released = look.before_of(min(came_last), p.end) if came_last else look.released(p)
            found.append(Wait(p, released, bool(came_last)))
    return found


class _Ends:
    """Phases by when they ended."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.busy = sorted((p for p in phases if p.what in BUSY), key=attrgetter("end"))
        self.ends = [p.end for p in self.busy]
        self.of_task: dict[str, list[Phase]] = defaultdict(list)
        self.pushes: dict[int, list[Phase]] = defaultdict(list)
        for p in self.busy:
            self.of_task[p.task].append(p)
        for p in phases:
            if p.what == "reduce":
                self.pushes[p.step].append(p)

    def before_of(self, task: str, at: float) -> Phase | None:
        """What a task had done last at a time."""
        i = bisect_right(self.of_task[task], at, key=attrgetter("end"))
        return self.of_task[task][i - 1] if i else None

    def released(self, wait: Phase) -> Phase | None:
        """What ended last, elsewhere, while a task waited; for an update by a parameter server, the
        computing whose gradient it applied.
        """
        while_waiting = self.busy[
            bisect_right(self.ends, wait.start) : bisect_right(self.ends, wait.end)
        ]
        others = [p for p in reversed(while_waiting) if p.task != wait.task]
        update = next((p for p in others if p.what == "apply" and p.task.startswith("ps:")), None)
        if update is None:
            return next((p for p in others if p.step == wait.step), None)
        pushing = [
            p
            for p in self.pushes[update.step]
            if p.task != wait.task and p.start <= update.start and update.end <= p.end
        ]
        return self.before_of(pushing[0].task, update.start) if len(pushing) == 1 else update
