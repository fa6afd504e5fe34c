"""A learner's copy of the course: what they wrote outlives every later version."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from course_lib.course.copies import DELIVERED, deliver
from course_lib.errors import SpecError

LESSON = Path("notebooks") / "01_lesson.ipynb"
PAGE = Path("notebooks") / "page.md"


def notebook(path: Path, cells: dict[str, str]) -> None:
    made: Any = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source, id=name) for name, source in cells.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)


def cells(path: Path) -> dict[str, str]:
    return {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}


@pytest.fixture
def course(tmp_path: Path) -> Path:
    notebook(tmp_path / "course" / LESSON, {"a": "1", "b": "answer = None", "c": "3"})
    (tmp_path / "course" / PAGE).write_text("old")
    (tmp_path / "course" / "exercises").mkdir()
    return tmp_path / "course"


def test_answers_and_cells_of_a_learner_s_own_stay_and_the_rest_becomes_the_new_version(
    course: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    assert deliver(course, mine) == []
    notebook(mine / LESSON, {"a": "1", "b": "answer = 42", "own": "my note", "c": "3"})
    notebook(course / LESSON, {"new": "0", "a": "one", "b": "answer = ...", "c": "3"})
    (said,) = deliver(course, mine)
    assert "brought up to date around your cells" in said
    assert list(cells(mine / LESSON).items()) == [
        ("new", "0"),
        ("a", "one"),
        ("b", "answer = 42"),
        ("own", "my note"),
        ("c", "3"),
    ]
    assert cells(mine / "notebooks" / "01_lesson.before.ipynb")["b"] == "answer = 42"
    assert deliver(course, mine) == []
    assert cells(mine / LESSON)["b"] == "answer = 42"


def test_pages_of_strategies_come_along_and_judges_do_not(course: Path, tmp_path: Path) -> None:
    for path in ("notebooks/strategies/local_sgd.py", "exercises/checks/judge.py"):
        (course / path).parent.mkdir(parents=True)
        (course / path).write_text("EVERY = 8")
    deliver(course, tmp_path / "mine")
    (mine,) = (tmp_path / "mine").glob("notebooks/strategies/*.py")
    assert not (tmp_path / "mine" / "exercises" / "checks").exists()
    mine.write_text("EVERY = 4")
    (course / "notebooks/strategies/local_sgd.py").write_text("EVERY = 16")
    (note,) = deliver(course, tmp_path / "mine")
    assert "yours is kept" in note
    assert mine.read_text() == "EVERY = 4"


def test_a_cell_that_the_course_dropped_stays_if_the_learner_wrote_in_it(
    course: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    deliver(course, mine)
    notebook(mine / LESSON, {"a": "1", "b": "answer = 42", "c": "3"})
    notebook(course / LESSON, {"a": "1", "c": "3"})
    deliver(course, mine)
    assert list(cells(mine / LESSON)) == ["a", "b", "c"]


def test_a_notebook_that_was_only_run_becomes_the_new_one(course: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    deliver(course, mine)
    run: Any = nbformat.read(mine / LESSON, as_version=4)
    run.cells[0].outputs = [nbformat.v4.new_output("stream", text="1")]
    nbformat.write(run, mine / LESSON)
    assert deliver(course, mine) == []  # nothing new: its outputs stay
    assert nbformat.read(mine / LESSON, as_version=4).cells[0].outputs
    notebook(course / LESSON, {"a": "one"})
    assert deliver(course, mine) == []
    assert cells(mine / LESSON) == {"a": "one"}


@pytest.mark.parametrize("content", ["", "{", "no notebook"])
def test_what_is_no_notebook_any_more_is_kept(course: Path, tmp_path: Path, content: str) -> None:
    mine = tmp_path / "mine"
    deliver(course, mine)
    (mine / LESSON).write_text(content)
    notebook(course / LESSON, {"a": "one"})
    (said,) = deliver(course, mine)
    assert (mine / LESSON).read_text() == content
    assert said.endswith(f"the course's: {mine / DELIVERED / LESSON}")
    assert cells(mine / DELIVERED / LESSON) == {"a": "one"}


def test_another_file_is_replaced_unless_the_learner_changed_it(
    course: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    deliver(course, mine)
    (course / PAGE).write_text("new")
    deliver(course, mine)
    assert (mine / PAGE).read_text() == "new"
    (mine / PAGE).write_text("mine")
    (course / PAGE).write_text("newer")
    (said,) = deliver(course, mine)
    assert (mine / PAGE).read_text() == "mine" and "yours is kept" in said


def test_files_that_were_there_before_the_first_copy_are_not_overwritten(
    course: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    notebook(mine / LESSON, {"a": "1", "b": "answer = 42"})
    deliver(course, mine)
    assert cells(mine / LESSON)["b"] == "answer = 42"


def test_the_course_itself_is_no_place_for_a_copy(course: Path) -> None:
    with pytest.raises(SpecError, match="outside of the course's own"):
        deliver(course, course / "notebooks")
