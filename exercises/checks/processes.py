"""A learner's function or class, carried out in real processes, for judges that need more than what
it returns in the notebook's own process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from course_lib.cluster.run import Run
from course_lib.course.answers import Unusable
from course_lib.course.handed_in import Answer, watched
from course_lib.course.plain import plain, rebuilt
from course_lib.errors import Stalled, TaskFailed
from course_lib.launch import start
from course_lib.record.saved import SavedRun

LONGEST_RUN = 60.0  # seconds
Role = Callable[..., Any]


@dataclass(frozen=True)
class Carried:
    """What came of it: the `values` that the role returned, by rank, and the run, with its trace
    and spec.
    """

    values: list[Any]
    run: SavedRun


def carry_out(
    answer: Answer,
    role: Role,
    *given: Any,
    ready_made: Iterable[str] = (),
    worlds: Iterable[dict[str, int]] = ({"workers": 2}, {"workers": 3}, {"workers": 5}),
) -> Iterator[Carried]:
    """Run `role(task, learner's, *given)` in each worker and ps of worlds with these fields of
    `RunSpec`: the first world alone, and when it has been looked at, the others side by side.

    `role` is a function of the checks; what it returns is made `plain`. Calls of `ready_made` in
    the workers are added to `answer.used`. Raises Unusable, in words, where a worker fails, ends or
    never ends, and NotImplementedError for a stub.
    """
    first, *others = worlds
    for some in ([first], others):
        for said in answer.within(_run, role, given, tuple(ready_made), some):
            if said["stub"]:
                raise NotImplementedError
            if said["failed"]:
                raise Unusable(said["failed"])
            values = said["values"]
            answer.used += dict.fromkeys(name for value in values for name in value["used"])
            yield Carried([value["value"] for value in values], said["run"])


def _run(
    learners: Any, role: Role, given: Any, ready_made: Any, worlds: list[dict[str, int]]
) -> list[dict[str, Any]]:
    """Where the learner's code runs: start the processes, and collect what they gave."""

    def work(task: Any) -> Any:
        with watched(ready_made) as used:
            try:
                value = role(task, learners, *given)
            except NotImplementedError:
                return None
        return {"value": plain(value), "used": used}

    with contextlib.ExitStack() as runs:
        begun, ended = [], list[dict[str, Any]]()
        for fields in worlds:
            programs = {"worker": work, "ps": work} if fields.get("ps") else work
            begun.append(runs.enter_context(start(programs, framework="torch", **fields)))
        for run in begun:
            ended.append(_ended(run))
            if ended[-1]["failed"] or ended[-1]["stub"]:  # the others cannot change the verdict
                break
        return ended


def _ended(run: Run) -> dict[str, Any]:
    failed, stub, found = "", False, []
    try:
        run.wait(LONGEST_RUN)
        values = [run.values.get(task) for task in run.spec.tasks]
        stub = None in values
        found = [value and {**value, "value": rebuilt(value["value"])} for value in values]
    except TaskFailed as failure:
        failed = f"{failure.task} failed: {failure.reason}{_line(failure)}"
    except Stalled as still:
        stub = None in run.values.values()  # the others wait for what a stub does not send
        failed = f"The workers do not come to an end. {still}"
    return {"values": found, "failed": failed, "stub": stub, "run": run}


def _line(failure: TaskFailed) -> str:
    """The last line of the learner's own code in the traceback of a worker."""
    lines = [line.strip() for line in failure.remote_traceback.splitlines()]
    places = [line for line in lines if line.startswith("File ") and "/site-packages/" not in line]
    own = [line for line in places if "course_lib" not in line and "checks" not in line]
    return f" ({own[-1]})" if own else ""
