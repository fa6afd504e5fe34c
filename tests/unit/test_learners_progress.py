"""What a learner has solved is kept in one file that nothing disturbs, and shown as a card."""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib import progress
from course_lib.course import check
from course_lib.course.answers import sets
from course_lib.course.cards import NAME, Book, Progress, Standing, books, note, noted, place
from course_lib.errors import SpecError
from course_lib.widgets.cards import predict

ROOT = Path(__file__).parents[2]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course of which an exercise is open in Jupyter."""
    (tmp_path / "exercises").mkdir()
    names = {"__session__": str(tmp_path / "exercises" / "04_ring.ipynb")}
    monkeypatch.setattr(predict, "running", lambda: SimpleNamespace(user_ns=names))
    return tmp_path


def begun() -> str:
    """How the task `ring` stands in the card."""
    return next(row[3] for row in progress().rows() if row[1] == "ring")


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
        monkeypatch.setattr(predict, "running", lambda shell=shell: shell)
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
    assert noted(place()) == {"ring": Standing(2)} and begun() == "not yet, 2 checks"


def test_a_place_that_cannot_be_written_or_read_costs_no_check(course: Path) -> None:
    (course / NAME).mkdir()
    assert check("ring", None).state == "not yet"
    assert noted(place()) == {} and begun() == "to do"


def test_all_exercises_are_shown_with_their_points_and_what_is_solved(course: Path) -> None:
    note("ring", "not yet")
    note("ring", "passed")
    note("tree", "not yet")
    shown = progress()
    tasks = [task for each in sets().values() for task in each]
    most = sum(task.points for task in tasks)
    assert f"1 of {len(tasks)} tasks solved, 10 of {most} points." in shown.summary()
    lines = {row[1]: row for row in shown.rows() if not row[0]}
    assert {*lines} == {task.name for task in tasks}
    assert lines["ring"][2] == "10 points" and lines["ring"][3].startswith("solved 20")
    assert lines["ring"][3].endswith(", 2 checks")
    assert (lines["tree"][3], lines["train"][3]) == ("not yet, 1 check", "to do")
    html = shown._repr_html_()
    assert 'class="solved">solved' in html and "<script" not in html
    assert repr(shown) == shown.table()


def test_lessons_and_exercises_stand_in_the_order_of_the_course_in_one_table(course: Path) -> None:
    books = progress().books
    names = [f"{book.path.parent.name}/{book.path.stem[:2]}" for book in books]
    assert names[:5] == [
        *("notebooks/00", "notebooks/01", "notebooks/02"),
        *("exercises/02", "notebooks/03"),
    ]
    assert {book.path for book in books} == {
        *ROOT.glob("notebooks/*.ipynb"),
        *ROOT.glob("exercises/*.ipynb"),
    }
    assert books[0].cells[0] == "00 · Start here"
    html = progress()._repr_html_()
    assert html.count("<table") == 1 and html.count("<tbody") == len(books)
    tree = ET.fromstring(html[html.index("<div") :])
    assert {len(row.findall("*")) for row in tree.iter("tr")} == {4}
    links = [str(link.get("href")) for link in tree.iter("a")][1:]
    assert [(course / "exercises" / link).resolve() for link in links] == [b.path for b in books]


def locked(*answered: bool) -> None:
    """Lock a guess for each, and let it meet its result if it is True."""
    for number, shown in enumerate(answered):
        card = predict.Predict(f"Which of {number}?", choices=["a", "b"])
        card.input.value = "a"
        card.lock()
        if shown:
            card.reveal("b")


def test_a_lesson_is_done_when_each_guess_has_met_its_result(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> tuple[str, ...]:
        return next(b.cells for b in progress().books if b.path.stem == "01_one_device")

    assert state() == (
        "01 · One device, and when not to distribute",
        "0 of 2 questions",
        "",
        "to do",
    )
    for folder in ("notebooks", ""):  # or a copy, for which the course is the folder
        (course / folder).mkdir(exist_ok=True)
        names = {"__session__": str(course / folder / "01_one_device.ipynb")}
        monkeypatch.setattr(predict, "running", lambda names=names: SimpleNamespace(user_ns=names))
        locked(False, False)
        assert state()[1:] == ("0 of 2 questions", "", "to do")
        locked(True, False)
        assert state()[1:] == ("1 of 2 questions", "", "begun")
        locked(True, True)
        assert state()[1:] == ("2 of 2 questions", "", "done")
        assert progress().summary().startswith("1 of 16 lessons done.")
        kept = course / folder / predict.NAME
        for damage in ("{", '{"x": 3, "y": {"guess": 1, "lesson": [], "result": 0}}'):
            kept.write_text(damage)
            assert state()[3] == "to do"


def test_one_goes_on_with_the_first_lesson_not_done_from_the_last_one_begun() -> None:
    def following(**states: str) -> str:
        lessons = [Book(Path("n"), (name, "", "", state), ()) for name, state in states.items()]
        task = ("", "ring", "10 points", "to do")
        return Progress(
            [*lessons, Book(Path("e"), ("exercise", "", "", "to do"), [task])]
        ).following()[1]

    assert following(a="to do", b="to do") == "Go on with lesson a."
    assert following(a="to do", b="done", c="to do") == "Go on with lesson c."
    assert following(a="done", b="begun", c="to do") == "Go on with lesson b."
    assert following(a="to do", b="done") == "Go on with lesson a."
    assert following(a="done", b="done") == "Go on with exercise."
    done = Progress([Book(Path("n"), ("a", "", "", "done"), ())])
    assert "All is done." in done.body() and done.following() == (
        None,
        "All is done.",
    )


def test_a_notebook_that_a_learner_has_damaged_stands_in_the_card(tmp_path: Path) -> None:
    for folder in ("notebooks", "exercises"):
        (tmp_path / folder).mkdir()
    for number, damage in enumerate(("", "{", "[]", '{"cells": []}', '{"cells": [{}]}')):
        (tmp_path / "notebooks" / f"0{number}.ipynb").write_text(damage)
        (tmp_path / "exercises" / f"0{number}.ipynb").write_text(damage)
    found = books(tmp_path, {"00": sets()["05_racks"]}, None)
    assert len(found) == 10 and {book.cells[3] for book in found} == {"to do"}


def test_a_course_elsewhere_is_shown_by_its_folder(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note("ring", "passed")
    monkeypatch.undo()
    assert "1 of 42 tasks solved" in progress(course).summary()
    with pytest.raises(SpecError, match="folder"):
        progress(tmp_path / "none")
