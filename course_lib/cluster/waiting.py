"""Who waits for whom in a run that does not end, as its trace tells: what was done to tasks and
hosts, and when each task was heard of last.
"""

import itertools
import statistics
from collections.abc import Collection, Iterable

from course_lib.jitter import Jitter
from course_lib.network.layout import host_name
from course_lib.record.digest import Digest
from course_lib.record.events import Phase, end_of
from course_lib.record.trace import Trace
from course_lib.spec import RunSpec

SILENT = 1.0  # seconds without a word after which a task may be waiting, or longer:
STEPS = 3  # so many of its own steps
RECENT = 50  # phases that tell how long its steps are
AT_THE_END = ("reduce", "apply")  # phases after which a task is soon in its next step


def describe(
    trace: Trace, spec: RunSpec, busy: Iterable[str], now: float, handle: str = "run"
) -> dict[str, str]:
    """Task -> what it does at `now` (seconds of the trace): a verb and the rest, to be read after
    the task's name.

    Servers are named if something holds them up. Those of the `busy` tasks that are paused, cut off
    or slowed hold up all that have fallen silent. `handle`: what the run is called in the cures.
    """
    digest = Digest.of(spec, trace, over=False)
    recent = {task: _recent(digest, task) for task in busy}
    silent = {task for task, phases in recent.items() if _silent(phases, now)}
    held = {
        task: why
        for task, phases in recent.items()
        if (why := _held(digest, task, phases, task in silent, handle))
    }
    return {
        task: held.get(task) or _does(phases, held if task in silent else ())
        for task, phases in recent.items()
        if task in held or not task.startswith("ps:")
    }


def paused(trace: Trace, spec: RunSpec) -> list[str]:
    """The tasks that are paused, or were when they ended."""
    digest = Digest.of(spec, trace, over=False)
    return [task for task in spec.tasks if _is(digest, task, "paused", "resumed")]


def _is(digest: Digest, who: str, state: str, back: str) -> bool:
    """Whether a task or host has entered a state and not come back."""
    last = digest.last(who, state, back)
    return last is not None and last.state == state


def _recent(digest: Digest, task: str) -> list[Phase]:
    """The last phases of a task; of a chief, which may only hand out work, those of all."""
    mine = digest.latest(task, RECENT)
    if mine or not task.startswith("chief"):
        return mine
    every = [p for other in digest.spec.tasks for p in digest.latest(other, RECENT)]
    return sorted(every, key=end_of)[-RECENT:]


def _silent(phases: list[Phase], now: float) -> bool:
    """Whether nothing was recorded for longer than steps usually take; of a task that records
    nothing, that cannot be told.
    """
    begun: dict[int, float] = {}
    for p in phases:
        begun.setdefault(p.step, p.start)
    usual = statistics.median([b - a for a, b in itertools.pairwise(begun.values())] or [0.0])
    return bool(phases) and now - max(p.end for p in phases) > max(SILENT, STEPS * usual)


def _held(digest: Digest, task: str, phases: list[Phase], silent: bool, handle: str) -> str | None:
    """What holds a task up, and how to end that; None if nothing is known to."""
    host = digest.spec.places[task]
    if _is(digest, task, "paused", "resumed"):
        return f"is paused ({handle}.resume({task!r}) lets it go on)"
    if _is(digest, host_name(host), "cut", "healed"):
        return f"is on {host_name(host)}, which is cut off ({handle}.heal({host}) joins it again)"
    slowed = digest.last(task, "slowed")
    if silent and slowed and slowed.factor > 1:
        return f"was {slowed.words} ({handle}.slow({task!r}, 1) ends that)"
    if silent and (late := _late(digest, phases[-1])) > SILENT:
        ends = f"{handle}.jitter({task!r}, None) ends that from the next step on"
        return f"is delayed by {late:.1f} s of jitter ({ends})"
    return None


def _late(digest: Digest, last: Phase) -> float:
    """Seconds by which jitter delays what a task does after this phase."""
    if last.what == "compute":
        return 0.0
    step, spec = last.step + (last.what in AT_THE_END), digest.spec
    times, late = Jitter.of(digest.jitter(last.task)).of_step(spec.seed, last.task, step)
    return (times - 1) * spec.device_ms / 1000 + late


def _does(phases: list[Phase], waits_for: Collection[str]) -> str:
    """What a task does that nothing holds up but others."""
    if not phases:
        return "has recorded nothing so far"
    last = phases[-1]
    if waits_for:
        step = last.step + (last.what in AT_THE_END)
        return f"waits for {', '.join(waits_for)} (in step {step})"
    return f"has finished '{last.what}' of step {last.step} and nothing since"
