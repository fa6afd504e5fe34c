"""The exercises and their tasks.

A new exercise is a notebook in `solutions/`, a file for each new task, and a line here.
"""

from __future__ import annotations

from course_lib.course import reduce_to_one, ring, training, tree
from course_lib.course.task import Task
from course_lib.errors import SpecError

EXERCISES: dict[str, tuple[Task, ...]] = {
    "04_allreduce_from_scratch": (reduce_to_one.TASK, ring.TASK, tree.TASK, training.TASK),
}
TASKS: dict[str, Task] = {task.name: task for tasks in EXERCISES.values() for task in tasks}


def find(name: str) -> Task:
    """The task of a name. Raises SpecError with the nearest name for one that is unknown."""
    if name not in TASKS:
        raise SpecError.unknown("task", name, TASKS)
    return TASKS[name]
