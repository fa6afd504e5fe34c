"""A learner's notebook: which exercise it is, and the cells of it that a check runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from course_lib.course.limits import TookTooLong, bounded
from course_lib.course.sets import sets
from course_lib.course.task import Task
from course_lib.errors import SpecError

LOOK = "look"  # tag of cells that only look at answers or run something with them: left out
CELL_PATIENCE = 10.0  # seconds of computing for one cell


@dataclass(frozen=True)
class Notebook:
    """`tasks` of the exercise, and the code cells that may define the answers: number in the
    notebook (from 1 on) and source.
    """

    tasks: tuple[Task, ...]
    cells: tuple[tuple[int, str], ...]


def read(path: Path) -> Notebook:
    """Read a notebook. Raises SpecError if there is none, or it is no exercise of this course.

    The exercise is known by the metadata that its solution gave it: the file may have been renamed.
    """
    if not path.is_file():
        problem = "is a directory: name a notebook in it" if path.is_dir() else "no such file"
        raise SpecError("notebook", str(path), problem)
    try:
        content = nbformat.read(path, as_version=4)
        exercise = content.metadata.get("lockstep", {}).get("exercise")
        numbered = enumerate((cell for cell in content.cells if cell.cell_type == "code"), 1)
        cells = tuple(
            (n, cell.source) for n, cell in numbered if LOOK not in cell.metadata.get("tags", ())
        )
    except Exception as error:  # nbformat has no error of its own for what is no notebook
        problem = f"cannot be read as a notebook: {type(error).__name__}: {error}"
        raise SpecError("notebook", str(path), problem) from None
    if exercise not in sets():
        problem = f"is no exercise of this course; there are {', '.join(sets())}"
        raise SpecError("notebook", str(path), problem)
    return Notebook(sets()[exercise], cells)


def run(cells: Sequence[tuple[int, str]]) -> tuple[dict[str, Any], list[str]]:
    """Run cells as Jupyter does, magics included: the names that they define, and what went wrong
    in which cell.
    """
    # IPython takes half a second to import: only where cells run
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    # what went wrong is told with the answer that it cost
    shell.showtraceback = shell.showsyntaxerror = lambda *_, **__: None
    troubles = []
    for number, source in cells:
        error: BaseException | None
        try:
            with bounded(CELL_PATIENCE):
                result = shell.run_cell(source)
            error = result.error_before_exec or result.error_in_exec
        except TookTooLong as late:
            error = late
        if isinstance(error, TookTooLong):
            troubles.append(f"code cell {number} {error}: does a loop in it never end?")
        elif error is not None:
            troubles.append(f"code cell {number} raises {type(error).__name__}: {error}")
    return shell.user_ns, troubles
