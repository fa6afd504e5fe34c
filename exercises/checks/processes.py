"""A learner's function or class on each rank of small clusters, for judges that need more than what
it returns in the notebook's own process. The clusters start where the learner's code runs; what
came of them reaches the judge as plain data.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from course_lib.cluster.run import Run
from course_lib.course.answers import Unusable
from course_lib.course.handed_in import Answer, plain, rebuilt, watched
from course_lib.errors import Stalled, TaskFailed
from course_lib.launch import start
from course_lib.record.saved import SavedRun

PATIENCE = 90.0  # seconds that a world may take, for what waits and does not compute
SIZES = (2, 3, 5)  # workers
ALONE = [{"workers": workers} for workers in SIZES]  # worlds without a ps
Role = Callable[..., Any]  # role(task, learner's, *given) -> what a task found


@dataclass(frozen=True)
class World:
    """An answer on a small cluster: the run, with its trace and spec, what the role returned in
    each task, and what was ready-made and called.

    `trouble`: whether a task failed, tasks waited for each other for ever, or it was too late;
    `words` for it. Of what failed also the `task`, and the `place` of the learner's last line in
    the traceback: file, line, function, text.
    """

    run: SavedRun
    values: list[Any]
    used: list[str]
    trouble: Literal["", "failed", "stands", "late"] = ""
    words: str = ""
    task: str = ""
    place: Sequence[str] = ()

    @property
    def workers(self) -> int:
        return self.run.spec.workers


def carry_out(
    answer: Answer,
    role: Role,
    *given: Any,
    ready_made: Iterable[str] = (),
    worlds: Iterable[dict[str, int]] = ALONE,
) -> Iterator[World]:
    """Run `role(task, learner's, *given)` in each worker and ps of worlds with these fields of
    `RunSpec`: the first world alone, and when it has been looked at, the others side by side.

    Calls of `ready_made` in the tasks are added to `answer.used`. Raises NotImplementedError for a
    stub.
    """
    first, *others = worlds
    for some in ([first], others):
        for found in answer.within(_run, role, given, tuple(ready_made), some):
            world = World(**found)
            if "NotImplementedError" in world.words:
                raise NotImplementedError
            answer.used += world.used
            yield world


def ended(worlds: Iterable[World]) -> Iterator[World]:
    """These worlds. Raises Unusable, in words, for one in which a task fails or never ends."""
    for world in worlds:
        if world.trouble == "failed":
            file, line, function, _ = world.place or ("",) * 4
            place = f' (File "{file}", line {line}, in {function})' if file else ""
            raise Unusable(f"{world.task} failed: {world.words}{place}")
        if world.trouble:
            raise Unusable(f"The workers do not come to an end: {world.words}.")
        yield world


def _run(
    learners: Any, role: Role, given: Any, ready_made: Any, worlds: list[dict[str, int]]
) -> list[dict[str, Any]]:
    """Where the learner's code runs: start the processes, and collect what they gave."""

    def work(task: Any) -> Any:
        used: list[str] = []
        with watched(ready_made, used):
            return plain(role(task, learners, *given)), used

    with contextlib.ExitStack() as runs:
        begun, found = [], list[dict[str, Any]]()
        for fields in worlds:
            programs = {"worker": work, "ps": work} if fields.get("ps") else work
            begun.append(runs.enter_context(start(programs, framework="torch", **fields)))
        for run in begun:
            found.append({"run": run, "values": [], "used": [], **_waited(run)})
            if found[-1].get("trouble"):  # the others cannot change the verdict
                break
        return found


def _waited(run: Run) -> dict[str, Any]:
    """What the tasks of a run found, or what kept them from it."""
    try:
        run.wait_running().wait(PATIENCE)  # the first run of a process imports the framework
    except Stalled as problem:
        kind = "stands" if problem.standing else "late"
        words = problem.words or f"they still ran after {problem.seconds:.0f} s"
        return {"trouble": kind, "words": words}
    except TaskFailed as problem:
        frame = r'File "(.*?)", line (\d+), in (.*)(?:\n +(\S.*))?'
        frames = re.findall(frame, problem.remote_traceback)
        ours = ("/site-packages/", "/course_lib/", "/checks/")
        theirs = [each for each in frames if not any(folder in each[0] for folder in ours)]
        failed = {"trouble": "failed", "words": problem.reason, "task": problem.task}
        return failed | {"place": theirs[-1] if theirs else ()}
    values = run.values
    if missing := [task for task in run.spec.tasks if task not in values]:
        words = f"{missing[0]} still ran when all workers were done"
        return {"trouble": "late", "words": words}
    return {
        "values": [rebuilt(values[task][0]) for task in run.spec.tasks],
        "used": sorted({name for _, used in values.values() for name in used}),
    }
