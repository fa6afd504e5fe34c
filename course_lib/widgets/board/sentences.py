"""What a board says in sentences, computed from what it shows. Names of runs stand between ** and
**.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from course_lib.record.curves import Goal
from course_lib.widgets.board.side import Side

LEVEL = 1.03  # times as long that count as equally fast


def how_far(side: Side) -> str:
    """How far a single run is."""
    state = f"**{side.label}** {'has' if side.state == 'failed' else 'is'} {side.state}"
    if side.loss.last is None:
        return state + ("; no step is done yet" if side.active else "")
    step = side.digest.steps_done
    return f"{state}: step {step:,} of {side.spec.steps:,}, loss {side.loss.last:.3g}"


def ahead(sides: Sequence[Side], goal: Goal | None) -> str:
    """Who is ahead in a race that goes on."""
    if failed := _failures(sides):
        return failed
    shared = common(sides)
    if goal is None or shared is None:
        late = _names([side.label for side in sides if side.loss.record is None])
        return f"At the start: no loss yet from {late}"
    times = _times(sides, goal)
    if not times:  # a target that nobody has reached
        return ahead(sides, shared)
    (first, seconds), *others = times
    so_far = f"{goal} after {_seconds(seconds)}"
    behind = [side.label for side in sides if side.label not in dict(times)]
    if behind:
        return f"**{first}** has reached {so_far}; {_names(behind)} not yet"
    if others[0][1] <= LEVEL * seconds:
        return f"**{first}** and **{others[0][0]}** are level: {so_far}"
    later = ", ".join(f"**{label}** after {_seconds(then)}" for label, then in others)
    return f"**{first}** is ahead: {so_far}, {later}"


def outcome(sides: Sequence[Side], goal: Goal | None) -> str:
    """Who won a race that is over, and by how much."""
    if failed := _failures(sides):
        return failed
    stopped = "Stopped early. So far: " if any(side.state == "stopped" for side in sides) else ""
    if goal is None:
        return f"{stopped}there is no loss to compare"
    times = _times(sides, goal)
    if not times:
        return f"{stopped}nobody reached {goal}"
    (first, fast), *others = times
    missed = _names([side.label for side in sides if side.label not in dict(times)])
    if not others:
        after = f"after {_seconds(fast)}; {missed} did not"
        return f"{stopped}only **{first}** reached {goal}, {after}"
    second, slow = others[0]
    if slow <= LEVEL * fast:
        both = f"**{first}** and **{second}**"
        return f"{stopped}{both} reached {goal} equally fast, after {_seconds(fast)}"
    gap = f"{slow / fast:.1f} times sooner than" if fast > 0 else "before"
    won = f"**{first}** reached {goal} in {_seconds(fast)}"
    return f"{stopped}{won}, {gap} **{second}** ({_seconds(slow)})"


def aim(goal: Goal | None, given: bool) -> str:
    """What is raced for: a goal that was `given`, or what all have reached."""
    if goal is None:
        return "They race for the lowest loss that all reach."
    return f"They race for {goal}{'' if given else ', the lowest that all have reached'}."


def summary(side: Side) -> str:
    """The figures of a run so far, in one line: those of its whole time, but for the throughput of
    one that goes on.
    """
    speed = side.loss.rate(over=2.0 if side.active else math.inf)
    done = min(1.0, side.digest.steps_done / side.spec.steps)
    parts = [
        f"{speed:,.0f} examples/s" if speed else "",
        f"loss {side.loss.last:.3g}" if side.loss.last is not None else "",
        f"accuracy {side.accuracy.last:.3g}" if side.accuracy.last is not None else "",
        f"workers waited {side.idle:.0%}" if side.idle is not None else "",
        f"{done:.0%} done" if side.active and side.loss.last is not None else "",
    ]
    return " · ".join(filter(None, parts))


def details(side: Side) -> str:
    """The same and more, in lines."""
    idle, stale = side.digest.idle, side.digest.updates.staleness
    waiting = ", ".join(f"{task} {share:.0%}" for task, share in idle.items())
    updates = ", ".join(f"{n:,} of staleness {s}" for s, n in sorted(stale.items()))
    parts = [
        f"{side.label}: {side.state}",
        summary(side),
        f"waiting {waiting or 'not known'}",
        f"updates: {updates or 'none'}",
        f"{side.reality.word}: {side.reality.why}",
        side.failure,
    ]
    return "\n  ".join(filter(None, parts))


def common(sides: Sequence[Side]) -> Goal | None:
    """The lowest loss that all have reached; None while one of them has none."""
    curves = [side.loss for side in sides]
    return Goal.of_all("loss", curves) if all(c.record is not None for c in curves) else None


def _failures(sides: Sequence[Side]) -> str:
    failed = _names([side.label for side in sides if side.state == "failed"])
    others = _names([side.label for side in sides if side.active])
    return f"{failed} failed{f'; {others} goes on' if others else ''}" if failed else ""


def _times(sides: Sequence[Side], goal: Goal) -> list[tuple[str, float]]:
    """(Label, seconds to the goal) of those that reached it, the first first."""
    reached = [(side.label, side.reached(goal)) for side in sides]
    return sorted(((label, r[0]) for label, r in reached if r), key=lambda pair: pair[1])


def _names(labels: Sequence[str]) -> str:
    return " and ".join(f"**{label}**" for label in labels)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"
