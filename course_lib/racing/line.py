"""The starting line: every worker takes its first step, which traces and compiles, and waits for
all entrants before it takes its second.

Without it the entrant that compiles fastest would run on an idle machine and be done before the
others begin. A strategy calls `task.at_step_end` after each step, in no phase of it; here that call
waits, once. Where a chief hands out the steps, the chief waits. A task at the line leaves a file in
its run's directory; when the line opens, the race leaves one there.
"""

from __future__ import annotations

import os
import pkgutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from course_lib.cluster.run import Run
from course_lib.cluster.task import Task, clock
from course_lib.errors import LockstepError
from course_lib.record.events import Phase

# seconds from the first arrival until the line opens for whoever is there: tasks wait 60 for each
# other
PATIENCE = 45.0
# seconds that a task waits at most: only a race that is gone lets it come to this
BOUND = 2 * PATIENCE
POLL = 0.002
RACERS = ("worker", "chief")  # jobs that take steps; parameter servers only answer
OPEN = "open"  # the file that lets everybody go
STEPS = 3  # a task that records so many while the line is closed does not stop at it


def take_part(role: str, cores: Sequence[int], task: Task) -> Any:
    """The role function of an entrant's tasks: run the strategy's `role`, `module:function`, on the
    entrant's cores (none: all), and stop at the line on the way.
    """
    if cores:
        os.sched_setaffinity(0, cores)  # threads made from here on inherit it
    if task.job in RACERS:
        hold(task)
    return pkgutil.resolve_name(role)(task)


def hold(task: Task) -> None:
    """Make the task wait at the line, once, at the end of its first step."""

    def wait() -> None:
        task.at_step_end = lambda: None
        (task.files.line / task.name.replace(":", "-")).touch()
        deadline = clock() + BOUND
        while not (task.files.line / OPEN).exists():
            if clock() > deadline:
                where = f"{BOUND:g} s at the starting line of a race, and nobody opened it"
                raise LockstepError(f"{task.name} waited {where}")
            time.sleep(POLL)

    task.at_step_end = wait


class StartingLine:
    """The line as the race sees it.

    `opened`: when it was, on the machine's clock, or None; `started`: the entrants that stood there
    then; `notes` say who did not.
    """

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self.runs = runs
        self.opened: float | None = None
        self.started: list[str] = []
        self.notes: list[str] = []
        self._first: float | None = None  # when the first task was there

    def look(self) -> None:
        """Open the line if all entrants are at it, or if those who are have waited long enough."""
        if self.opened is not None:
            return
        standing = {label: _standing(run) for label, run in self.runs.items()}
        if self._first is None and any(map(_arrived, self.runs.values())):
            self._first = clock()
        late = self._first is not None and clock() > self._first + PATIENCE
        if late or "coming" not in standing.values():
            words = {
                "coming": f"was not at the starting line after {PATIENCE:g} s",
                "gone": "did not stop at the starting line",
            }
            self.notes += [
                f"{label} {words[how]}: it began at another time."
                for label, how in standing.items()
                if how in words
            ]
            self.started = [label for label, how in standing.items() if how == "here"]
            self.open()

    def open(self) -> None:
        """Let everybody go."""
        if self.opened is None:
            self.opened = clock()  # before the first can go
            for run in self.runs.values():
                (run.files.line / OPEN).touch()


def _arrived(run: Run) -> set[str]:
    """Tasks of a run that are at the line."""
    return {path.name.replace("-", ":") for path in run.files.line.iterdir()}


def _standing(run: Run) -> str:
    """Where an entrant is before the line opens: `coming`, `here`, `over`, or `gone` past a line at
    which it does not stop.
    """
    if run.state not in ("starting", "running"):
        return "over"
    arrived = _arrived(run)
    if run.spec.chief:
        return "here" if "chief:0" in arrived else "coming"
    if arrived.issuperset(task for task in run.spec.tasks if task.startswith("worker:")):
        return "here"
    steps = {(p.task, p.step) for p in run.trace.all(Phase) if p.task.startswith("worker:")}
    seen = Counter(task for task, _ in steps)
    return "gone" if any(n >= STEPS for n in seen.values()) else "coming"
