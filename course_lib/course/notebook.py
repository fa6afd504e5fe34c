"""A learner's notebook: which exercise it is, and the cells of it that a check runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import nbformat

from course_lib.course.task import Task
from course_lib.course.tasks import EXERCISES
from course_lib.errors import SpecError

LOOK = "look"
"""The tag of cells that only look at answers, or run something with them: a check leaves them out.
"""


@dataclass(frozen=True)
class Notebook:
    """`tasks` of the exercise, and the code cells that may define the answers: number in the
    notebook (from 1 on) and source.
    """

    path: Path
    tasks: tuple[Task, ...]
    cells: tuple[tuple[int, str], ...]


def read(path: Path) -> Notebook:
    """Read a notebook. Raises SpecError where there is none, or it is no exercise of this course.

    It is known by the metadata that its solution gave it, so it may have been renamed.
    """
    if not path.is_file():
        raise SpecError(
            "notebook",
            str(path),
            "is a directory: name a notebook in it" if path.is_dir() else "no such file",
        )
    try:
        content = nbformat.read(path, as_version=4)
        exercise = content.metadata.get("lockstep", {}).get("exercise")
        numbered = enumerate((cell for cell in content.cells if cell.cell_type == "code"), 1)
        cells = tuple(
            (n, cell.source) for n, cell in numbered if LOOK not in cell.metadata.get("tags", ())
        )
    except Exception as error:  # nbformat has no error of its own for what is no notebook
        raise SpecError(
            "notebook", str(path), f"cannot be read as a notebook: {type(error).__name__}: {error}"
        ) from None
    if exercise not in EXERCISES:
        raise SpecError(
            "notebook",
            str(path),
            f"is no exercise of this course; there are {', '.join(EXERCISES)}",
        )
    return Notebook(path, EXERCISES[exercise], cells)
