"""The starting line: every worker takes its first step, which traces and compiles, and waits for
all entrants before it takes its second.

Without it the entrant that compiles fastest would run on an idle machine and be done before the
others begin. A strategy calls `task.at_step_end` after each step, outside its phases; in a race the
first of these calls waits. If a chief hands out the steps, the chief waits. A task at the line
leaves a file in its run's directory; when the line opens, the race leaves a file there.
"""

import os
import pkgutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from course_lib.cluster.run import Run
from course_lib.cluster.task import Task
from course_lib.errors import LockstepError
from course_lib.record.events import ACTIVE, Phase, clock
from course_lib.record.rundir import folder_name

# Seconds from the first arrival until the line opens for those that are there. Less than the 60 s
# after which a framework's collective gives up on a missing peer.
LONGEST_HOLD = 45.0
# Seconds after which a task gives up; it waits so long only if the race itself is gone.
GIVE_UP = 2 * LONGEST_HOLD
POLL = 0.002
RACERS = ("worker", "chief")  # jobs that call `at_step_end`
OPEN = "open"  # the file that tells the tasks to go on
RAN_PAST = 3  # steps: a task that has taken so many at the closed line does not stop there


def take_part(role: str, cores: Sequence[int], task: Task) -> Any:
    """The role function of an entrant's tasks: run the strategy's `role` (`module:function`) on the
    entrant's cores (none given: on all), and stop at the line after the first step.
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
        (task.files.line / folder_name(task.name)).touch()
        deadline = clock() + GIVE_UP
        while not (task.files.line / OPEN).exists():
            if clock() > deadline:
                where = f"{GIVE_UP:g} s at the starting line of a race, and nobody opened it"
                raise LockstepError(f"{task.name} waited {where}")
            time.sleep(POLL)

    task.at_step_end = wait


class StartingLine:
    """The line as the race sees it.

    `opened`: when the line opened, on the machine's clock, or None; `started`: the entrants that
    were at the line then; `notes`: which entrants came late or did not stop there.
    """

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self.runs = runs
        self.opened: float | None = None
        self.started: list[str] = []
        self.notes: list[str] = []
        self._first: float | None = None  # when the first task was there

    def look(self) -> None:
        """Open the line if all entrants are there, or if the first to come has waited for
        `LONGEST_HOLD` seconds.
        """
        if self.opened is not None:
            return
        standing = {label: _standing(run) for label, run in self.runs.items()}
        if self._first is None and any(map(_arrived, self.runs.values())):
            self._first = clock()
        late = self._first is not None and clock() > self._first + LONGEST_HOLD
        if late or "coming" not in standing.values():
            words = {
                "coming": f"was not at the starting line after {LONGEST_HOLD:g} s",
                "gone": "did not stop at the starting line",
            }
            for label, how in standing.items():
                if how in words:
                    self.notes.append(f"{label} {words[how]}: it began at another time.")
            self.started = [label for label, how in standing.items() if how == "here"]
            self.open()

    def open(self) -> None:
        """Let all tasks go on."""
        if self.opened is None:
            self.opened = clock()  # before any task can go on
            for label in self.started:
                run = self.runs[label]
                run.digest.begin(self.opened - run.files.facts.origin)
            for run in self.runs.values():
                (run.files.line / OPEN).touch()


def _arrived(run: Run) -> set[str]:
    """Tasks of a run that are at the line."""
    there = {path.name for path in run.files.line.iterdir()}
    return {task for task in run.spec.tasks if folder_name(task) in there}


def _standing(run: Run) -> str:
    """Tell where an entrant is before the line opens: `coming`, `here`, `over`, or `gone` if it
    went past the line without stopping.
    """
    if run.state not in ACTIVE:
        return "over"
    arrived = _arrived(run)
    if run.spec.chief:
        return "here" if "chief:0" in arrived else "coming"
    if arrived.issuperset(task for task in run.spec.tasks if task.startswith("worker:")):
        return "here"
    steps = {(p.task, p.step) for p in run.trace.all(Phase) if p.task.startswith("worker:")}
    seen = Counter(task for task, _ in steps)
    return "gone" if any(n >= RAN_PAST for n in seen.values()) else "coming"
