"""Who waits for whom in a run that goes on. Beats tell what each task entered last
(`record/beats.py`), events what was done to tasks and hosts and how long steps usually take.
"""

import itertools
import statistics
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from course_lib.cluster import calls
from course_lib.cluster.task import clock
from course_lib.errors import TaskFailed, clauses
from course_lib.faults import Fault
from course_lib.jitter import Jitter
from course_lib.network.layout import host_name
from course_lib.record.beats import Beat, Beats
from course_lib.record.digest import Digest
from course_lib.record.events import Lifecycle, Phase, end_of
from course_lib.record.rundir import RunDir
from course_lib.record.trace import Trace

SILENT = 1.0  # seconds in the same thing after which a task may be waiting,
SOON = 0.5  # or in an exchange or wait, if it is known how long its steps usually take;
STEPS = 3  # but never less than so many of its own steps
RECENT = 50  # phases that tell how long its steps are
LONG, LONG_STEPS = 10.0, 20  # the same, after which a task that others wait for may never go on
WAITS = ("reduce", "wait", "the graph")  # in these a task may wait for others


@dataclass(frozen=True)
class Standstill:
    """Nobody in a run has moved for so many `seconds`, `since` a time of its trace.

    `does`: task -> what holds it up or whom it waits for, a verb first; the `culprit` is the first.
    `certain`: the run will not go on by itself. `cure`: what to do, where `does` does not say so.
    """

    since: float
    seconds: float
    does: Mapping[str, str]
    certain: bool = True
    cure: str = ""

    @property
    def culprit(self) -> str:
        return next(iter(self.does))

    @property
    def words(self) -> str:
        return "; ".join(clauses(self.does))


class Look:
    """The tasks of a run at a moment `now` of its trace.

    `beats`: what each task is in, in times of the trace; `busy`: the tasks that run; `handle`: what
    the run is called in the cures. Of the busy tasks, `since` says when each was heard of last;
    `stopped` are those that are paused or cut off, `held` those and the slowed that are silent.
    """

    def __init__(
        self,
        digest: Digest,
        beats: Mapping[str, Beat],
        busy: Iterable[str],
        now: float,
        handle: str = "run",
    ) -> None:
        self.digest, self.beats, self.now, self.handle = digest, beats, now, handle
        self.busy = list(busy)
        self.recent = {task: self._recent(task) for task in self.busy}
        self.since = {task: self._since(task) for task in self.busy}
        self.stopped = {task: stop for task in self.busy if (stop := self._stop(task))}
        slowed = {task: why for task in self.busy if (why := self._slowed(task))}
        self.held = slowed | {task: self._ends(task) for task in self.stopped}

    def describe(self) -> dict[str, str]:
        """Task -> what it does: a verb and the rest, to be read after the task's name.

        Those that are held come first; they hold up all others that have fallen silent. A server is
        named only if it is held.
        """
        others = [t for t in self.busy if t not in self.held and not t.startswith("ps:")]
        first = sorted(self.held, key=lambda task: task not in self.stopped)
        held = {task: self.held[task] for task in first}
        return held | {task: self._does(task, held) for task in others}

    def standstill(
        self, services: tuple[str, ...], kept: Mapping[str, Sequence[Beat]]
    ) -> Standstill | None:
        """Why nobody moves; None if somebody may. `services`: the jobs that serve the others;
        `kept`: the latest calls of each task.
        """
        active = [task for task in self.busy if not task.startswith(services)]
        free = [task for task in active if task not in self.stopped]
        found, certain, cure, least = self.describe(), True, "", SOON
        if self.stopped and all(self.silent(task) and task not in self.held for task in free):
            stops = self.stopped.values()
            since = max([*(stop.at for stop in stops), *(self.since[task] for task in free)])
            certain = not all(stop.fault and Fault.of(stop.fault).lasts for stop in stops)
        elif endless := calls.endless(self.beats, kept, set(self.beats).difference(self.busy)):
            found, cure, least = endless, calls.CURE, SILENT
            since = max((self.since[t] for t in found if t in self.since), default=self.now)
        else:
            return self._computing(free)
        still = Standstill(since, self.now - since, found, certain, cure)
        return still if still.seconds > least else None

    def _computing(self, active: Sequence[str]) -> Standstill | None:
        """The standstill of tasks that all wait for others which compute, and for very long."""
        late = [t for t in active if self.beats[t].what not in WAITS and not self.beats[t].number]
        if late in ([], active) or not all(map(self.silent, active)) or set(late) & set(self.held):
            return None
        found = {}
        for task in late:
            usual, age = self._usual(task), self.now - self.since[task]
            if age < max(LONG, LONG_STEPS * usual):
                return None
            steps = f", and its steps usually take {usual:.1f} s" if usual else ""
            found[task] = f"has been {self._in(task) or 'computing'} for {age:.0f} s{steps}"
        others = {task: self._does(task, found) for task in active if task not in found}
        since = max(self.since[task] for task in active)
        return Standstill(since, self.now - since, found | others, certain=False)

    def silent(self, task: str) -> bool:
        """Whether a task has been in the same thing for longer than its steps usually take."""
        usual, what = self._usual(task), self.beats[task].what
        # workers under a chief leave no beats: what they have ended is all that is known
        waits = what in WAITS or (not what and self.digest.spec.chief)
        least = SOON if waits and usual else SILENT
        return self.now - self.since[task] > max(least, STEPS * usual)

    def _recent(self, task: str) -> list[Phase]:
        """The last phases of a task; of a chief, which may only hand out work, those of all."""
        mine = self.digest.latest(task, RECENT)
        if mine or not task.startswith("chief"):
            return mine
        every = [p for other in self.beats for p in self.digest.latest(other, RECENT)]
        return sorted(every, key=end_of)[-RECENT:]

    def _usual(self, task: str) -> float:
        """The median seconds of a task's recent steps; 0 if that is not known."""
        begun: dict[int, float] = {}
        for p in self.recent[task]:
            begun.setdefault(p.step, p.start)
        return statistics.median([b - a for a, b in itertools.pairwise(begun.values())] or [0.0])

    def _since(self, task: str) -> float:
        """When a task was heard of last: its beat, the end of a phase, or that it runs."""
        phases, state = self.recent[task], self.digest.states.get(task)
        ended = phases[-1].end if phases else 0.0
        return max(self.beats[task].since, ended, state.at if state else 0.0)

    def _in(self, task: str) -> str:
        """What a task is in: "in compute of step 3"."""
        beat = self.beats[task]
        if beat.number:
            return f"in {calls.words(beat)}"
        return f"in {beat.what} of step {beat.step}" if beat.what else ""

    def _stop(self, task: str) -> Lifecycle | None:
        """How a task was paused, or its host cut off, if that lasts."""
        host = host_name(self.digest.spec.places[task])
        paused, cut = (task, "paused", "resumed"), (host, "cut", "healed")
        last = (self.digest.last(*turns) for turns in (paused, cut))
        return next((event for event in last if event and event.state in ("paused", "cut")), None)

    def _ends(self, task: str) -> str:
        """How to end that a task is paused or cut off, and what it is in."""
        beat, host = self.beats[task], self.digest.spec.places[task]
        why = f"is paused ({self.handle}.resume({task!r}) lets it go on)"
        if self.stopped[task].state == "cut":
            cure = f"{self.handle}.heal({host}) joins it again"
            why = f"is on {host_name(host)}, which is cut off ({cure})"
        inside = self._in(task)
        return f"{why}, {inside} for {self.now - beat.since:.1f} s" if inside else why

    def _slowed(self, task: str) -> str | None:
        """How to end that a task takes long over what it is in; None if nothing is known to."""
        beat, handle = self.beats[task], self.handle
        if not self.silent(task) or beat.what in WAITS or beat.number:
            return None
        slowed = self.digest.last(task, "slowed")
        if slowed and slowed.factor > 1:
            return f"was {slowed.words} ({handle}.slow({task!r}, 1) ends that)"
        if (late := self._late(task)) > SILENT:
            ends = f"{handle}.jitter({task!r}, None) ends that from the next step on"
            return f"is delayed by {late:.1f} s of jitter ({ends})"
        return None

    def _late(self, task: str) -> float:
        """Seconds by which jitter delays the step that a task is in."""
        step, spec = max(0, self.beats[task].step), self.digest.spec
        times, late = Jitter.of(self.digest.jitter(task)).of_step(spec.seed, task, step)
        return (times - 1) * spec.device_ms / 1000 + late

    def _does(self, task: str, waits_for: Mapping[str, str]) -> str:
        """What a task does that nothing holds up but others."""
        beat, phases = self.beats[task], self.recent[task]
        step = f" (in step {beat.step})" if beat.step >= 0 else ""
        if waits_for and self.silent(task):
            return f"waits for {', '.join(waits_for)}{step}"
        if beat.number:
            return f"is in {calls.words(beat)}"
        if beat.what:
            return f"is in {beat.what}{step}"
        if beat.since > 0 and not phases:
            return f"left its last call {self.now - beat.since:.1f} s ago"
        if phases:
            return f"has finished '{phases[-1].what}' of step {phases[-1].step}, and nothing since"
        return "has recorded nothing so far"


class Lookout:
    """Looks at a live run with these task `states`, which its `Run` keeps up to date."""

    def __init__(self, files: RunDir, trace: Trace, states: Mapping[str, str]) -> None:
        self._trace, self._states, self._beats = trace, states, Beats(files.beats, files.spec.tasks)
        self._origin, self._services = files.facts.origin, files.facts.services
        self._digest, self._looking = Digest(files.spec), threading.Lock()

    def look(self, busy: Iterable[str] | None = None, handle: str = "run") -> Look:
        """The run as it is now; `busy`: its tasks that run, where others are meant."""
        if busy is None:
            busy = [task for task, state in self._states.items() if state == "running"]
        with self._looking:
            self._digest.look(self._trace.refresh())
        beats = {task: self._beats.now(task) for task in self._states}
        beats = {t: beat._replace(since=beat.since - self._origin) for t, beat in beats.items()}
        return Look(self._digest, beats, busy, clock() - self._origin, handle)

    def standstill(self) -> Standstill | None:
        """Why the run stands still; None if it moves, or if tasks are still to come."""
        states, now = dict(self._states), clock()
        busy = [task for task, state in states.items() if state == "running"]
        active = [task for task in busy if not task.startswith(self._services)]
        lively = active and all(now - self._beats.now(task).since < SOON for task in active)
        if lively or not {*states.values()} <= {"running", "done", "lost"}:
            return None
        return self.look(busy).standstill(self._services, self._calls())

    def named(self, failure: TaskFailed) -> TaskFailed:
        """A failure in the name of whoever is its cause, if the task that failed had waited in vain
        for one that was stopped, or if its call of a collective was not that of the other ranks.
        """
        look, kept = self.look(self._states), self._calls()
        for task, stop in look.stopped.items() if failure.remote_traceback else ():
            was = "its host was cut off" if stop.state == "cut" else "it was paused"
            reason = f"{was}, and {failure.task} gave up waiting: {failure.reason}"
            step = look.beats[task].step
            return TaskFailed(task, step if step >= 0 else None, reason)
        found = calls.endless(look.beats, kept)
        if failure.task in found:
            reason = f"{'; '.join(clauses(found))}. {calls.CURE}. "
            reason += f"{failure.task} ended with: {failure.reason}"
            told = failure.remote_traceback, failure.log_tail
            return TaskFailed(failure.task, failure.step, reason, *told)
        return failure

    def close(self) -> None:
        """The run is over; it can still be looked at."""
        self._beats.close()

    def _calls(self) -> dict[str, list[Beat]]:
        return {task: self._beats.calls(task) for task in self._states}
