"""An exercise with nbgrader: released, handed in by three learners, graded and given back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbgrader.api import Gradebook

from course_lib.course.answers import sets
from course_lib.course.instructors import set_up
from tests.processes.test_exercises import EXERCISE, ROOT, SOLUTION

NAME = EXERCISE.stem
FOOLS = """
from course_lib.course import answers, check
answers.Verdict.__bool__ = lambda self: True
check = lambda task, answer: 1.0
def my_ring(workers):
    return None
print("4 of 4 passed")
"""


def nbgrader(course: Path, *arguments: str) -> None:
    """A command of nbgrader, in the directory of a course."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it calls alembic
    where = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(course)}
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(command, cwd=course, env=where, capture_output=True, timeout=170)
    assert done.returncode == 0, done.stderr.decode()


def cells(path: Path) -> list[NotebookNode]:
    return list(nbformat.read(path, as_version=4).cells)


def hand_in(course: Path, who: str, answers: dict[str, str]) -> None:
    """The released notebook with the sources of some cells replaced, by their ids."""
    notebook = nbformat.read(course / "release" / NAME / f"{NAME}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    (course / "submitted" / who / NAME).mkdir(parents=True)
    nbformat.write(notebook, course / "submitted" / who / NAME / f"{NAME}.ipynb")


@pytest.mark.timeout(600)
def test_an_exercise_is_released_graded_and_given_back(tmp_path: Path) -> None:
    set_up(ROOT / "solutions", tmp_path)
    nbgrader(tmp_path, "generate_assignment", NAME)

    released = cells(tmp_path / "release" / NAME / f"{NAME}.ipynb")
    for cell in released:
        cell.metadata.get("nbgrader", {}).pop("checksum", None)
    assert released == cells(EXERCISE)  # what `lockstep exercises` makes

    solved = {cell.id: cell.source for cell in cells(SOLUTION) if cell.id.startswith("answer-")}
    half = {name: solved[name] for name in ("answer-reduce-to-one", "answer-ring")}
    hand_in(tmp_path, "right", solved)
    hand_in(tmp_path, "half", half | {"answer-tree": "def my_tree(workers):\n    return None"})
    hand_in(tmp_path, "fools", {"answer-tree": FOOLS, "check-tree": "1.0"})
    nbgrader(tmp_path, "autograde", NAME)
    nbgrader(tmp_path, "generate_feedback", NAME)

    points = [task.points for task in sets()[NAME]]
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as book:
        given = {each.student.id: each for each in book.assignment_submissions(NAME)}
        scores = {who: (each.score, each.max_score) for who, each in given.items()}
        assert not any(each.needs_manual_grade for each in given.values())
    most = sum(points)
    assert scores == {"right": (most, most), "half": (sum(points[:2]), most), "fools": (0, most)}

    feedback = (tmp_path / "feedback" / "half" / NAME / f"{NAME}.html").read_text()
    assert "ring: passed." in feedback and "my_tree returns nothing" in feedback
