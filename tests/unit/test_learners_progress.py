"""What a learner has solved is kept in one file that nothing disturbs, and shown as a card."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib import progress
from course_lib.course import check
from course_lib.course.answers import sets
from course_lib.course.cards import NAME, Standing, note, noted, place
from course_lib.errors import SpecError
from course_lib.widgets.cards import predict


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course of which an exercise is open in Jupyter."""
    (tmp_path / "exercises").mkdir()
    names = {"__session__": str(tmp_path / "exercises" / "04_ring.ipynb")}
    monkeypatch.setattr(predict, "get_ipython", lambda: SimpleNamespace(user_ns=names))
    return tmp_path


def stub(workers: int) -> None:
    raise NotImplementedError


def test_a_check_counts_as_a_try_until_one_passes_and_a_stub_does_not(course: Path) -> None:
    check("ring", stub)
    check("ring", None)
    check("ring", lambda: None)
    assert noted(course / NAME) == {"ring": Standing(2)}
    note("ring", "passed")
    note("ring", "not yet")
    standings = noted(place())
    assert standings["ring"].checks == 3 and standings["ring"].solved[:2] == "20"


def test_lessons_and_exercises_of_a_course_have_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place() is None  # no notebook is open: a test run leaves nothing
    for folder in ("notebooks", "exercises", ""):
        shell = SimpleNamespace(user_ns={"__session__": str(tmp_path / folder / "x.ipynb")})
        monkeypatch.setattr(predict, "get_ipython", lambda shell=shell: shell)
        assert place() == tmp_path / NAME


def test_kernels_that_note_at_the_same_time_lose_nothing(course: Path) -> None:
    noting = [threading.Thread(target=lambda: [note("tree", "not yet") for _ in range(50)])] * 1
    noting += [threading.Thread(target=lambda: [note("ring", "not yet") for _ in range(50)])]
    for each in noting:
        each.start()
    for each in noting:
        each.join()
    assert noted(course / NAME) == {"tree": Standing(50), "ring": Standing(50)}


def test_of_a_damaged_file_what_can_be_read_counts(course: Path) -> None:
    note("ring", "not yet")
    with (course / NAME).open("ab") as file:
        file.write(b'{"task": "ri\n\xff\xfe\n3\n[]\n')
    note("ring", "not yet")
    assert progress().standings == {"ring": Standing(2)}


def test_a_place_that_cannot_be_written_or_read_costs_no_check(course: Path) -> None:
    (course / NAME).mkdir()
    assert check("ring", None).state == "not yet"
    assert progress().standings == {}


def test_all_exercises_are_shown_with_their_points_and_what_is_solved(course: Path) -> None:
    note("ring", "not yet")
    note("ring", "passed")
    note("tree", "not yet")
    shown = progress()
    tasks = [task for each in sets().values() for task in each]
    most = sum(task.points for task in tasks)
    assert shown.summary() == f"1 of {len(tasks)} tasks solved, 10 of {most} points."
    lines = {row[1]: row for row in shown.rows()}
    assert list(lines) == [task.name for task in tasks]
    assert lines["ring"][0] == "04 allreduce from scratch"
    assert lines["ring"][3].startswith("solved 20") and lines["ring"][3].endswith(", 2 checks")
    assert (lines["tree"][3], lines["train"][3]) == ("not yet, 1 check", "to do")
    html = shown._repr_html_()
    assert (
        'class="solved">solved' in html and "<script" not in html and repr(shown) == shown.table()
    )


def test_a_course_elsewhere_is_shown_by_its_folder(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note("ring", "passed")
    monkeypatch.undo()
    assert progress(course).summary().startswith("1 of ")
    with pytest.raises(SpecError, match="folder"):
        progress(tmp_path / "none")
