"""Exercises from solutions: answers and hidden tests taken out, outputs cleared.

The markers are nbgrader's.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_lib.errors import SpecError

# what a learner finds in place of an answer; checks know it as "to do"
STUB = 'raise NotImplementedError("your turn")'
PLACE = "# your turn"  # outside a function, where nothing can be raised without ending the notebook
_MARKER = re.compile(r"\s*### (BEGIN|END) (SOLUTION|HIDDEN TESTS)\s*")


def generate(solutions: Path, exercises: Path) -> list[Path]:
    """Write the exercise of each notebook in `solutions`; the paths written.

    Raises SpecError where markers do not match.
    """
    found = sorted(solutions.glob("*.ipynb"))
    if not found:
        raise SpecError("solutions", str(solutions), "a directory with notebooks")
    written = []
    for path in found:
        target = exercises / path.name
        target.write_text(exercise_text(path), encoding="utf-8")
        written.append(target)
    return written


def exercise_text(solution: Path) -> str:
    """The exercise made from a solution, as the text of its notebook file."""
    notebook = exercise_of(nbformat.read(solution, as_version=4), solution.name)
    return nbformat.writes(notebook) + "\n"


def exercise_of(solution: NotebookNode, name: str = "solution") -> NotebookNode:
    """The exercise of a solution. Cells keep their ids; one that held nothing but hidden tests is
    left out.
    """
    cells = []
    for cell in solution.cells:
        new = NotebookNode(cell)
        if cell.cell_type == "code":
            new.source = without_answers(cell.source, f"{name}, cell {cell.id}")
            new.outputs, new.execution_count = [], None
            if not new.source and cell.source:
                continue
        cells.append(new)
    return NotebookNode({**solution, "cells": cells})


def without_answers(source: str, where: str) -> str:
    """Code with what stands between markers taken out: of a solution a stub remains, of hidden
    tests nothing. Raises SpecError.
    """
    lines: list[str] = []
    inside = ""
    for line in source.split("\n"):
        marker = _MARKER.fullmatch(line)
        if marker:
            side, what = marker.groups()
            if (side == "BEGIN") == bool(inside) or (side == "END" and what != inside):
                raise SpecError(
                    "marker", line.strip(), f"does not match the marker before it ({where})"
                )
            if side == "BEGIN" and what == "SOLUTION":
                indent = line[: len(line) - len(line.lstrip())]
                lines.append(indent + STUB if indent else PLACE)
            inside = what if side == "BEGIN" else ""
        elif not inside:
            lines.append(line)
    if inside:
        raise SpecError("marker", f"### BEGIN {inside}", f"has no ### END {inside} ({where})")
    return "\n".join(lines).strip("\n")
