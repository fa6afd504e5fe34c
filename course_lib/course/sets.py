"""The exercise sets, each with its tasks: found in `exercises/checks/`, a file a set."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

from course_lib import lazy
from course_lib.course.task import Task
from course_lib.errors import SpecError, Unavailable

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "exercises" / "checks"
_PACKAGE = "exercise_checks"


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
