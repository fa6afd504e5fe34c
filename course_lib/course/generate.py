"""Exercises from solutions: answers and hidden tests are taken out, outputs cleared. The markers
are nbgrader's, and so is the metadata of answers and checks, which is written from the tasks.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat

from course_lib.course.answers import sets
from course_lib.errors import SpecError

# what a learner finds in place of an answer; checks know it as "to do"
STUB = 'raise NotImplementedError("your turn")'
PLACE = "# your turn"  # outside a function, where nothing can be raised without ending the notebook
_MARKER = re.compile(r"\s*### (BEGIN|END) (SOLUTION|HIDDEN TESTS)\s*")
_CHECK = re.compile(r"""\bcheck\(["'](\w+)["']""")


def generate(solutions: Path, exercises: Path) -> list[Path]:
    """Write the exercise of each notebook in `solutions`, and return the paths written. The
    solutions get their metadata for nbgrader.

    Raises SpecError if there is no notebook, or its markers do not match.
    """
    found: list[Path] = []
    with suppress(OSError):  # of a name that is too long
        found = sorted(solutions.glob("*.ipynb"))
    if not found:
        raise SpecError("solutions", str(solutions), "a directory with notebooks")
    for path in found:
        try:
            path.write_text(solution_text(path), encoding="utf-8")
            made = exercise_text(path)
            (exercises / path.name).write_text(made, encoding="utf-8")
        except OSError as error:
            why = f"cannot be written ({error.strerror}): name a directory"
            raise SpecError("out", str(exercises), why) from None
    return [exercises / path.name for path in found]


def solution_text(solution: Path) -> str:
    """A solution with nbgrader's metadata: a cell with an answer is a solution, and one with hidden
    tests is locked and has the points of the task that it checks.
    """
    with opened(solution) as notebook:
        exercise = notebook.metadata.get("lockstep", {}).get("exercise")
        points = {task.name: task.points for task in sets().get(exercise, ())}
        for cell in notebook.cells if points else ():
            cell.metadata.pop("nbgrader", None)
            hidden = "### BEGIN HIDDEN TESTS" in cell.source
            answer = "### BEGIN SOLUTION" in cell.source
            if cell.cell_type == "code" and (hidden or answer):
                graded = {"points": points[checks(cell.source)]} if hidden else {}
                cell.metadata["nbgrader"] = {
                    "cell_type": "code",
                    "grade": hidden,
                    "grade_id": cell.id,
                    "locked": hidden,
                    **graded,
                    "schema_version": 3,
                    "solution": answer,
                    "task": False,
                }
        return nbformat.writes(notebook) + "\n"


def checks(source: str) -> str:
    """The task that a cell checks. Raises SpecError if it checks none."""
    found = _CHECK.search(source)
    if not found:
        raise SpecError("cell", source, 'hidden tests follow a check: verdict = check("ring", ...)')
    return found[1]


def exercise_text(solution: Path) -> str:
    """The exercise made from a solution, as the text of its notebook file. Cells keep their ids; a
    cell with nothing but hidden tests is left out.
    """
    cells = []
    with opened(solution) as notebook:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                source = without_answers(cell.source, f"{solution.name}, cell {cell.id}")
                if cell.source and not source:
                    continue
                cell.update(source=source, outputs=[], execution_count=None)
                if graded := cell.metadata.get("nbgrader"):  # locked as nbgrader does it
                    cell.metadata.deletable = False
                    cell.metadata.update({"editable": False} if graded.locked else {})
            cells.append(cell)
        notebook.cells = cells
        return nbformat.writes(notebook) + "\n"


@contextmanager
def opened(path: Path) -> Iterator[nbformat.NotebookNode]:
    """A notebook, for the block that looks into it. Raises SpecError for a file that is none, or
    that has other things in it than notebooks have.
    """
    try:
        if not path.is_file():
            problem = "is a directory: name a notebook in it" if path.is_dir() else "no such file"
            raise SpecError("notebook", str(path), problem)
        yield nbformat.read(path, as_version=4)
    except SpecError:
        raise
    except Exception as error:  # nbformat has no error of its own for what is no notebook
        problem = f"cannot be read as a notebook: {type(error).__name__}: {error}"
        raise SpecError("notebook", str(path), problem) from None


def without_answers(source: str, where: str) -> str:
    """`source` without what stands between markers: a stub takes the place of a solution, nothing
    that of hidden tests. Raises SpecError, which names the cell (`where`), if markers do not match.
    """
    lines: list[str] = []
    inside = ""
    for line in source.split("\n"):
        marker = _MARKER.fullmatch(line)
        if marker:
            side, what = marker.groups()
            if (side == "BEGIN") == bool(inside) or (side == "END" and what != inside):
                problem = f"does not match the marker before it ({where})"
                raise SpecError("marker", line.strip(), problem)
            if side == "BEGIN" and what == "SOLUTION":
                indent = line[: len(line) - len(line.lstrip())]
                lines.append(indent + STUB if indent else PLACE)
            inside = what if side == "BEGIN" else ""
        elif not inside:
            lines.append(line)
    if inside:
        raise SpecError("marker", f"### BEGIN {inside}", f"has no ### END {inside} ({where})")
    return "\n".join(lines).strip("\n")
