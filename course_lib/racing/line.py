"""The starting line: every worker takes its first step, which traces and compiles, and waits for
all entrants before it takes its second.

Without it the entrant that compiles fastest would run on an idle machine and be done before the
others begin. A strategy calls `task.at_step_end` after each step, in no phase of it; here that call
waits, once. Where a chief hands out the steps, the chief waits. A task at the line leaves a file in
its run's directory; when the line opens, the race leaves one there.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
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
STEPS = 3  # a task that records so many while the line is closed does not stop at it


def draw(run_dir: Path, roles: Mapping[str, str], cores: Sequence[int]) -> dict[str, str]:
    """Prepare a run's directory, before its tasks start: a place to meet at, and what they read
    there. Returns what they are to run, by job.

    `roles`: job -> `module:function`, as a strategy has them; `cores`: as for `take_part`.
    """
    _place(run_dir).mkdir()
    _race(run_dir).write_text(json.dumps({"programs": dict(roles), "cores": list(cores)}))
    return dict.fromkeys(roles, f"{__name__}:{take_part.__name__}")


def take_part(task: Task) -> Any:
    """The role function of all jobs: run the one that the strategy has for this job, on the
    entrant's cores (none: all), from the line.
    """
    told = json.loads(_race(task.run_dir).read_text())
    if told["cores"]:
        os.sched_setaffinity(0, told["cores"])  # threads made from here on inherit it
    if task.job in RACERS:
        _hold(task)
    module, _, function = told["programs"][task.job].partition(":")
    return getattr(importlib.import_module(module), function)(task)


def _hold(task: Task) -> None:
    """Make the task wait at the line, once, at the end of its first step."""

    def wait() -> None:
        task.at_step_end = lambda: None
        _wait(task)

    task.at_step_end = wait


def _wait(task: Task) -> None:
    (_place(task.run_dir) / task.name.replace(":", "-")).touch()
    opened, deadline = _place(task.run_dir) / "open", clock() + BOUND
    while not opened.exists():
        if clock() > deadline:
            raise LockstepError(
                f"{task.name} waited {BOUND:g} s at the starting line of a race, "
                "and nobody opened it"
            )
        time.sleep(POLL)


def _place(run_dir: Path) -> Path:
    return run_dir / "line"


def _race(run_dir: Path) -> Path:
    return run_dir / "race.json"


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
        arrived = {label: _arrived(run.run_dir) for label, run in self.runs.items()}
        standing = {label: _standing(run, arrived[label]) for label, run in self.runs.items()}
        if self._first is None and any(arrived.values()):
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
                (_place(run.run_dir) / "open").touch()


def _arrived(run_dir: Path) -> set[str]:
    """Tasks of a run that are at the line."""
    return {path.name.replace("-", ":") for path in _place(run_dir).iterdir()}


def _standing(run: Run, arrived: set[str]) -> str:
    """Where an entrant is before the line opens: `coming`, `here`, `over`, or `gone` past a line at
    which it does not stop.
    """
    if run.state not in ("starting", "running"):
        return "over"
    if run.spec.chief:
        return "here" if "chief:0" in arrived else "coming"
    if arrived.issuperset(task for task in run.spec.tasks if task.startswith("worker:")):
        return "here"
    steps: dict[str, set[int]] = {}
    for p in run.trace.all(Phase):
        steps.setdefault(p.task, set()).add(p.step)
    return (
        "gone"
        if any(len(seen) >= STEPS for task, seen in steps.items() if task.startswith("worker:"))
        else "coming"
    )
