"""The ledger of a run that is over: every gradient that was computed was applied exactly once, or
dropped for a reason. It is drawn up from the trace alone.

A gradient is what one task computed for one step, each time that it read examples for it. It has to
arrive wherever variables are: at each copy of the model, or each shard (see `measures.py`). One
that did not arrive at one of these places counts as dropped. A task that updates several variables
on one device has several optimizers: each of its updates applies a gradient of these variables
alone, which it computed before. Reasons:

    late        with backup workers, others made up the batch before it came
    overflow    in float16 it was infinite or NaN
    lost        its task was lost before it was applied
    unfinished  the run ended, or went back to a checkpoint, before it was applied

For the last two a task has one open gradient at most: its last one before its process ended. A
process that is killed takes the end of its record with it. What it is known to have computed, since
others have applied it, counts; what it may have applied to a copy that is gone does not.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from course_lib.record.events import Dropped, Lifecycle, Metric, Phase, Update
from course_lib.record.life import ENDS, Life
from course_lib.record.trace import Trace

CUT = 0.3  # seconds before it is killed for which a process may have no record; usually 0.1
Key = tuple[str, int]
"""Task and step."""
Places = dict[tuple[str, str, str], list[Update]]
"""A copy or a shard of the variables, by its task, the variables and the device -> its updates."""


class Ledger(NamedTuple):
    """The numbers of gradients `computed`, `applied` and `dropped`, the last by reason. `repeated`:
    of updates made once more, after the run went back to a checkpoint: what the first ones had
    changed is not in the model. `wrong`: what does not add up, in words.
    """

    computed: int
    applied: int
    dropped: dict[str, int]
    repeated: int
    wrong: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        return not self.wrong

    def as_dict(self) -> dict[str, Any]:
        """It as plain values, with `balanced`."""
        return self._asdict() | {"wrong": list(self.wrong), "balanced": self.balanced}


class _Life(NamedTuple):
    """A process of a task, from its start to its end; `cut` if the end of its record is missing."""

    start: float
    end: float = math.inf
    state: str = ""
    cut: bool = False


@dataclass
class _Gradient:
    end: float
    life: _Life
    last: bool = False  # in its life
    of: str = ""  # which variables, as in `Update`; "" for all

    @property
    def fate(self) -> str:
        """The reason for which it may not have been applied; "" if it had to be."""
        if not self.last or self.life.state == "done":
            return ""
        return "lost" if self.life.state in ("failed", "killed") else "unfinished"


Computed = dict[Key, list[_Gradient]]


def ledger(trace: Trace) -> Ledger:
    """The ledger of a run that is over."""
    lives = _lives(trace)
    places: Places = defaultdict(list)
    for u in trace.all(Update):
        places[u.task, u.variables, u.device].append(u)
    computed = _computed(trace, lives, places)
    drops: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    recomputed = trace.all(Dropped, why="overflow")
    for each in trace.all(Dropped):
        if each.why != "overflow":
            drops[each.task, each.step, each.variables].append(each.why)
    overflowed = {metric.step for metric in trace.all(Metric, name="overflow") if metric.value}
    unapplied: dict[Key, list[str]] = {}  # the reasons, at the place with most of them
    wrong = list[str]()
    for (holder, variables, _), updates in places.items():
        named = _named(updates)
        together = Counter(u.step for u in updates if not u.workers)  # of all workers
        of = ("", variables)
        due = {key: [each for each in its if each.of in of] for key, its in computed.items()}
        most = Counter[int]()  # step -> gradients of the task that has most of them
        for task, step in dict.fromkeys([*named, *due]):
            gradients, times = due.get((task, step), []), named[task, step]
            missing = len(gradients) - times - min(together[step], len(gradients))
            most[step] = max(most[step], len(gradients))
            gradient = f"{task}'s gradient for step {step}"
            if times > len(gradients):
                wrong.append(f"{gradient} is applied too often by {holder}")
            if missing <= 0:
                continue
            why = drops[task, step, variables] + drops[task, step, ""]
            why += ["overflow"] * missing * (step in overflowed and not named)
            why += filter(None, (each.fate for each in gradients))
            gone = sum(_without_record(lives[holder], g.end) for g in gradients)
            if missing > len(why) + gone:
                wrong.append(f"{gradient} is not applied by {holder}")
            unapplied[task, step] = max(unapplied.get((task, step), []), why[:missing], key=len)
        known = not any(life.cut for its in lives.values() for life in its)
        often = [step for step, times in together.items() if known and times > most[step]]
        wrong += [f"step {step} is applied too often by {holder}" for step in often]
    if not places:
        unapplied = {key: ["unfinished"] * len(its) for key, its in computed.items()}
    count = sum(map(len, computed.values()))
    reasons = [why for whys in unapplied.values() for why in whys]
    return Ledger(
        count + len(recomputed),
        count - len(reasons),
        dict(Counter(reasons + ["overflow"] * len(recomputed))),
        max((len(its) - len({u.written for u in its}) for its in places.values()), default=0),
        tuple(wrong),
    )


def _lives(trace: Trace) -> dict[str, list[_Life]]:
    """The processes of each task."""
    lives: dict[str, list[_Life]] = defaultdict(list)
    heard = {p.task: p.end for p in trace.all(Phase)}
    for span in Life(trace.all(Lifecycle)).of(None, "starting", *ENDS):
        its = lives[span.who]
        if span.state == "starting":  # without an end it was told to leave, or then killed
            its.append(_Life(span.start, heard.get(span.who, span.start), cut=True))
        elif its and not its[-1].state:
            # a task that fails by an exception says so itself, and leaves all of its record
            whole = span.state == "done" or (span.state == "failed" and not span.cause.why)
            its[-1] = _Life(its[-1].start, span.start, span.state, not whole)
    return lives


def _named(updates: Iterable[Update]) -> Counter[Key]:
    """Count the gradients in updates, as far as these name the workers."""
    return Counter((who, u.step) for u in updates for who in u.workers.split())


def _computed(trace: Trace, lives: dict[str, list[_Life]], places: Places) -> Computed:
    """The gradients of each task and step. One that is computed in several phases, between which
    the task exchanges something, is one gradient; `read` begins another.
    """
    computed: Computed = defaultdict(list)
    going_on: dict[str, int] = {}  # task -> the step that it computes
    last: dict[tuple[str, float], _Gradient] = {}  # of a task's life, by the start of that
    kinds = Counter((task, device) for task, _, device in places)
    of_one = [u for u in trace.all(Update) if kinds[u.task, u.device] > 1]
    phases = [p for p in trace.all(Phase) if p.what in ("read", "compute")]
    both: list[Phase | Update] = [*of_one, *phases]
    for p in sorted(both, key=lambda e: e.at if isinstance(e, Update) else e.start):
        if isinstance(p, Update):
            going_on.pop(p.task, None)
            for gradient in computed[p.task, p.step][-1:]:
                if gradient.of:  # computed together, or beside the last update
                    computed[p.task, p.step].append(replace(gradient, of=p.variables))
                gradient.of = gradient.of or p.variables
        elif p.what == "read":
            going_on.pop(p.task, None)
        else:
            its = lives[p.task] or [_Life(0.0)]
            life = next((each for each in its[::-1] if each.start <= p.start), its[0])
            key = p.task, p.step
            if going_on.get(p.task) == p.step:
                computed[key].pop()
            computed[key].append(_Gradient(p.end, life))
            going_on[p.task] = p.step
            last[p.task, life.start] = computed[key][-1]
    for gradient in last.values():
        gradient.last = True
    for updates in places.values():
        for (task, step), times in _named(updates).items():
            cut = [life for life in lives[task] if life.cut]
            if cut and times > len(computed[task, step]):
                unseen = _Gradient(cut[-1].end, cut[-1], last=True)
                computed[task, step] += [unseen] * (times - len(computed[task, step]))
    return computed


def _without_record(lives: Sequence[_Life], at: float) -> bool:
    """Tell whether a place has no record, or is gone, at this time."""
    return any(
        life.cut
        and life.end - CUT <= at
        and not any(life.end < after.start <= at for after in lives)
        for life in lives
    )
