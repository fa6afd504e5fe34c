"""Standstill of a run that goes on: which tasks wait, for whom, and why. Beats tell what each task
entered last (`beats.py`), events what was done to tasks and hosts and how long steps usually take.
"""

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.activity import Activity, sentence
from course_lib.errors import TaskFailed
from course_lib.record.beats import CURE, Beat, Beats, call_words, endless
from course_lib.record.digest import Digest
from course_lib.record.events import ACTIVE, STATES, Phase, end_of
from course_lib.record.life import Span
from course_lib.record.rundir import RunDir
from course_lib.record.trace import Trace
from course_lib.spec.faults import Fault
from course_lib.spec.jitter import Jitter

SILENT = 1.0  # seconds in the same thing after which a task may be waiting,
SOON = 0.5  # or in an exchange or wait, if it is known how long its steps usually take;
STEPS = 3  # but never less than so many of its own steps
RECENT = 50  # phases that tell how long its steps are
LONG, LONG_STEPS = 10.0, 20  # the same, after which a task that others wait for may never go on
WAITS = ("reduce", "wait", "the graph")  # in these a task may wait for others
STANDING, STEPLESS, JOINING = "standing still", "without a step", "connecting again"


class Standstill(NamedTuple):
    """Nobody in a run has moved for so many `seconds`, `since` a time of its trace.

    `does`: what each task does, whoever is the cause first. `certain`: the run will not go on
    by itself. `cure`: what to do, where `does` does not say so. `kind`: `STANDING`; a board and
    `lockstep watch` also tell of runs that are `STEPLESS`, as somebody takes long over a step, or
    that are `JOINING`, since a host was healed.
    """

    since: float
    seconds: float
    does: Mapping[str, Activity]
    certain: bool = True
    cure: str = ""
    kind: str = STANDING

    @property
    def words(self) -> str:
        """The sentence that names who waits for whom, and why."""
        return sentence(self.does)

    @property
    def brief(self) -> str:
        return f"{self.kind} for {self.seconds:.1f} s"


class Pulse(NamedTuple):
    """A live run at the moment `now` of its trace: why nobody moves, None if somebody does, and
    what its tasks are in. `going_on` has the phases that are not over, with `now` as their end.
    """

    now: float
    still: Standstill | None
    going_on: Sequence[Phase] = ()


@dataclass(frozen=True)
class TaskNow:
    """A task at a moment. `phases`: its last ones; `usual`: the median seconds of its steps, 0 if
    that is not known; `since` when it has been in the same thing, for `age` seconds: longer than
    its steps usually take if it is `silent`. `waits`: it may be waiting for others. `inside`: in
    words, "in compute of step 3". `stop`: its pause, or the cut of its host, if that lasts.
    """

    name: str
    beat: Beat
    phases: Sequence[Phase]
    usual: float
    since: float
    age: float
    waits: bool
    silent: bool
    inside: str
    stop: Span | None


class Snapshot:
    """The tasks of a run at a moment `now` of its trace.

    `beats`: what each task is in, in times of the trace; `busy`: the tasks that run; `services`:
    the jobs that serve the others; `handle`: what the run is called in the cures. Of the busy
    tasks, `held` are those that are paused or cut off, then the slowed that are silent; `free` are
    those that serve nobody and are not stopped.
    """

    def __init__(
        self,
        digest: Digest,
        beats: Mapping[str, Beat],
        busy: Iterable[str],
        now: float,
        services: tuple[str, ...] = ("ps",),
        handle: str = "run",
    ) -> None:
        self.digest, self.beats, self.now, self.handle = digest, beats, now, handle
        self.busy = {task: self._task(task) for task in busy}
        self.stopped = {task: it.stop for task, it in self.busy.items() if it.stop}
        slowed = {task: why for task, it in self.busy.items() if (why := self._slowed(it))}
        self.held = {task: self._ends(task) for task in self.stopped}
        self.held |= {task: why for task, why in slowed.items() if task not in self.stopped}
        active = [task for task in self.busy if not task.startswith(services)]
        self.free = [self.busy[task] for task in active if task not in self.stopped]

    def _task(self, name: str) -> TaskNow:
        beat, life, spec = self.beats[name], self.digest.life, self.digest.spec
        phases = self.digest.latest(name, RECENT)
        if not phases and name.startswith("chief"):  # it may only hand out work
            every = [p for other in self.beats for p in self.digest.latest(other, RECENT)]
            phases = sorted(every, key=end_of)[-RECENT:]
        begun: dict[int, float] = {}
        for p in phases:
            begun.setdefault(p.step, p.start)
        usual = statistics.median([b - a for a, b in itertools.pairwise(begun.values())] or [0.0])
        state = life.last(name, *STATES, "paused", "resumed")
        since = max(beat.since, state.start if state else 0.0, *(p.end for p in phases[-1:]))
        # workers under a chief leave no beats: what they have ended is all that is known
        exchanges = beat.what in WAITS or (not beat.what and spec.chief)
        least = SOON if exchanges and usual else SILENT
        halts = life.of(name, "paused") + life.of(f"host:{spec.places[name]}", "cut")
        return TaskNow(
            name,
            beat,
            phases,
            usual,
            since,
            self.now - since,
            beat.what in WAITS or beat.number > 0,
            self.now - since > max(least, STEPS * usual),
            self._inside(beat),
            next((span for span in halts if math.isinf(span.end)), None),
        )

    def _inside(self, beat: Beat) -> str:
        if beat.number:
            return f"in {call_words(beat)}"
        if beat.what and self.digest.spec.strategy == "custom":
            return f"in {beat.what} of your function, step {beat.step},"
        return f"in {beat.what} of step {beat.step}" if beat.what else ""

    # --- why nobody moves ---

    def describe(self) -> dict[str, Activity]:
        """Map each task to its activity.

        Those that are held come first; they hold up all others that have fallen silent. A server is
        named only if it is held.
        """
        others = [it for task, it in self.busy.items() if not task.startswith("ps:")]
        return self._with_others(self.held, others)

    def standstill(self, kept: Mapping[str, Sequence[Beat]]) -> Standstill | None:
        """Explain why nobody moves; None if somebody may. `kept`: the latest calls of each task."""
        stops, free = self.stopped.values(), self.free
        does, certain, cure, least = self.describe(), True, "", SOON
        if stops and all(it.silent and it.name not in self.held for it in free):
            since = max([*(stop.start for stop in stops), *(it.since for it in free)])
            certain = not all(map(_ends_by_itself, stops))
        elif calls := endless(self.beats, kept, set(self.beats).difference(self.busy)):
            does, cure, least = calls, CURE, SILENT
            since = max((self.busy[t].since for t in does if t in self.busy), default=self.now)
        else:
            return self._computing()
        still = Standstill(since, self.now - since, does, certain, cure)
        return still if still.seconds > least else None

    def _computing(self) -> Standstill | None:
        """Explain that all tasks wait for others which compute, and have done so for very long."""
        late = {it.name: it for it in self.free if not it.waits}
        if len(late) in (0, len(self.free)) or not all(it.silent for it in self.free):
            return None
        if any(it.age < max(LONG, LONG_STEPS * it.usual) for it in late.values()):
            return None
        if self.held.keys() & late.keys():
            return None
        does = {}
        for task, it in late.items():
            steps = f" (its steps usually take {it.usual:.1f} s)" if it.usual else ""
            does[task] = Activity(f"has been {it.inside or 'computing'} for {it.age:.0f} s{steps}")
        since = max(it.since for it in self.free)
        every = self._with_others(does, self.free)
        return Standstill(since, self.now - since, every, certain=False)

    def slow_going(self) -> Standstill | None:
        """Explain that no task has moved for long, though it will: one computes, or connects again
        since its host was healed. None if one has moved.
        """
        if not self.free or not all(it.silent for it in self.free):
            return None
        life, places = self.digest.life, self.digest.spec.places
        since, does, kind = max(it.since for it in self.free), self.describe(), STEPLESS
        joined: dict[str, Span] = {}
        for it in self.free:
            last = life.last(f"host:{places[it.name]}", "cut", "healed")
            if last and last.state == "healed" and last.start >= since:
                joined[it.name] = last
        if joined:
            since, kind = max(span.start for span in joined.values()), JOINING
            back = {t: Activity(f"is joined again with {span.who}") for t, span in joined.items()}
            does = self._with_others(back, self.free)
        return Standstill(since, self.now - since, does, certain=False, kind=kind)

    def restarting(self) -> Standstill | None:
        """Explain that no task moves while some are being started again; None if none is."""
        life = self.digest.life
        absent = [task for task in self.digest.spec.tasks if task not in self.busy]
        orders = {
            task: order.start
            for task in absent
            if life.state(task) in ACTIVE and (order := life.last(task, "restarting"))
        }
        if not orders or not all(it.silent for it in self.busy.values()):
            return None
        since, does = min(orders.values()), dict.fromkeys(orders, Activity("is starting again"))
        return Standstill(since, self.now - since, does, certain=False, kind=STEPLESS)

    def going_on(self, still: Standstill | None = None) -> list[Phase]:
        """Return the phases that are not over. Who may be waiting, and has been silent, does wait;
        so does who leaves no beats, as workers under a chief, if the run is `still` for that.
        """
        phases, does = [], still.does if still else {}
        for task, it in self.busy.items():
            if it.beat.what and it.beat.since < self.now:
                kind = "reduce" if it.beat.number else it.beat.what
                kind = "wait" if it.waits and it.silent else kind
                phases.append(Phase(task, it.beat.step, kind, it.beat.since, self.now))
            elif task in does and does[task].awaits:
                phases.append(Phase(task, does[task].step, "wait", it.since, self.now))
        return phases

    # --- what a task does ---

    def _ends(self, task: str) -> Activity:
        """Say that a task is paused or cut off, and how to end that."""
        step, stop = self.beats[task].step, self.stopped[task]
        if stop.state == "cut":
            cure = f"{self.handle}.heal({stop.who.removeprefix('host:')}) joins it again"
            return Activity(f"is cut off with {stop.who}", step, cure=cure)
        return Activity("is paused", step, cure=f"{self.handle}.resume({task!r}) lets it go on")

    def _slowed(self, it: TaskNow) -> Activity | None:
        """Say why a task takes long over what it is in, and how to end that; None if nothing is
        known to hold it up.
        """
        if not it.silent or it.waits:
            return None
        slowed = self.digest.life.last(it.name, "slowed", "full speed")
        if slowed and slowed.cause.factor > 1 and slowed.start:
            ends = f"{self.handle}.slow({it.name!r}, 1) ends that"
            return Activity(f"was {slowed.cause.words}", cure=ends)
        step, spec = max(0, it.beat.step), self.digest.spec
        jitter = Jitter.of(self.digest.jitter(it.name))
        times, late = jitter.of_step(spec.seed, it.name, step)
        if (late := late + (times - 1) * spec.device_ms / 1000) > SILENT:
            ends = f"{self.handle}.jitter({it.name!r}, None) ends that from the next step on"
            return Activity(f"is delayed by {late:.1f} s of jitter", cure=ends)
        return None

    def _with_others(
        self, causes: Mapping[str, Activity], others: Iterable[TaskNow]
    ) -> dict[str, Activity]:
        """Describe the causes, and after them all others, of which the silent wait for them."""
        return {**causes, **{t.name: self._does(t, causes) for t in others if t.name not in causes}}

    def _does(self, it: TaskNow, waits_for: Mapping[str, Activity]) -> Activity:
        """Describe a task that nothing holds up but others."""
        if waits_for and it.silent:
            return Activity("waits", it.beat.step, tuple(waits_for))
        if it.inside:
            long = it.silent and not it.waits
            return Activity(
                f"has been {it.inside} for {it.age:.0f} s" if long else f"is {it.inside}"
            )
        if it.beat.since > 0 and not it.phases:
            return Activity(f"left its last call {self.now - it.beat.since:.1f} s ago")
        if it.phases:
            last = f"'{it.phases[-1].what}' of step {it.phases[-1].step}"
            return Activity(f"has finished {last}, and nothing since")
        return Activity("has recorded nothing so far")


def _ends_by_itself(stop: Span) -> bool:
    """Tell whether a fault of the spec stopped the task, for some seconds."""
    return bool(stop.cause.fault) and bool(Fault.of(stop.cause.fault).lasts)


class Monitor:
    """Watches a live run, whose owner keeps these task `states` up to date. `make`: see `Beats`."""

    def __init__(
        self,
        files: RunDir,
        digest: Digest,
        trace: Trace,
        states: Mapping[str, str],
        make: bool = True,
    ) -> None:
        self._digest, self._trace, self._states = digest, trace, states
        self._beats = Beats(files.beats, files.spec.tasks, make)
        self._origin, self._services = files.facts.origin, files.facts.services

    def snapshot(self, busy: Iterable[str] | None = None, handle: str = "run") -> Snapshot:
        """Return the run as it is now; `busy`: its tasks that run, where others are meant."""
        if busy is None:
            busy = self._running()
        self._digest.update(self._trace.refresh())
        beats = {task: self._beats.now(task) for task in self._digest.spec.tasks}
        beats = {t: beat._replace(since=beat.since - self._origin) for t, beat in beats.items()}
        now = time.monotonic() - self._origin
        return Snapshot(self._digest, beats, busy, now, self._services, handle)

    def standstill(self) -> Standstill | None:
        """Explain why the run stands still; None if it moves, or if tasks are still to come."""
        lively = self._lively() or not {*self._states.values()} <= {"running", "done", "lost"}
        return None if lively else self.snapshot().standstill(self._calls())

    def pulse(self) -> Pulse:
        """Return the activity of the run at this moment."""
        if self._lively():
            return Pulse(time.monotonic() - self._origin, None)
        now = self.snapshot()
        if {*self._states.values()} <= {"running", "done", "lost"}:
            still = now.standstill(self._calls()) or now.slow_going()
        else:
            still = now.restarting()
        return Pulse(now.now, still, now.going_on(still))

    def _running(self) -> list[str]:
        return [task for task, state in [*self._states.items()] if state == "running"]

    def _lively(self) -> bool:
        """Tell whether all tasks that others wait for have entered something just now."""
        now = time.monotonic()
        active = [task for task in self._running() if not task.startswith(self._services)]
        return bool(active) and all(now - self._beats.now(task).since < SOON for task in active)

    def named(self, failure: TaskFailed) -> TaskFailed:
        """Return a failure in the name of whoever is its cause, if the task that failed had waited
        in vain for one that was stopped or has returned, or if its call of a collective was not
        that of the other ranks.
        """
        now = self.snapshot(self._digest.spec.tasks)
        for task, stop in now.stopped.items() if failure.remote_traceback else ():
            was = "its host was cut off" if stop.state == "cut" else "it was paused"
            reason = f"{was}, and {failure.task} gave up waiting: {failure.reason}"
            step = now.beats[task].step
            return TaskFailed(task, step if step >= 0 else None, reason)
        over = [task for task, state in self._states.items() if state == "done"]
        calls = endless(now.beats, self._calls(), over)
        if failure.task in calls:
            reason = f"{sentence(calls)}. {CURE}. "
            reason += f"{failure.task} ended with: {failure.reason}"
            told = failure.remote_traceback, failure.log_tail
            return TaskFailed(failure.task, failure.step, reason, *told)
        return failure

    def close(self) -> None:
        """The run is over; it can still be looked at."""
        self._beats.close()

    def _calls(self) -> dict[str, list[Beat]]:
        return {task: self._beats.calls(task) for task in self._digest.spec.tasks}
