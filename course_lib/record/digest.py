"""Digest: curves, updates and idle share of a run, kept up to date while it goes on. Each run has
one, which boards, races, commands and progress lines read. For figures of a whole trace, such as
its step times and bytes on the wire, see `measures`.

An update costs as much time as there are new events, however long the run has been. Only the
curves, which are numpy arrays, and the counts of staleness are computed from the beginning.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence

import numpy as np

from course_lib.record import measures
from course_lib.record.curves import EMPTY, WINDOW, Curve, Readings
from course_lib.record.events import Clock, Dropped, E, Lifecycle, Metric, Phase, Update
from course_lib.record.life import ENDS, HALTS, Life, Repeats, planned
from course_lib.record.measures import IdleTime, Updates
from course_lib.record.trace import Trace
from course_lib.record.waits import DRAWN, Reductions
from course_lib.spec.fields import Jitter
from course_lib.spec.run_spec import RunSpec

USELESS = {  # gradients in float16 that train nothing, by the metric that is 1, and the cure
    "overflow": "overflowed: leave loss_scale out, or set a smaller one",
    "zeros": "were zero: leave loss_scale out, or set a larger one",
}
ENOUGH = 5  # gradients, before it is said of all of them


class Digest:
    """The digest of one run. `update` takes in the new events of its `trace`; several threads may
    do so and read.

    `events`: how many it has taken in; `seconds`: time of the last one. `zero`: when the clock
    starts. That is when the last worker begins its second step, since the first one traces and
    compiles; in a race, when the starting line opened (see `begin`). Infinity until then. `life`:
    of its tasks and hosts. `updates`: counted by staleness. `dropped`: how many gradients went into
    no update. `memory`: bytes by task and kind. `losses` and `accuracies` (if they are measured
    during the run): the curves; `by_name`: those of all losses, as a loop with several optimizers
    has several: `losses` is the one called `loss`, or else the first. `not_finite`: the first loss
    that is NaN or infinite. `reductions`: who waits for whom. `repeats`: steps done again after a
    restart, which count once. `unsure`: task -> by how many seconds its times may be wrong, on a
    node of a cluster.
    """

    def __init__(self, spec: RunSpec, trace: Trace, zero: float = math.inf) -> None:
        self.spec, self.trace, self._lock = spec, trace, threading.Lock()
        self._clear(zero)

    def _clear(self, zero: float) -> None:
        """Forget all events: the next update takes them in again."""
        spec, self.zero = self.spec, zero
        self.seconds, self.events, self.over = 0.0, 0, False
        self.life = Life(planned(spec))
        self.updates, self.dropped = Updates(), 0
        self.memory: measures.Memory = {}
        self.reductions, self.repeats = Reductions(), Repeats(self.life)
        self.losses = self.accuracies = EMPTY
        self.not_finite: Metric | None = None
        self.unsure: dict[str, float] = {}
        self.by_name: dict[str, Curve] = {}
        self._gradients, self._useless = 0, Counter[str]()  # in float16, by the names of `USELESS`
        self._read: Counter[type] = Counter()
        self._recent: dict[str, deque[Phase]] = defaultdict(lambda: deque(maxlen=DRAWN))
        self._heard: dict[str, float] = {}  # when each task's last phase ended
        self._ahead = math.inf  # how far this process's clock is ahead of the trace's
        # a loop of a learner's own has batches of its own
        window = WINDOW * spec.batch, WINDOW * spec.own_loop
        self._losses = defaultdict[str, Readings](lambda: Readings(np.fmin, *window))
        self._newest = -1  # the latest step that has a loss
        self._accuracy = Readings(np.fmax)
        self._first: dict[str, int] = {}  # task -> its first step
        self._second: dict[str, float] = {}  # task -> when it began the next
        # step -> when it was computed, for steps computed before the clock started
        self._early: dict[int, float] = {}
        self._idle = IdleTime()
        self._device: dict[str, float] = defaultdict(float)  # task -> emulated seconds
        self._longest = 0.0  # the longest of all tasks in a step, over all steps

    # --- taking in ---

    def begin(self, zero: float) -> None:
        """Start the clock at this time, whatever the trace tells."""
        with self._lock:
            self._clear(zero)

    def update(self, over: bool = False) -> Digest:
        """Take in what is new in the trace by now; return itself. `over`: no more will come."""
        self.trace.refresh()
        with self._lock:
            self._take_in(over)
        return self

    def _take_in(self, over: bool) -> None:
        every, life = self._new(Phase), self._new(Lifecycle)
        self.life.add(life)
        phases = [p for p in every if not self.repeats(p)]
        metrics = [m for m in self._new(Metric) if not self.repeats(m)]
        updates = [u for u in self._new(Update) if not self.repeats(u)]
        for p in every:
            self._recent[p.task].append(p)
            self._heard[p.task] = max(p.end, self._heard.get(p.task, 0.0))
        self.unsure |= {c.task: c.unsure for c in self._new(Clock)}
        self._start_clock(phases, over)
        for m in metrics:
            if m.name == "loss" or m.name.endswith(" loss"):
                self._losses[m.name].add(m)
                self._newest = max(m.step, self._newest)
                if not math.isfinite(m.value):
                    self.not_finite = min(self.not_finite or m, m, key=lambda m: m.step)
            elif m.name == "accuracy":
                self._accuracy.add(m)
            elif m.name in USELESS:
                self._gradients += m.name == "overflow"  # recorded of each
                self._useless[m.name] += m.value == 1
        self.dropped += len(self._new(Dropped))
        self.memory = measures.with_memory(self.memory, metrics)
        self.updates.add(updates)
        self.reductions.add(phases, updates)
        self._account(over)
        early = list(self._early)
        self.by_name = {name: each.curve(self.zero, early) for name, each in self._losses.items()}
        self.losses = self.by_name.get("loss", next(iter(self.by_name.values()), EMPTY))
        self.accuracies = self._accuracy.curve(self.zero)
        self.over = self.over or over
        moments = [e.at for events in (life, metrics, updates) for e in events]
        if news := [*(p.end for p in every), *moments]:
            self.seconds = max(self.seconds, *news)
            self._ahead = min(self._ahead, time.monotonic() - self.seconds)
            self.events += len(news)

    def _new(self, kind: type[E]) -> list[E]:
        new = self.trace.since(kind, self._read[kind])
        self._read[kind] += len(new)
        return new

    def _start_clock(self, phases: Sequence[Phase], over: bool) -> None:
        for p in phases:
            if p.step != self._first.setdefault(p.task, p.step):
                self._second.setdefault(p.task, p.start)
            if p.what == "compute" and (p.end <= self.zero or p.step in self._early):
                self._early[p.step] = max(p.end, self._early.get(p.step, p.end))
        if math.isinf(self.zero):
            racers = [task for task in self._first if not task.startswith("ps:")]
            workers = [task for task in racers if task.startswith("worker:")]
            begun = [self._second[task] for task in workers or racers if task in self._second]
            if begun and (over or len(begun) >= (self.spec.workers if workers else 1)):
                self.zero = max(begun)
        self._early = {step: end for step, end in self._early.items() if end <= self.zero}

    def _account(self, over: bool) -> None:
        """Add up the waits and device times of the steps that are complete by now."""
        if math.isinf(self.zero):  # the clock has not started, and some worker may not have begun
            return
        paused = [task for task in self.spec.tasks if self.life.paused(task)]
        phases = self.reductions.complete([*paused, *self.lost], over)
        self._idle.add(phases, self.zero)
        spent: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for p in phases:
            if p.what == "compute" and p.end > self.zero and p.task.startswith("worker:"):
                slept = spent[p.step][p.task] + p.end - max(p.start, self.zero)
                # exchanges divide computing into parts: device time is spread over all of them
                spent[p.step][p.task] = min(slept, self._emulated(p))
        for tasks in spent.values():
            self._longest += max(tasks.values())
            for task, seconds in tasks.items():
                self._device[task] += seconds

    def _emulated(self, p: Phase) -> float:
        """The seconds for which a task slept in a phase, at most."""
        seed, factor = self.spec.seed, self.factor(p.task, p.start)
        times, late = Jitter.of(self.jitter(p.task, p.start)).of_step(seed, p.task, p.step)
        return factor * times * self.spec.device_ms / 1000 + late

    def factor(self, task: str, at: float = math.inf) -> float:
        """Return the factor by which a task was slowed: at the time `at`, or by default now."""
        order = self.life.last(task, "slowed", "full speed", before=at)
        return order.cause.factor if order else 1.0

    def jitter(self, task: str, at: float = math.inf) -> str:
        """Return the jitter of a task, "" for none: at the time `at`, or by default now."""
        order = self.life.last(task, "jittered", "steady", before=at)
        return order.cause.jitter if order else ""

    # --- what it says of the run as a whole ---

    @property
    def steps_done(self) -> int:
        """The number of batches' worth of examples that the run has used. Where batches may have
        other sizes, in a learner's own functions: of steps.
        """
        if self.spec.own_loop:
            return self._newest + 1
        examples = self.losses.examples
        # a run that goes on from another size of batch may use a few examples more
        steps = math.ceil(examples[-1] / self.spec.batch) if len(examples) else 0
        return min(steps, self.spec.steps)

    @property
    def idle(self) -> dict[str, float]:
        """Task -> share of its time since the clock started that it waited for others.

        In a reduction a worker waits for the last worker whose gradient goes into the same update.
        In an asynchronous run only the phases `wait` that the strategy itself records are waits.
        """
        return self._idle.share

    @property
    def overhead(self) -> float | None:
        """Share of the time since the clock started that was neither emulated device time nor
        waiting for others, but work of the machine itself or queueing for it. None without emulated
        devices.

        In lockstep a step lasts as long as its slowest worker takes. So the longest device time of
        each step is subtracted from the time of the whole run, and the rest is overhead. Otherwise
        the overhead of each worker is computed from its own time, and the largest is returned.
        """
        spans = {task: self._idle.spans[task] for task in list(self._device)}
        if not self.spec.device_ms or not spans:
            return None
        if self.reductions.lockstep:
            whole = max(last for _, last in spans.values()) - min(a for a, _ in spans.values())
            return 1 - self._longest / whole
        idle, seconds = self.idle, {task: last - first for task, (first, last) in spans.items()}
        return max(1 - idle[task] - self._device[task] / seconds[task] for task in spans)

    @property
    def diverged(self) -> str:
        """A sentence: since when the loss is NaN or infinite, or why a fixed loss scale trains
        nothing, and the cure. Empty if all is well.
        """
        if first := self.not_finite:
            became = f"The {first.name} of {first.task} became {first.value:g} in step {first.step}"
            wider = ", or precision=bfloat16" if self.spec.precision == "float16" else ""
            return f"{became}: lower learning_rate{wider}."
        count = self._gradients if self.spec.loss_scale != "dynamic" else 0
        for name, words in USELESS.items():
            if ENOUGH <= count == self._useless[name]:
                return f"All {count} gradients so far {words}."
        return ""

    @property
    def lost(self) -> list[str]:
        """The tasks that the run has gone on without."""
        return [task for task in self.spec.tasks if self.life.state(task) == "lost"]

    # --- what it says of the last few steps ---

    @property
    def tasks(self) -> list[str]:
        """Tasks that have a lane: workers first, then a chief if it records anything, then
        parameter servers.
        """
        every = self.spec.tasks
        workers = [task for task in every if task.startswith("worker:")]
        others = [task for task in every if task in self._recent or task.startswith("ps:")]
        return list(dict.fromkeys([*workers, *others]))

    def latest(self, task: str, count: int) -> list[Phase]:
        """The last phases of a task, as recorded."""
        return list(self._recent.get(task, ()))[-count:]

    def recent(self, since: float) -> list[Phase]:
        """The phases of all lanes that end after `since`, with each `reduce` split into the wait
        and the exchange where workers meet.
        """
        kept: list[Phase] = []
        for task in self.tasks:
            newest_first = reversed(self.latest(task, DRAWN))
            kept += itertools.takewhile(lambda p: p.end > since, newest_first)
        return self.reductions.latest(kept[::-1], since)

    def fates(self, task: str) -> list[tuple[str, float, float]]:
        """The times in which a task did not go on: (one of `HALTS`, start, end), where the end is
        infinity if it still lasts. A task is `cut` if its host is.
        """
        both = (f"host:{self.spec.places[task]}", task)
        return [(span.state, span.start, span.end) for span in self.life.of(both, *HALTS)]

    def step_seconds(self) -> float:
        """Mean seconds of the last ten steps of the slowest worker; 0 before the first."""
        slowest = 0.0
        for task in list(self._recent):
            if task.startswith(("worker:", "chief:")):
                phases, starts = self.latest(task, DRAWN), dict[int, float]()
                for p in reversed(phases):
                    starts[p.step] = p.start
                    if len(starts) > 10:
                        break
                first, *others = sorted(starts.values())
                last = others[-1] if others else phases[-1].end
                slowest = max(slowest, (last - first) / max(1, len(others)))
        return slowest

    def edge(self) -> float:
        """The time up to which lanes can be shown, in seconds of the trace.

        A phase is recorded when it ends, so each active task is known up to the end of its last
        phase, and lanes are shown up to the earliest of these ends. A task that has long recorded
        nothing no longer holds the lanes back.
        """
        heard = dict(self._heard)
        if self.over:
            last = self.life.of(None, *HALTS, "raised", "left", "exhausted")
            ends = [*heard.values(), *(span.start + self.step_seconds() for span in last)]
            return max(ends, default=self.seconds)
        gone = [t for t in heard if self.life.paused(t) or self.life.state(t) in ENDS]
        active = [t for t in heard if not t.startswith("ps:") and t not in gone]
        long_ago = time.monotonic() - self._ahead - max(1.0, 3 * self.step_seconds())
        return max(min(map(heard.__getitem__, active), default=self.seconds), long_ago)
