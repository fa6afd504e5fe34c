"""Standstill of a run that goes on: which tasks wait, for whom, and why. Beats tell what each task
entered last (`beats.py`), events what was done to tasks and hosts and how long steps usually take.
A `Monitor` reads both from the files of a run: the process that started the run has one, and so has
any that only knows its directory.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from course_lib.activity import Activity, sentence
from course_lib.errors import TaskFailed
from course_lib.record.beats import CURE, Beat, Beats, call_words, endless
from course_lib.record.digest import Digest
from course_lib.record.events import STATES, Phase
from course_lib.record.life import Span
from course_lib.record.rundir import RunDir
from course_lib.spec.faults import Fault
from course_lib.spec.fields import Jitter

SILENT = 1.0  # seconds in the same thing after which a task may be waiting,
SOON = 0.5  # or in an exchange or wait, if it is known how long its steps usually take;
STEPS = 3  # but never less than so many of its own steps
RECENT = 50  # phases that tell how long its steps are
WAITS = ("reduce", "wait", "the graph")  # in these a task may wait for others
STANDING, STEPLESS = "standing still", "without a step"
SETTLED = {"running", "done", "lost"}  # while a task is in another state, it is still to come


class Standstill(NamedTuple):
    """Nobody in a run has moved for so many `seconds`, `since` a time of its trace.

    `does`: what each task does, whoever is the cause first. `certain`: the run will not go on
    by itself. `cure`: what to do, where `does` does not say so. `kind`: `STANDING`; a board and
    `lockstep watch` also tell of runs that are `STEPLESS`, as somebody takes long over a step.
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


class TaskNow:
    """A task at the moment `now`. `phases`: its last ones; `since` when it has been in the same
    thing, for `age` seconds: longer than its steps usually take if it is `silent`. `waits`: it may
    be waiting for others. `stop`: its pause, or the cut of its host, if that lasts.
    """

    def __init__(self, name: str, beat: Beat, digest: Digest, now: float) -> None:
        life, spec = digest.life, digest.spec
        self.name, self.beat, self.phases = name, beat, digest.latest(name, RECENT)
        state = life.last(name, *STATES, "paused", "resumed")
        ends = [phase.end for phase in self.phases[-1:]]
        self.since = max(beat.since, state.start if state else 0.0, *ends)
        self.age = now - self.since
        self.waits = beat.what in WAITS or beat.number > 0
        starts = {phase.step: phase.start for phase in reversed(self.phases)}
        usual = float(np.median(-np.diff([*starts.values()]))) if len(starts) > 1 else 0.0
        # workers under a chief leave no beats: what they have ended is all that is known
        exchanges = beat.what in WAITS or (not beat.what and spec.chief)
        least = SOON if exchanges and usual else SILENT
        self.silent = self.age > max(least, STEPS * usual)
        halts = life.of(name, "paused") + life.of(f"host:{spec.places[name]}", "cut")
        self.stop = next((span for span in halts if math.isinf(span.end)), None)

    @property
    def inside(self) -> str:
        """Its phase or call in words, "in compute of step 3"; "" if it is in none."""
        if self.beat.number:
            return f"in {call_words(self.beat)}"
        return f"in {self.beat.what} of step {self.beat.step}" if self.beat.what else ""


class Snapshot:
    """The tasks of a run at a moment `now` of its trace.

    `beats`: what each task is in, in times of the trace; `busy`: the tasks that run; `services`:
    the jobs that serve the others; `handle`: what the run is called in the cures. Of the busy
    tasks, `causes` are those that are paused or cut off, then the slowed that are silent, with what
    they do; `free` are those that serve nobody and are not stopped.
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
        self.busy = {task: TaskNow(task, beats[task], digest, now) for task in busy}
        self.stopped = {task: it.stop for task, it in self.busy.items() if it.stop}
        self.causes = {task: self._ends(task, stop) for task, stop in self.stopped.items()}
        for task, it in self.busy.items():
            if task not in self.causes and (slowed := self._slowed(it)):
                self.causes[task] = slowed
        active = [task for task in self.busy if not task.startswith(services)]
        self.free = [self.busy[task] for task in active if task not in self.stopped]

    # --- why nobody moves ---

    def describe(self) -> dict[str, Activity]:
        """Map each task to its activity.

        Those that are the cause come first; they hold up all others that have fallen silent. A
        server is named only if it is a cause.
        """
        others = [t for t in self.busy if t not in self.causes and not t.startswith("ps:")]
        return self.causes | {task: self._does(self.busy[task]) for task in others}

    def standstill(self, kept: Mapping[str, Sequence[Beat]]) -> Standstill | None:
        """Explain why nobody moves; None if somebody may. `kept`: the latest calls of each task."""
        stops = self.stopped.values()
        if stops and all(it.silent and it.name not in self.causes for it in self.free):
            since = max([*(stop.start for stop in stops), *(it.since for it in self.free)])
            certain = not all(map(_ends_by_itself, stops))
            still, least = Standstill(since, self.now - since, self.describe(), certain), SOON
        else:
            does = endless(self.beats, kept, set(self.beats).difference(self.busy))
            since = max((self.busy[t].since for t in does if t in self.busy), default=self.now)
            still, least = Standstill(since, self.now - since, does, cure=CURE), SILENT
        return still if still.seconds > least else None

    def slow_going(self) -> Standstill | None:
        """Explain that no task has moved for long, though it will; None if one has moved."""
        if not self.free or not all(it.silent for it in self.free):
            return None
        since = max(it.since for it in self.free)
        return Standstill(since, self.now - since, self.describe(), certain=False, kind=STEPLESS)

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

    def _ends(self, task: str, stop: Span) -> Activity:
        """Say that a task is paused or cut off, and how to end that."""
        step = self.beats[task].step
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

    def _does(self, it: TaskNow) -> Activity:
        """Describe a task that nothing holds up but others."""
        if self.causes and it.silent:
            return Activity("waits", it.beat.step, tuple(self.causes))
        if it.inside:
            long = it.silent and not it.waits
            return Activity(
                f"has been {it.inside} for {it.age:.0f} s" if long else f"is {it.inside}"
            )
        if it.phases:
            last = f"'{it.phases[-1].what}' of step {it.phases[-1].step}"
            return Activity(f"has finished {last}, and nothing since")
        return Activity(f"has entered nothing for {it.age:.1f} s")


def _ends_by_itself(stop: Span) -> bool:
    """Tell whether a fault of the spec stopped the task, for some seconds."""
    return bool(stop.cause.fault) and bool(Fault.of(stop.cause.fault).lasts)


class Monitor:
    """Watches a live run, whose owner keeps these task `states` up to date. `make`: see `Beats`."""

    def __init__(
        self, files: RunDir, digest: Digest, states: Mapping[str, str], make: bool = True
    ) -> None:
        self._digest, self._states = digest, states
        self._beats = Beats(files.beats, files.spec.tasks, make)
        self._origin, self._services = files.facts.origin, files.facts.services

    def snapshot(self, busy: Iterable[str] | None = None, handle: str = "run") -> Snapshot:
        """Return the run as it is now; `busy`: its tasks that run, where others are meant."""
        if busy is None:
            busy = self._running()
        self._digest.update()
        beats = {task: self._beats.now(task) for task in self._digest.spec.tasks}
        beats = {t: beat._replace(since=beat.since - self._origin) for t, beat in beats.items()}
        now = time.monotonic() - self._origin
        return Snapshot(self._digest, beats, busy, now, self._services, handle)

    def standstill(self) -> Standstill | None:
        """Explain why the run stands still; None if it moves, or if tasks are still to come."""
        moves = self._lively() or not self._settled()
        return None if moves else self.snapshot().standstill(self._calls())

    def pulse(self) -> Pulse:
        """Return the activity of the run at this moment."""
        if self._lively():
            return Pulse(time.monotonic() - self._origin, None)
        now, still = self.snapshot(), None
        if self._settled():
            still = now.standstill(self._calls()) or now.slow_going()
        return Pulse(now.now, still, now.going_on(still))

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
        if failure.task not in calls:
            return failure
        reason = f"{sentence(calls)}. {CURE}. {failure.task} ended with: {failure.reason}"
        traceback, log = failure.remote_traceback, failure.log_tail
        return TaskFailed(failure.task, failure.step, reason, traceback, log)

    def close(self) -> None:
        """The run is over; it can still be looked at."""
        self._beats.close()

    def _running(self) -> list[str]:
        return [task for task, state in [*self._states.items()] if state == "running"]

    def _settled(self) -> bool:
        return {*self._states.values()} <= SETTLED

    def _lively(self) -> bool:
        """Tell whether all tasks that others wait for have entered something just now."""
        now = time.monotonic()
        active = [task for task in self._running() if not task.startswith(self._services)]
        return bool(active) and all(now - self._beats.now(task).since < SOON for task in active)

    def _calls(self) -> dict[str, list[Beat]]:
        return {task: self._beats.calls(task) for task in self._digest.spec.tasks}
