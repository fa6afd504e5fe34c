"""A task of an exercise, the verdict on an answer to it, and the exercise sets, which lie in
`exercises/checks/`, one file for each.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from course_lib import lazy
from course_lib.errors import SpecError, Unavailable

State = Literal["passed", "not yet", "to do"]
ENDLESS = "Does a loop in it never end?"

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "exercises" / "checks"
_PACKAGE = "exercise_checks"


@dataclass(frozen=True, repr=False)
class Verdict:
    """What a check found out about the answer to `task`; true if it passed.

    `text` says what was shown, or what is wrong. `hint` names the mistake if it was recognised.
    """

    task: str
    state: State
    text: str
    hint: str = ""

    def __bool__(self) -> bool:
        return self.state == "passed"

    def __repr__(self) -> str:
        return "\n".join(
            [f"{self.task}: {self.state}.", self.text, *(["", self.hint] if self.hint else [])]
        )


@dataclass(frozen=True)
class Task:
    """One thing that a learner writes.

    `answer` is the name of the learner's function in the notebook. Each of the three `hints` says
    more than the one before. `judge(name, answer)` returns the verdict. It may raise `Unusable`, or
    whatever the learner's function raises if it is still the stub, never ends, or fills the memory;
    `check` puts these into words.
    """

    name: str
    answer: str
    hints: tuple[str, str, str]
    judge: Callable[[str, Any], Verdict]


class Unusable(Exception):
    """Raised by a judge for an answer that cannot be judged; `text` tells the learner why."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


@functools.cache
def sets() -> dict[str, tuple[Task, ...]]:
    """The tasks of each exercise set, in their order; the name of a set is that of its notebook.

    A set is a file `NN_name.py` with its `TASKS`. Its name is no identifier, so all of them are
    imported by path, as one package. Raises Unavailable if there is no such folder.
    """
    spec = importlib.util.spec_from_file_location(_PACKAGE, CHECKS / "__init__.py")
    if not (spec and spec.loader and CHECKS.is_dir()):
        why = f"there is no folder {CHECKS}: an installed package has no exercises"
        cure = "Take a copy of the whole course, and run `pip install -e .` (or `make lab`) in it"
        raise Unavailable("checking exercises", why, cure)
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[_PACKAGE])
    found = {module.__name__.partition(".")[2]: module for module in lazy.modules(_PACKAGE)}
    return {name: module.TASKS for name, module in found.items() if name[0].isdigit()}


def find(name: str) -> Task:
    """The task of that name. Raises SpecError with the nearest name if there is none."""
    tasks = {task.name: task for tasks in sets().values() for task in tasks}
    if name not in tasks:
        raise SpecError.unknown("task", name, tasks)
    return tasks[name]
