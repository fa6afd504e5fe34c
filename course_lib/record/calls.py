"""Calls of collectives that can never end, as the beats of the ranks show: different calls where
all must make the same, calls that wait for each other, and calls that wait for a rank that has
returned.

Ranks match their calls by order: the seventh call in a group is one collective, whatever each rank
calls there. A message from rank 0 to rank 1 matches by order as well, in the group "0>1".
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from course_lib.activity import Activity
from course_lib.record.beats import Beat

CURE = "All ranks of a group must make the same calls in the same order, with the same sizes"
BACKWARD, DDP, FSDP = "the all-reduce of its backward pass", "DDP's ", "FSDP's "
# how a call is named that a wrapper of the model makes -> the cure where a rank has returned
UNEVEN = dict.fromkeys([BACKWARD, DDP], "join() or drop the last") | {FSDP: "drop the last"}


def words(call: Beat) -> str:
    """ "all_reduce of (10, 4) float32 at train.py:17"."""
    about = f" of {call.about}" if call.about else ""
    return f"{call.what}{about}{f' at {call.where}' if call.where else ''}"


def endless(
    now: Mapping[str, Beat], calls: Mapping[str, Sequence[Beat]], over: Collection[str] = ()
) -> dict[str, Activity]:
    """Tasks whose call never ends -> what each does; whoever is the cause comes first.

    `now`: what each task is in, in order of the ranks; `calls`: the latest calls of each; `over`:
    tasks whose function has returned. Empty if each call may end.
    """
    inside = {task: beat for task, beat in now.items() if beat.number}
    for call in inside.values():
        if found := _different(call, calls):
            return found
    tasks = dict(enumerate(now))
    tasks |= {call.rank: task for task, kept in calls.items() for call in kept}
    waits = {task: _missing(call, tasks, calls, over) for task, call in inside.items()}
    stuck = set(waits)
    while free := {t for t in stuck if not any(m in stuck or m in over for m in waits[t])}:
        stuck -= free
    never = {task: call for task, call in inside.items() if task in stuck}
    gone = {m: _returned(call) for task, call in never.items() for m in waits[task] if m in over}
    return gone | {task: _waiting(call, waits[task]) for task, call in never.items()}


def _returned(call: Beat) -> Activity:
    """That a task has returned for which others wait in a call, and the cure."""
    cures = (cure for name, cure in UNEVEN.items() if call.what.startswith(name))
    return Activity(
        "".join(["has returned", *(f": their data differ in length; {c}" for c in cures)])
    )


def _waiting(call: Beat, missing: Sequence[str]) -> Activity:
    step = f", step {call.step}," if call.step >= 0 else ""
    return Activity(f"waits in {words(call)}{step}", awaits=tuple(missing))


def _different(call: Beat, calls: Mapping[str, Sequence[Beat]]) -> dict[str, Activity]:
    """The tasks that called something else where one made this call, and all others."""
    alike: dict[tuple[str, int], dict[str, Beat]] = defaultdict(dict)
    for task, kept in calls.items():
        for each in kept:
            if (each.group, each.number) == (call.group, call.number):
                alike["" if ">" in each.group else each.what, each.size][task] = each
    if len(alike) < 2:
        return {}
    # the fewest are the cause; of as many, not those of the first task
    few, *others = sorted(reversed(alike.values()), key=len)
    found = {
        task: Activity(f"calls {words(c)} as number {c.number} of its group")
        for task, c in few.items()
    }
    others_do = {
        t: Activity(f"calls {words(c)} instead") for made in others for t, c in made.items()
    }
    return found | others_do


def _missing(
    call: Beat, tasks: Mapping[int, str], calls: Mapping[str, Sequence[Beat]], over: Collection[str]
) -> list[str]:
    """The tasks that a call waits for and that have not come to it. Nobody surely waits for those
    who receive a broadcast, but if one has returned before, some rank waits for ever.
    """
    latest = {
        task: max((c.number for c in calls[task] if c.group == call.group), default=0)
        for task in tasks.values()
    }
    return [
        task
        for rank, task in tasks.items()
        if latest[task] < call.number
        and (call.members >> rank & 1 or (latest[task] and task in over))
    ]
