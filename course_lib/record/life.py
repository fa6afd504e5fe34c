"""Life: what happened to the tasks and hosts of a run, as spans of states. All that tells what
became of a task reads it here; the digest of a run keeps its life up to date.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_lib.record.events import STATES, Event, Lifecycle, Metric, Phase, Update, end_of
from course_lib.spec.run_spec import RunSpec

ENDS = ("done", "failed", "killed", "restarting", "lost")  # states in which a process is over
HALTS = ("paused", "killed", "cut")  # states in which a task does not go on
# state -> the aspect of a task or host that it is a state of, "" for a moment; and its word on
# pictures, "" if it has none. In each aspect a task or host has one state at a time.
_STATES = {
    "starting": ("process", ""),
    "running": ("process", ""),
    "done": ("process", ""),
    "failed": ("process", "fail"),
    "killed": ("process", "kill"),
    "restarting": ("process", "restart"),
    "lost": ("part", "lost"),
    "paused": ("halt", "pause"),
    "resumed": ("halt", "resume"),
    "slowed": ("pace", "slow"),
    "full speed": ("pace", "full speed"),
    "jittered": ("jitter", "jitter"),
    "steady": ("jitter", "jitter"),
    "linked": ("link", "link"),
    "cut": ("connection", "cut"),
    "healed": ("connection", "heal"),
    "raised": ("", "raise"),
    "left": ("", "exit"),
    "exhausted": ("", "oom"),
}
APART = 0.1  # seconds within which the same done to several is one mark


@dataclass(slots=True)
class Span:
    """A state of a task or host from `start` to `end`: infinity while it lasts, the same as `start`
    for a moment, such as an exception that was raised. `cause`: the event that began it. `attempt`:
    that of the task.

    A state is that of the event; but a task that is slowed no longer is at "full speed", and one
    without jitter is "steady".
    """

    who: str
    state: str
    start: float
    end: float
    attempt: int
    cause: Lifecycle


class Mark(NamedTuple):
    """An order or a fault on a picture: `at` in seconds of the trace, in a `word`, and to `who`."""

    at: float
    word: str
    who: tuple[str, ...]


class Life:
    """The spans of all tasks and hosts of a run; `add` takes in events as they come."""

    def __init__(self, events: Iterable[Lifecycle] = ()) -> None:
        self.restarts = 0  # of the run
        self._spans: dict[str, list[Span]] = {}
        self._lasting: dict[tuple[str, str], Span] = {}  # by task or host and aspect
        self.add(events)

    def add(self, events: Iterable[Lifecycle]) -> None:
        """Take in events, those of one task or host in order of time."""
        for e in events:
            state = e.state
            if state == "slowed" and e.factor == 1:
                state = "full speed"
            elif state == "jittered" and not e.jitter:
                state = "steady"
            span = Span(e.task, state, e.at, e.at, e.attempt, e)
            aspect, _ = _STATES.get(state, ("", ""))
            if aspect:
                self._end(e, aspect)
                span.end = math.inf
                self._lasting[e.task, aspect] = span
            if state in ENDS:
                self._end(e, "halt")
            if state == "starting":
                self.restarts = max(self.restarts, e.attempt)
            self._spans.setdefault(e.task, []).append(span)

    def _end(self, e: Lifecycle, aspect: str) -> None:
        if before := self._lasting.pop((e.task, aspect), None):
            before.end = e.at

    def of(self, who: str | Collection[str] | None, *states: str) -> list[Span]:
        """Return the spans in these states, by default in all: of a task or host, of several, or of
        all (None), in order of their start.
        """
        names = [*self._spans] if who is None else [who] if isinstance(who, str) else who
        every = [span for name in names for span in self._spans.get(name, ())]
        chosen = [span for span in every if not states or span.state in states]
        return sorted(chosen, key=lambda span: span.start)

    def last(self, who: str, *states: str, before: float = math.inf) -> Span | None:
        """Return the span in one of these states that was the last to begin up to a time."""
        spans = reversed(self._spans.get(who, ()))
        return next((s for s in spans if s.state in states and s.start <= before), None)

    def state(self, task: str) -> str:
        """Return the present one of a task's `STATES`; "" before the first."""
        now = self.last(task, *STATES)
        return now.state if now else ""

    def attempt(self, task: str, at: float) -> int:
        """Return the attempt in which a task was at a time: 0 until it is started again."""
        started = self.last(task, "starting", before=at)
        return started.attempt if started else 0

    def paused(self, task: str) -> bool:
        halt = self._lasting.get((task, "halt"))
        return halt is not None and halt.state == "paused"

    def marks(self, who: Collection[str] | None = None) -> list[Mark]:
        """Return the marks of all tasks and hosts, or of those in `who`, in order of time. What the
        spec imposes from the start is no mark.
        """
        marks: list[Mark] = []
        for s in self.of(who):
            _, word = _STATES.get(s.state, ("", ""))
            if not word or s.start <= 0:
                continue
            word = f"slow \u00d7{s.cause.factor:g}" if s.state == "slowed" else word
            same = [m for m in marks if m.word == word and s.start - m.at < APART][:1]
            names = (*same[0].who, s.who) if same else (s.who,)
            mark = Mark(same[0].at if same else s.start, word, tuple(dict.fromkeys(names)))
            marks = [m for m in marks if m not in same] + [mark]
        return marks


def planned(spec: RunSpec) -> list[Lifecycle]:
    """Return what a spec imposes on its tasks, as orders given at the start."""
    slow = [Lifecycle(task, "slowed", "", 0.0, factor=f) for task, f in spec.slow.items()]
    forms = [(task, spec.jitter_of(task)) for task in spec.tasks]
    late = [Lifecycle(task, "jittered", "", 0.0, jitter=form) for task, form in forms if form]
    return slow + late


ABOUT = ("what", "name", "variables", "device", "workers")  # of one step


class Repeats:
    """Tells the events of steps that are done again after a restart. They come twice in a trace,
    and count once, as they were recorded first: so a curve does not go back, and an update is one
    update. `steps`: how many steps were computed again, by the task that did so most often.
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        # what an event is about -> the attempt that recorded it last, the newest step of that, and
        # the newest step of the attempts before
        self._newest: dict[tuple[Any, ...], tuple[int, int, int]] = {}
        self._computed: dict[str, set[tuple[int, int]]] = defaultdict(set)  # attempt, step

    @property
    def steps(self) -> int:
        return max(map(len, self._computed.values()), default=0)

    def __call__(self, event: Event) -> bool:
        """Tell whether an earlier attempt recorded the step of an event as well."""
        if not isinstance(event, Phase | Metric | Update):
            return False
        about = (type(event), event.task, *(getattr(event, f, "") for f in ABOUT))
        attempt = self._life.attempt(event.task, end_of(event))
        last, newest, before = self._newest.get(about, (attempt, -1, -1))
        if attempt > last:
            newest, before = -1, max(newest, before)
        self._newest[about] = attempt, max(newest, event.step), before
        if event.step > before:
            return False
        if isinstance(event, Phase) and event.what == "compute":
            self._computed[event.task].add((attempt, event.step))
        return True
