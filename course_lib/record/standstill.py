"""Who waits for whom in a run that goes on. Beats tell what each task entered last
(`beats.py`), events what was done to tasks and hosts and how long steps usually take.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from course_lib.activity import Activity, sentence
from course_lib.record import calls
from course_lib.record.beats import Beat
from course_lib.record.digest import Digest
from course_lib.record.events import ACTIVE, STATES, Phase, end_of
from course_lib.record.life import Span
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
        """Who waits for whom, and why."""
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

    def describe(self) -> dict[str, Activity]:
        """Task -> what it does.

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
            since = max([*(stop.start for stop in stops), *(self.since[task] for task in free)])
            certain = not all(map(_lasts, stops))
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
            steps = f" (its steps usually take {usual:.1f} s)" if usual else ""
            found[task] = Activity(
                f"has been {self._in(task) or 'computing'} for {age:.0f} s{steps}"
            )
        others = {task: self._does(task, found) for task in active if task not in found}
        since = max(self.since[task] for task in active)
        return Standstill(since, self.now - since, found | others, certain=False)

    def slow_going(self, services: tuple[str, ...]) -> Standstill | None:
        """That no task has moved for long, though it will: one computes, or its connections are
        being made again, since its host was healed. None if one has moved.
        """
        active = [task for task in self.busy if not task.startswith(services)]
        free = [task for task in active if task not in self.stopped]
        if not free or not all(map(self.silent, free)):
            return None
        since, does, kind = max(self.since[task] for task in free), self.describe(), STEPLESS
        healed = [s for n in self.digest.spec.all_hosts if (s := self._healed(n, since))]
        if healed:
            since, kind = max(span.start for span in healed), JOINING
            joined = {s.who: Activity(f"is joined again with {s.who}") for s in healed}
            hosts = {t: _host(n) for t, n in self.digest.spec.places.items() if t in free}
            back = {t: joined[host] for t, host in hosts.items() if host in joined}
            does = back | {t: self._does(t, back) for t in free if t not in back}
        return Standstill(since, self.now - since, does, certain=False, kind=kind)

    def restarting(self) -> Standstill | None:
        """That no task moves while some are being started again; None if none is."""
        life, absent = self.digest.life, set(self.digest.spec.tasks).difference(self.busy)
        orders = {
            task: order.start
            for task in self.digest.spec.tasks
            if task in absent and life.state(task) in ACTIVE
            if (order := life.last(task, "restarting"))
        }
        if not orders or not all(map(self.silent, self.busy)):
            return None
        since, does = min(orders.values()), dict.fromkeys(orders, Activity("is starting again"))
        return Standstill(since, self.now - since, does, certain=False, kind=STEPLESS)

    def _healed(self, host: int, since: float) -> Span | None:
        last = self.digest.life.last(_host(host), "cut", "healed")
        return last if last and last.state == "healed" and last.start >= since else None

    def going_on(self, still: Standstill | None = None) -> list[Phase]:
        """The phases that are not over. Who may be waiting, and has been silent, does wait; so does
        who leaves no beats, as workers under a chief, if the run is `still` and that is why.
        """
        found = [
            Phase(task, beat.step, self._kind(task), beat.since, self.now)
            for task in self.busy
            if (beat := self.beats[task]).what and beat.since < self.now
        ]
        known, does = {p.task for p in found}, still.does if still else {}
        waits = [task for task in self.busy if task in does and does[task].awaits]
        return found + [
            Phase(task, does[task].step, "wait", self.since[task], self.now)
            for task in waits
            if task not in known
        ]

    def _kind(self, task: str) -> str:
        beat = self.beats[task]
        if beat.number:
            return "wait" if self.silent(task) else "reduce"
        return "wait" if beat.what in WAITS and self.silent(task) else beat.what

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
        phases, life = self.recent[task], self.digest.life
        ended = phases[-1].end if phases else 0.0
        state = life.last(task, *STATES, "paused", "resumed")
        return max(self.beats[task].since, ended, state.start if state else 0.0)

    def _in(self, task: str) -> str:
        """What a task is in: "in compute of step 3"."""
        beat = self.beats[task]
        if beat.number:
            return f"in {calls.words(beat)}"
        if beat.what and self.digest.spec.strategy == "custom":
            return f"in {beat.what} of your function, step {beat.step},"
        return f"in {beat.what} of step {beat.step}" if beat.what else ""

    def _stop(self, task: str) -> Span | None:
        """The pause of a task, or the cut of its host, if it lasts."""
        host = _host(self.digest.spec.places[task])
        paused, cut = (self.digest.life.of(*halt) for halt in ((task, "paused"), (host, "cut")))
        return next((span for span in (*paused, *cut) if math.isinf(span.end)), None)

    def _ends(self, task: str) -> Activity:
        """That a task is paused or cut off, and how to end that."""
        step, host = self.beats[task].step, self.digest.spec.places[task]
        if self.stopped[task].state == "cut":
            cure = f"{self.handle}.heal({host}) joins it again"
            return Activity(f"is cut off with {_host(host)}", step, cure=cure)
        return Activity("is paused", step, cure=f"{self.handle}.resume({task!r}) lets it go on")

    def _slowed(self, task: str) -> Activity | None:
        """Why a task takes long over what it is in, and how to end that; None if nothing is known
        to hold it up.
        """
        beat, handle = self.beats[task], self.handle
        if not self.silent(task) or beat.what in WAITS or beat.number:
            return None
        slowed = self.digest.life.last(task, "slowed", "full speed")
        if slowed and slowed.cause.factor > 1 and slowed.start:
            return Activity(
                f"was {slowed.cause.words}", cure=f"{handle}.slow({task!r}, 1) ends that"
            )
        if (late := self._late(task)) > SILENT:
            ends = f"{handle}.jitter({task!r}, None) ends that from the next step on"
            return Activity(f"is delayed by {late:.1f} s of jitter", cure=ends)
        return None

    def _late(self, task: str) -> float:
        """Seconds by which jitter delays the step that a task is in."""
        step, spec = max(0, self.beats[task].step), self.digest.spec
        times, late = Jitter.of(self.digest.jitter(task)).of_step(spec.seed, task, step)
        return (times - 1) * spec.device_ms / 1000 + late

    def _does(self, task: str, waits_for: Mapping[str, Activity]) -> Activity:
        """What a task does that nothing holds up but others."""
        beat, phases = self.beats[task], self.recent[task]
        if waits_for and self.silent(task):
            return Activity("waits", beat.step, tuple(waits_for))
        if inside := self._in(task):
            age = self.now - self.since[task]
            long = self.silent(task) and beat.what not in WAITS and not beat.number
            return Activity(f"has been {inside} for {age:.0f} s" if long else f"is {inside}")
        if beat.since > 0 and not phases:
            return Activity(f"left its last call {self.now - beat.since:.1f} s ago")
        if phases:
            last = f"'{phases[-1].what}' of step {phases[-1].step}"
            return Activity(f"has finished {last}, and nothing since")
        return Activity("has recorded nothing so far")


def _lasts(stop: Span) -> bool:
    """Whether a fault of the spec stopped the task, and ends by itself."""
    return bool(stop.cause.fault) and bool(Fault.of(stop.cause.fault).lasts)


def _host(number: int) -> str:
    return f"host:{number}"
