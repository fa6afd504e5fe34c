"""The facts of a strategy as the trace of a run shows them, in the words of its stated facts: who
computes gradients, who applies the update, where variables live, and who waits for whom.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

from course_lib.record.events import Phase, Update
from course_lib.record.trace import Trace
from course_lib.record.waits import SLACK
from course_lib.spec.run_spec import RunSpec

JOB_OF = re.compile(r"/job:(chief|worker|ps)/\w+:\d+/task:(\d+)")  # in a name of TensorFlow's
ALONE = "for nobody: one task computes"
WHOLE = 0.98  # of the parameters, from which a device holds all of them: some layers are not cut


class Observed(NamedTuple):
    """The facts that a trace shows. `lead`: by how many steps a worker was ahead of the slowest
    when it began to compute, at most. 0: nobody began a step before all had computed the one
    before. It shows what a strategy allows only if a worker is slow.
    """

    gradients: str
    update: str
    variables: str
    waits: str
    lead: int


def observed(spec: RunSpec, trace: Trace, bytes_on: Mapping[str, int], whole: int) -> Observed:
    """The facts that a run shows. `bytes_on`: bytes of parameters by device; `whole`: those of the
    model.
    """
    computed = [p for p in trace.all(Phase) if p.what == "compute"]
    updates = trace.all(Update)
    return Observed(
        _each(spec, {p.task for p in computed}),
        _updates(spec, updates),
        _variables(spec, bytes_on, whole),
        *_waits(computed),
    )


def _each(spec: RunSpec, places: Iterable[str]) -> str:
    """Places in words: "each worker", or their names. A place is a task or a device of one."""
    by_job: dict[str, set[str]] = defaultdict(set)
    for place in places:
        by_job[place.partition(":")[0]].add(place)
    words = []
    for job, its in sorted(by_job.items()):
        tasks = {place.partition("/")[0] for place in its}
        everyone = len(tasks) == sum(task.startswith(job + ":") for task in spec.tasks)
        if len(tasks) > 1 and everyone:
            words.append(f"each {job}")
        elif len(its) > len(tasks):
            words.append(f"each device of {', '.join(sorted(tasks))}")
        else:
            words.append(", ".join(sorted(tasks)))
    return " and ".join(words)


def _place(task: str, device: str) -> str:
    """A device of the cluster, by its task. TensorFlow's names may be of another one."""
    match = JOB_OF.search(device)
    return f"{':'.join(match.groups()) if match else task}/{device.rpartition('device:')[2]}"


def _updates(spec: RunSpec, updates: Iterable[Update]) -> str:
    places: dict[str, list[Update]] = defaultdict(list)
    for u in updates:
        places[_place(u.task, u.device)].append(u)
    every = [u for its in places.values() for u in its]
    if not every:
        return ""
    part = any(u.variables != "all" for u in every) and len(places) > 1
    what = "its part" if part else "its copy" if len(places) > 1 else "all variables"
    count = median(u.gradients for u in every)
    of = f", from the gradients of {count:g} at a time" if count > 1 else ""
    if count == 1 and not part and spec.shares > 1:
        of = ", from one worker's gradients at a time"
    return f"{_each(spec, places)}, to {what}{of}"


def _variables(spec: RunSpec, bytes_on: Mapping[str, int], whole: int) -> str:
    if not bytes_on or not whole:
        return ""
    places = {_place(*_split(name)): count for name, count in bytes_on.items()}
    most, where = max(places.values()) / whole, _each(spec, places)
    return f"all on {where}" if most > WHOLE else f"{most:.0%} on {where}"


def _split(name: str) -> tuple[str, str]:
    """The task and the device of a name such as `worker:0/cpu`, or one of TensorFlow's."""
    task, _, device = name.partition("/")
    return (task, device) if task else ("worker:0", name)


def _waits(computed: Iterable[Phase]) -> tuple[str, int]:
    """Who waits for whom in words, and the lead, see `Observed`."""
    begun: dict[str, dict[int, float]] = defaultdict(dict)
    done: dict[str, dict[int, float]] = defaultdict(dict)
    for p in computed:
        begun[p.task][p.step] = min(p.start, begun[p.task].get(p.step, math.inf))
        done[p.task][p.step] = max(p.end, done[p.task].get(p.step, 0.0))
    if len(begun) < 2:
        return ALONE, 0
    ends = {task: sorted(times.values()) for task, times in done.items()}
    lead = 0
    for task, times in begun.items():
        for count, start in enumerate(sorted(times.values())):
            others = (its for who, its in ends.items() if who != task)
            lead = max(lead, count - min(bisect_right(its, start + SLACK) for its in others))
    if not lead:
        return "each for all others, in each step", 0
    return f"a worker was {lead} step{'s' * (lead > 1)} ahead of the slowest", lead
