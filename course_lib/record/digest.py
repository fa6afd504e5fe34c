"""Digest: what the events of a run say so far, kept up to date. A look costs as much as has
happened since the last one, however long the run.

Losses, idle shares and the start of the clock mean what they mean in the comparison of a race; a
test holds the two together.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from course_lib.record import measures
from course_lib.record.curves import WINDOW, Curve, Readings
from course_lib.record.events import Event, Lifecycle, Metric, Phase, Update, task_key
from course_lib.record.trace import Trace
from course_lib.spec import RunSpec

KEPT = 2000  # phases of a task, and updates of all, that are kept to be drawn
SLACK = 1e-3  # seconds: the clock inside a TensorFlow graph is another one, converted
ENDED = ("done", "failed", "killed")
FATES = ("paused", "killed", "cut")  # what keeps a task from going on

E = TypeVar("E", Phase, Update, Metric, Lifecycle)


class Digest:
    """The digest of one run. `look` takes in what a trace has got since the last time.

    `seconds`: time of the last event. `zero`: when the clock starts (see `start_of_clock` in
    racing), infinity until then. `states`: task -> its last state. `factors`: task -> how many
    times slower it was made; `slowed`: all that was ordered so, one after the other.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.seconds, self.zero = 0.0, math.inf
        self.over = False
        self.states: dict[str, Lifecycle] = {}
        self.life: dict[str, list[Lifecycle]] = defaultdict(list)
        self.factors = dict(spec.slow)
        self.slowed: dict[str, list[float]] = defaultdict(list)
        self._counted = measures.Updates()
        self.lockstep = True  # until a reduction ends before everybody has come to it
        # Whether an update was made of the gradients of several workers by name: they wait for each
        # other, and for nobody else.
        self.together = False
        self._recent: dict[str, deque[Phase]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._updates: deque[Update] = deque(maxlen=KEPT)  # those that name workers
        self._last: dict[str, float] = {}  # when each task was heard of last
        self._ahead = math.inf  # how far this process's clock is ahead of the trace's
        self._read: Counter[type[Event]] = Counter()
        self._readings = {
            "loss": Readings(np.fmin, WINDOW * spec.batch),
            "accuracy": Readings(np.fmax),
        }
        # when steps were computed, of those that were before the clock started
        self._computed: dict[int, float] = {}
        # task -> its first step, and when it began the next
        self._second: dict[str, tuple[int, float | None]] = {}
        self._pending: list[Phase | Update] = []
        self._reducing: dict[str, int] = {}  # task -> the newest step that it reduced in
        # task -> the newest step that it made an update of by name
        self._updated: dict[str, int] = {}
        self._waited: dict[str, float] = defaultdict(float)
        self._spans: dict[str, tuple[float, float]] = {}

    # --- taking in ---

    def look(self, trace: Trace, over: bool = False) -> bool:
        """Take in what is new; whether anything was. `over`: nothing more will come."""
        phases, life = self._new(trace, Phase), self._new(trace, Lifecycle)
        metrics, updates = self._new(trace, Metric), self._new(trace, Update)
        for p in phases:
            self._recent[p.task].append(p)
            self._last[p.task] = max(p.end, self._last.get(p.task, 0.0))
        for e in life:
            self._take_life(e)
        self._start_clock(phases, over)
        for m in metrics:
            if m.name in self._readings:
                self._readings[m.name].add(m)
        self._counted.add(updates)
        named = [u for u in updates if u.workers]
        self._updates += named
        self.together = self.together or any(" " in u.workers for u in named)
        self._account([*phases, *named], over)
        self.over = over
        news = [
            *(p.end for p in phases),
            *(e.at for events in (life, metrics, updates) for e in events),
        ]
        if news:
            self.seconds = max(self.seconds, *news)
            self._ahead = min(self._ahead, time.monotonic() - self.seconds)
        return bool(news)

    def _new(self, trace: Trace, kind: type[E]) -> list[E]:
        new = trace.since(kind, self._read[kind])
        self._read[kind] += len(new)
        return new

    def _take_life(self, e: Lifecycle) -> None:
        self.life[e.task].append(e)
        if e.state == "slowed":
            self.slowed[e.task].append(e.factor)
            self.factors[e.task] = self.slowed[e.task][-1]
        elif e.state != "refused":
            self.states[e.task] = e

    def _start_clock(self, phases: list[Phase], over: bool) -> None:
        """The clock starts when the last worker begins its second step: the first one traces and
        compiles.
        """
        for p in phases:
            if p.end <= self.zero:
                first, second = self._second.get(p.task, (p.step, None))
                self._second[p.task] = (
                    first,
                    p.start if second is None and p.step != first else second,
                )
            if p.what == "compute" and (p.end <= self.zero or p.step in self._computed):
                self._computed[p.step] = max(p.end, self._computed.get(p.step, p.end))
        if math.isinf(self.zero):
            racers = {
                task: when for task, (_, when) in self._second.items() if not task.startswith("ps:")
            }
            workers = {task: when for task, when in racers.items() if task.startswith("worker:")}
            begun = [when for when in (workers or racers).values() if when is not None]
            if begun and (over or len(begun) >= (self.spec.workers if workers else 1)):
                self.zero = max(begun)
        self._computed = {step: end for step, end in self._computed.items() if end <= self.zero}

    def _account(self, new: list[Phase | Update], over: bool) -> None:
        """Add up who waited how long, as far as it is known: where workers meet, of a step that all
        have reduced in and left behind.
        """
        for e in new:
            if isinstance(e, Update):
                self._updated[e.task] = max(e.step, self._updated.get(e.task, e.step))
            elif e.what == "reduce":
                self._reducing[e.task] = max(e.step, self._reducing.get(e.task, e.step))
        self._pending += new
        if math.isinf(self.zero):
            return
        whole = self._whole() if self._meet and not over else math.inf
        known = [e for e in self._pending if e.step < whole]
        self._pending = [e for e in self._pending if e.step >= whole]
        self.lockstep = self.lockstep and in_lockstep(e for e in known if isinstance(e, Phase))
        for p in self._lanes(known):
            if p.end > self.zero:
                start = max(p.start, self.zero)
                first, last = self._spans.get(p.task, (start, p.end))
                self._spans[p.task] = min(first, start), max(last, p.end)
                self._waited[p.task] += p.end - start if p.what == "wait" else 0.0

    @property
    def _meet(self) -> bool:
        """Whether workers wait for each other in a reduction."""
        return self.together or (self.lockstep and not self._updates)

    def _whole(self) -> float:
        """All steps before this one are whole: their reductions and updates are known.

        Nobody waits for one that is paused, unless all do.
        """
        going = [
            step
            for task, step in self._reducing.items()
            if task not in self.states or self.states[task].state != "paused"
        ]
        return min([*going, *(step + 1 for step in self._updated.values())], default=math.inf)

    def _lanes(self, events: Iterable[Phase | Update]) -> list[Phase]:
        """The phases among them; where workers meet, with the waits told apart from the exchanges."""
        if self._meet:
            # with any that names workers, whoever made none waits for nobody
            newest = [self._updates[-1]] if self._updates else []
            return measures.lanes(Trace([*events, *newest]))
        return [e for e in events if isinstance(e, Phase)]

    # --- what it says ---

    @property
    def network(self) -> list[Lifecycle]:
        """What was done to the hosts' links."""
        return [e for task, events in self.life.items() if task.startswith("host:") for e in events]

    def fates(self, task: str) -> list[tuple[str, float, float]]:
        """(`paused`, `killed`, or `cut` with its host; from when; until when) of a task; infinity
        for what lasts.
        """
        host = self.life.get(f"host:{self.spec.places[task]}", [])
        return [*_fates(host), *_fates(self.life.get(task, []))]

    @property
    def tasks(self) -> list[str]:
        """Tasks that have a lane: workers first, then servers, then a chief if it does anything
        itself.
        """
        busy = [
            task for task in self.spec.tasks if task.startswith("worker:") or task in self._recent
        ]
        return sorted(busy, key=lambda task: (not task.startswith("worker:"), *task_key(task)))

    @property
    def idle(self) -> dict[str, float]:
        """Task -> share of its time since the clock started that it waited for others."""
        spans = sorted(self._spans.items(), key=lambda s: task_key(s[0]))
        return {
            task: self._waited[task] / (last - first)
            for task, (first, last) in spans
            if last > first
        }

    @property
    def staleness(self) -> Counter[int]:
        """How many updates had each staleness."""
        return self._counted.staleness

    @property
    def stale(self) -> float:
        """Mean staleness of the gradients applied."""
        count = sum(self.staleness.values())
        return sum(stale * n for stale, n in self.staleness.items()) / count if count else 0.0

    def losses(self) -> Curve:
        """The mean loss over time and examples."""
        return self._readings["loss"].curve(self.zero, list(self._computed))

    def accuracies(self) -> Curve:
        """The test accuracy over time and examples, where it is measured on the way."""
        return self._readings["accuracy"].curve(self.zero)

    def recent(self, since: float) -> list[Phase]:
        """Phases that end after `since`, waits told apart from exchanges where workers meet."""
        kept = [
            p
            for task in self.tasks
            for p in itertools.takewhile(
                lambda p: p.end > since, reversed(self._recent.get(task, ()))
            )
        ][::-1]
        return self._lanes([*kept, *(u for u in self._updates if u.at > since)])

    def edge(self) -> float:
        """Until when lanes can be shown, in seconds of the trace.

        A phase is recorded when it ends, so that is when the last active task was heard of. Once
        that is long ago, the lanes go on without it.
        """
        if self.over:
            fates = [e.at for events in self.life.values() for e in events if e.state == "killed"]
            return max(
                [*self._last.values(), *(at + self.step_seconds() for at in fates)],
                default=self.seconds,
            )
        gone = {task for task, e in self.states.items() if e.state in (*ENDED, "paused")}
        ends = [
            end
            for task, end in self._last.items()
            if not task.startswith("ps:") and task not in gone
        ]
        return max(
            min(ends, default=self.seconds),
            time.monotonic() - self._ahead - max(1.0, 3 * self.step_seconds()),
        )

    def step_seconds(self) -> float:
        """How long the slowest worker takes for a step, by its last ten; 0 before the first."""
        slowest = 0.0
        for task, phases in self._recent.items():
            if task.startswith(("worker:", "chief:")):
                starts: dict[int, float] = {}
                for p in reversed(phases):
                    starts[p.step] = p.start
                    if len(starts) > 10:
                        break
                times = sorted(starts.values())
                whole = times[-1] - times[0] if len(times) > 1 else phases[-1].end - times[0]
                slowest = max(slowest, whole / max(1, len(times) - 1))
        return slowest


def _fates(life: Iterable[Lifecycle]) -> list[tuple[str, float, float]]:
    found: list[tuple[str, float, float]] = []
    for e in life:
        if found and math.isinf(found[-1][2]) and e.state in ("resumed", "healed", *FATES):
            found[-1] = (*found[-1][:2], e.at)
        if e.state in FATES:
            found.append((e.state, e.at, math.inf))
    return found


def in_lockstep(phases: Iterable[Phase]) -> bool:
    """Whether nobody is done with the reduction of a step before everybody has come to it."""
    begun: dict[int, dict[str, float]] = defaultdict(dict)
    done: dict[int, dict[str, float]] = defaultdict(dict)
    for p in phases:
        if p.what == "reduce":
            begun[p.step][p.task] = min(p.start, begun[p.step].get(p.task, p.start))
            done[p.step][p.task] = max(p.end, done[p.step].get(p.task, p.end))
    everyone = max(map(len, begun.values()), default=0)
    return all(
        min(done[step].values()) >= max(tasks.values()) - SLACK
        for step, tasks in begun.items()
        if len(tasks) == everyone
    )
