"""Waits: who waited for whom in a reduction, and what ended each wait; and which exchanges nobody
waited for.

A worker in a synchronous reduction cannot tell waiting for the others from the exchange itself. A
trace can, because it has the events of all workers on one clock. It also tells which part of an
exchange was `hidden`: went on while its task computed, and so made no step longer.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from course_lib.record.events import Phase, Update

DRAWN = 2000  # phases kept of each task, and updates kept of all, to be drawn
END = attrgetter("end")
RELEASING = ("compute", "apply", "checkpoint")  # phases whose end can let another task go on
SLACK = 1e-3  # seconds: times inside a TensorFlow graph come from another clock and are converted


class Reductions:
    """The reductions of a run, each split into the wait and the exchange after it, while the run
    goes on.

    Workers wait for each other in a reduction if an update names several of them, since it waits
    for their gradients. If updates name nobody, workers wait if the run is in `lockstep`.
    """

    def __init__(self) -> None:
        self._met = Counter[bool]()  # steps: whether none left a reduction before all had come
        self._named: deque[Update] = deque(maxlen=DRAWN)  # updates that name workers
        self._together = False  # whether one of them names several
        self._reduced: dict[str, int] = defaultdict(int)  # task -> the newest step it reduced in
        self._updated: dict[str, int] = defaultdict(int)  # task -> the step after its last update
        self._phases: list[Phase] = []  # those that `complete` has not returned yet
        self._updates: list[Update] = []  # those of the same steps that name workers

    def add(self, phases: Iterable[Phase], updates: Iterable[Update]) -> None:
        """Take in new events; those of one kind in the order in which they were written."""
        for p in phases:
            if p.what == "reduce":
                self._reduced[p.task] = max(p.step, self._reduced[p.task])
        named = [u for u in updates if u.workers]
        for u in named:
            self._updated[u.task] = max(u.step + 1, self._updated[u.task])
            self._together = self._together or " " in u.workers
        self._named += named
        self._phases += phases
        self._updates += named

    def complete(self, paused: Collection[str] = (), over: bool = False) -> list[Phase]:
        """The phases, split, that were not returned before. While workers meet, a step is complete
        once every worker has gone on to a later one: only then is it known who came last.

        `paused` tasks hold up no step, unless all are paused. `over`: no more events will come.
        """
        before = math.inf
        if self._meet and not over:
            going = [step for task, step in self._reduced.items() if task not in paused]
            before = min([*going, *self._updated.values()], default=math.inf)
        phases = [p for p in self._phases if p.step < before]
        updates = [u for u in self._updates if u.step < before]
        self._phases = [p for p in self._phases if p.step >= before]
        self._updates = [u for u in self._updates if u.step >= before]
        self._met.update(met(phases))
        return self._split(phases, updates)

    def latest(self, phases: Sequence[Phase], since: float) -> list[Phase]:
        """The last phases of a run, which end after `since`, split as far as can be told so far."""
        return self._split(phases, [u for u in list(self._named) if u.at > since])

    @property
    def lockstep(self) -> bool:
        """True if reductions are collectives, after which all go on. A wait that begins late, as
        the machine was busy, may be over at once: so a few steps prove nothing.
        """
        alone = self._named and not self._together
        return not alone and self._met[False] <= 1 + self._met.total() // 20

    @property
    def _meet(self) -> bool:
        """True if workers wait for each other in a reduction."""
        return self._together or (self.lockstep and not self._named)

    def _split(self, phases: Sequence[Phase], named: Sequence[Update]) -> list[Phase]:
        if not self._meet:
            return list(phases)
        return split(phases, named if self._named else None)


def met(phases: Iterable[Phase]) -> Iterator[bool]:
    """For each step in which all reduce, whether no worker left before all had come."""
    begun: dict[int, dict[str, float]] = defaultdict(dict)
    done: dict[int, dict[str, float]] = defaultdict(dict)
    for p in phases:
        if p.what == "reduce":
            begun[p.step][p.task] = min(p.start, begun[p.step].get(p.task, p.start))
            done[p.step][p.task] = max(p.end, done[p.step].get(p.task, p.end))
    everyone = max(map(len, begun.values()), default=0)
    for step, tasks in begun.items():
        if len(tasks) == everyone > 1:
            yield min(done[step].values()) >= max(tasks.values()) - SLACK


def split(phases: Sequence[Phase], named: Iterable[Update] | None) -> list[Phase]:
    """The phases, with each `reduce` split into the wait and the exchange after it, and these into
    what went on beside computing and what did not (see `beside`).

    `named`: the updates that name the workers whose gradients went into them (`Update.workers`).
    Workers named in one update wait for each other, and for no other worker. None if no update of
    the run names workers: then all workers wait for each other.
    """
    # step -> the groups of workers that made an update in it
    groups: dict[int, set[frozenset[str]]] = defaultdict(set)
    for update in named or ():
        groups[update.step].add(frozenset(update.workers.split()))
    # (step, number of the reduction in it) -> task -> index of its phase
    reductions: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    seen: Counter[tuple[str, int]] = Counter()
    for i in sorted(range(len(phases)), key=lambda i: phases[i].start):
        p = phases[i]
        if p.what == "reduce":
            reductions[p.step, seen[p.task, p.step]][p.task] = i
            seen[p.task, p.step] += 1
    everyone = max(map(len, reductions.values()), default=0)
    last: dict[int, float] = {}  # index of a phase -> when the last came that its task waits for
    for (step, _), index in reductions.items():
        whole = {frozenset(index)} if len(index) == everyone else set()
        for who in whole if named is None else groups[step]:
            if who <= index.keys():
                came = max(phases[index[task]].start for task in who)
                last |= {index[task]: max(came, last.get(index[task], came)) for task in who}
    computes: dict[tuple[str, int], list[Phase]] = defaultdict(list)
    for p in phases:
        if p.what == "compute":
            computes[p.task, p.step].append(p)
    parts: list[Phase] = []
    until: dict[tuple[str, int], float] = defaultdict(float)  # when earlier exchanges were over
    for i, p in enumerate(phases):
        if p.what != "reduce":
            parts.append(p)
            continue
        came, here = last.get(i, p.start), (p.task, p.step)
        # a worker that left before the last one came did not wait for it
        ready = came if p.start < came <= p.end else p.start
        if ready > p.start:
            parts += beside(p._replace(what="wait", end=ready), computes[here], until[here])
        parts += beside(p._replace(start=ready), computes[here], until[here])
        until[here] = max(until[here], p.end)
    return parts


def beside(p: Phase, computes: Iterable[Phase], since: float) -> Iterator[Phase]:
    """The parts of a wait or an exchange during which its task may also have computed. The part of
    an exchange beside a `compute` becomes `hidden`; that of a wait is left out, as a task that
    computes does not wait. All before `since`, when an earlier exchange was over, is left out too.
    """
    at = max(p.start, since)
    for c in computes:
        if at < c.end and c.start < p.end:
            if at < c.start:
                yield p._replace(start=at, end=c.start)
            if p.what == "reduce":
                yield p._replace(what="hidden", start=max(at, c.start), end=min(c.end, p.end))
            at = c.end
    if at < p.end or at == p.start:
        yield p._replace(start=at)


class Wait(NamedTuple):
    """A wait, the phase whose end `released` it (None if the trace does not tell), and whether that
    is a phase of the `last` worker to come to a reduction.

    If `last` is true, the trace proves the cause. For any other wait, `released` is the phase that
    ended last during the wait, which is nearly always the cause. If no phase ended during a wait,
    the task waited for the wire.
    """

    phase: Phase
    released: Phase | None
    last: bool


def waits(phases: Sequence[Phase]) -> list[Wait]:
    """All waits among the phases that `with_waits` returns, in their order."""
    ended = sorted((p for p in phases if p.what in RELEASING), key=END)
    of_task: dict[str, list[Phase]] = defaultdict(list)
    for p in ended:
        of_task[p.task].append(p)
    # (step, when the last came) -> tasks that reduced from then on, and those that had waited
    meetings: dict[tuple[int, float], set[str]] = defaultdict(set)
    waited: dict[tuple[int, float], set[str]] = defaultdict(set)
    for p in phases:
        if p.what in ("reduce", "hidden"):
            meetings[p.step, p.start].add(p.task)
        elif p.what == "wait":
            waited[p.step, p.end].add(p.task)
    causes = []
    for p in phases:
        if p.what == "wait":
            met = meetings.get((p.step, p.end), set())
            last = met - waited[p.step, p.end] if p.task in met else set()
            mine = of_task[min(last)] if last else []
            begun = bisect_left(mine, p.end, key=attrgetter("start"))
            released = mine[begun - 1] if begun else None
            causes.append(Wait(p, released if last else _last_ended(ended, p), bool(last)))
    return causes


def _last_ended(ended: Sequence[Phase], wait: Phase) -> Phase | None:
    """The phase of another task that ended last during a wait. If a parameter server made an update
    in that time, the phase that computed the gradient which it applied.
    """
    first, last = (bisect_right(ended, at, key=END) for at in (wait.start, wait.end))
    others = [p for p in reversed(ended[first:last]) if p.task != wait.task]
    update = next((p for p in others if p.what == "apply" and p.task.startswith("ps:")), None)
    if update is None:
        return next((p for p in others if p.step == wait.step), None)
    before = range(bisect_right(ended, update.start, key=END) - 1, -1, -1)
    computed = (p for p in map(ended.__getitem__, before) if p.step == update.step)
    return next((p for p in computed if p.task not in (wait.task, update.task)), update)
