"""Checks and hints of exercises, whatever the exercise, and exercises made from solutions."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import psutil
import pytest

from course_lib.__main__ import main
from course_lib.cluster.pipes import pair
from course_lib.collectives import ring
from course_lib.course import check, hint
from course_lib.course.answers import Verdict, find, sets
from course_lib.course.grading import Bounds, Ended, Examinee, read
from course_lib.course.handed_in import TookTooLong, bounded, plain, rebuilt
from course_lib.course.instructors import (
    STUB,
    checked,
    exercise_text,
    generate,
    module_of,
    module_text,
    solution_text,
)
from course_lib.errors import SpecError, Unavailable
from course_lib.record.trace import Trace
from tests.made_up import training

ROOT = Path(__file__).parents[2]
EXERCISES = sets()
TASKS = [task.name for tasks in EXERCISES.values() for task in tasks]

# --- check and hint ---


@pytest.mark.parametrize(
    ("answer", "says"), [(ring(4), "of type Schedule."), (None, "This is None.")], ids=str
)
@pytest.mark.parametrize("task", TASKS)
def test_what_is_no_function_is_told_how_to_ask(task: str, answer: Any, says: str) -> None:
    verdict = check(task, answer)
    assert verdict.state == "not yet"
    assert f"{says} Give the function itself" in verdict.text


@pytest.mark.sample(4)
@pytest.mark.parametrize("task", TASKS)
def test_a_stub_is_no_mistake_but_still_to_do(task: str) -> None:
    def stub(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("your turn")

    verdict = check(task, stub)
    assert (verdict.state, bool(verdict)) == ("to do", False)


def test_an_unknown_task_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match="did you mean 'ring'"):
        check("rign", ring)
    with pytest.raises(SpecError, match="did you mean 'tree'"):
        hint("treee")


@pytest.mark.parametrize("task", TASKS)
def test_there_are_three_hints_(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    for level in (1, 2, 3):
        hint(task, level)
    assert re.findall(r"^Hint (\d) of 3", capsys.readouterr().out, re.M) == ["1", "2", "3"]
    with pytest.raises(SpecError, match="1 to 3"):
        hint(task, level=4)


# --- a verdict as a card ---


def test_a_card_of_a_pass_has_a_tick_and_no_hints() -> None:
    html = Verdict("ring", "passed", "Proved.\nCarried out.", shown=ring(3))._repr_html_()
    assert 'class="passed"' in html and "<b>Proved.</b>" in html and "Carried out." in html
    assert "<img" in html and "<details" not in html


def test_a_card_escapes_the_words_of_an_answer() -> None:
    html = check("ring", lambda workers: "<b>bold</b>")._repr_html_()
    assert "&lt;lambda&gt;" in html and "<b>bold" not in html


def test_a_card_of_a_run_shows_the_last_steps_of_its_lanes() -> None:
    trace = Trace(training(workers=2, steps=20))
    said = Verdict("train", "not yet", "It stopped.", "Wait for it.", trace)._repr_html_()
    assert said.index("<b>It stopped.</b>") < said.index("Wait for it.") < said.index("<img")
    svg = base64.b64decode(said.split("base64,")[1].split('"')[0]).decode()
    assert "last steps" in svg and "worker:1" in svg


def test_what_stands_between_backticks_is_code_on_the_card_and_as_it_is_in_text() -> None:
    verdict = Verdict("ring", "not yet", "It returns nothing: is `return` missing?", "See `<b>`.")
    html = verdict._repr_html_()
    assert "<code>return</code> missing" in html
    assert "See <code>&lt;b&gt;</code>." in html
    assert "is `return` missing?" in repr(verdict)


def test_the_card_says_which_rounds_its_picture_leaves_out() -> None:
    assert "left out" not in Verdict("ring", "passed", "Proved.", shown=ring(3))._repr_html_()
    html = Verdict("ring", "passed", "Proved.", shown=ring(5))._repr_html_()
    assert "Rounds before 5 are left out: the picture would be too large." in html


def test_what_cannot_be_drawn_is_left_out_of_the_card() -> None:
    for shown in (Trace(), ring(40)):
        html = Verdict("ring", "not yet", "No.", shown=shown)._repr_html_()
        assert "<b>No.</b>" in html and "<img" not in html


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_its_section_in_a_lesson(task: str) -> None:
    lesson, _, heading = find(task).section.partition("#")
    cells = nbformat.read(ROOT / "notebooks" / f"{lesson}.ipynb", as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    # once, as an anchor leads to the first one
    assert len(re.findall(rf"^##+ {re.escape(heading)}$", text, re.M)) == 1


def test_a_check_that_fails_ends_with_the_section_of_the_lesson_and_no_other_does() -> None:
    words = "Lesson 03 explains this: "
    link = "../notebooks/03_synchronous_training.ipynb#Are-the-replicas-still-equal?"
    verdict = Verdict("same_start", "not yet", "No.")
    html = verdict._repr_html_()
    assert html.index("Hint 3") < html.index(f'{words}<a href="{link}">Are the replicas')
    assert f"{words}Are the replicas still equal? (notebooks/03_synch" in repr(verdict)
    for state in ("passed", "to do"):
        other = Verdict("same_start", state, "No.")  # type: ignore[arg-type]
        assert words not in repr(other) and words not in other._repr_html_()


# --- where the checks are ---

TOY = """
from course_lib.course.answers import ExerciseTask, Verdict

def judge(task, answer):
    return Verdict(task, "passed" if answer() == 7 else "not yet", "It returns 7.")

TASKS = (ExerciseTask("seven", "seven", ("a", "b", "c"), judge),)
"""


@pytest.fixture
def other_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of its own for the checks of exercises; there is nothing yet."""
    monkeypatch.setattr("course_lib.course.answers.CHECKS", tmp_path / "checks")
    sets.cache_clear()
    yield tmp_path / "checks"
    sets.cache_clear()


def test_a_new_set_is_found_by_its_file_alone(other_checks: Path) -> None:
    other_checks.mkdir()
    (other_checks / "__init__.py").touch()
    (other_checks / "99_toy.py").write_text(TOY)
    assert check("seven", lambda: 7)
    assert not check("seven", lambda: 8)
    assert [(name, [t.name for t in tasks]) for name, tasks in sets().items()] == [
        ("99_toy", ["seven"])
    ]


def test_without_the_checks_the_cure_is_said(other_checks: Path) -> None:
    with pytest.raises(Unavailable, match=r"no folder .*checks.*pip install -e \."):
        check("ring", ring)


def test_no_two_tasks_have_one_name() -> None:
    assert len(TASKS) == len(set(TASKS))


# --- bounds on computing ---


def compute(seconds: float) -> None:
    """Use up processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_block_that_computes_too_long_is_ended_and_one_that_does_not_is_left_alone() -> None:
    with pytest.raises(TookTooLong, match=r"0\.05 seconds"), bounded(0.05):
        compute(5)
    with bounded(5):
        compute(0.05)
    compute(0.1)  # nothing rings afterwards


@pytest.mark.parametrize("inner", [0.02, 5.0])
def test_the_bound_of_an_outer_block_holds_after_an_inner_one(inner: float) -> None:
    with pytest.raises(TookTooLong, match=r"0\.1 seconds"), bounded(0.1):
        with contextlib.suppress(TookTooLong), bounded(inner):
            compute(0.05)
        compute(5)


@pytest.mark.parametrize("inner", [0.3, 5.0])
def test_the_bound_of_an_outer_block_holds_inside_an_inner_one(inner: float) -> None:
    with pytest.raises(TookTooLong, match=r"0\.1 seconds"), bounded(0.1), bounded(inner):
        compute(5)


def test_an_import_may_take_longer_than_a_bound_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"
    for name, seconds in (("takes_a_while", 0.2), ("takes_for_ever", 60)):
        (tmp_path / f"{name}.py").write_text(work.format(seconds))
    monkeypatch.syspath_prepend(str(tmp_path))
    with bounded(0.05):
        importlib.import_module("takes_a_while")
    with pytest.raises(TookTooLong), bounded(0.05):
        importlib.import_module("takes_for_ever")


def test_a_bound_that_is_swallowed_is_raised_again() -> None:
    with pytest.raises(TookTooLong), bounded(0.05):
        with contextlib.suppress(TookTooLong):
            compute(5)
        compute(5)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        (Bounds(patience=0.1), "after 0.1 seconds"),
        (Bounds(computing=0.1), "more than 0.1 seconds"),
        (Bounds(memory=1), "0.0 GB"),
        (Bounds(processes=0), "0 processes"),
    ],
    ids=["patience", "computing", "memory", "processes"],
)
def test_an_examinee_that_goes_beyond_a_bound_is_given_up_in_words(
    bounds: Bounds, says: str
) -> None:
    """The examinee here is this very process, which computes meanwhile and says nothing."""
    busy = threading.Thread(target=compute, args=(0.5,), daemon=True)
    channel, theirs = pair()
    with theirs, contextlib.closing(channel):
        by = Examinee(RUNNING, psutil.Process(), channel, bounds)
        by.begin("Checking ring")
        busy.start()
        with pytest.raises(Ended, match=re.escape(says)):
            by.ask(call="my_ring")
    busy.join()


RUNNING: Any = SimpleNamespace(state="running", wait=lambda timeout: None)


@pytest.mark.parametrize(
    "said",
    [
        b'{"number": 1}',
        b'{"number": 1, "seconds": -1}',
        b'{"number": 1, "seconds": NaN}',
        b'{"number": 1, "seconds": 0, "raised": "perhaps"}',
        b'{"number": 0, "seconds": 0, "value": 3}',
        b'[1, 0, "passed"]',
        b"passed",
    ],
)
def test_what_an_examinee_says_in_another_form_is_no_answer(said: bytes) -> None:
    channel, theirs = pair()
    with theirs, contextlib.closing(channel):
        by = Examinee(RUNNING, psutil.Process(), channel, Bounds(patience=0.3))
        theirs.sendall(said + b"\n")
        with pytest.raises(Ended, match=r"gave back what cannot be read|was not done after"):
            by.ask(call="my_ring")


@pytest.mark.parametrize(
    "given",
    [None, True, 3, 2.5, "text", [1, [2, "x"]], ring(5), SpecError("steps", 3, "fewer")],
    ids=str,
)
def test_plain_data_is_the_same_value_again(given: Any) -> None:
    again = rebuilt(json.loads(json.dumps(plain(given))))
    assert type(again) is type(given) and str(again) == str(given)
    array = rebuilt(json.loads(json.dumps(plain(np.arange(6.0).reshape(2, 3)))))
    assert array.shape == (2, 3) and array.dtype == float and array[1, 2] == 5


def test_of_other_objects_only_the_name_of_their_type_is_left() -> None:
    class Mine:
        def __reduce__(self) -> Any:
            return print, ("unpickled",)

    assert plain(Mine()) == ["other", "Mine"]
    assert type(rebuilt(plain(Mine()))).__name__ == "Mine"
    error = rebuilt(["error", "SystemExit", "3"])
    assert isinstance(error, Exception) and type(error).__name__ == "SystemExit"


# --- exercises from solutions ---


@pytest.mark.parametrize(
    "solution", sorted((ROOT / "solutions").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_the_exercise_is_what_its_solution_gives(solution: Path) -> None:
    """Else: `lockstep exercises` makes it anew."""
    made = (ROOT / "exercises" / solution.name).read_text(encoding="utf-8")
    assert made == exercise_text(solution)
    assert solution.read_text(encoding="utf-8") == solution_text(solution)  # nbgrader's metadata
    if module := module_of(solution):
        assert solution.with_name(module).read_text(encoding="utf-8") == module_text(solution)


@pytest.mark.parametrize("name", EXERCISES)
def test_each_task_has_one_cell_that_is_graded_with_its_points(name: str) -> None:
    solution = nbformat.read(ROOT / "solutions" / f"{name}.ipynb", as_version=4)
    meta = {
        cell.id: cell.metadata.nbgrader for cell in solution.cells if "nbgrader" in cell.metadata
    }
    graded = {
        checked(c.source): meta[c.id].points
        for c in solution.cells
        if c.id in meta and meta[c.id].grade
    }
    assert graded == {task.name: task.points for task in EXERCISES[name]}
    assert sum(each.solution for each in meta.values()) == len(EXERCISES[name])
    assert all(each.grade_id == name and each.locked == each.grade for name, each in meta.items())


def test_hidden_tests_without_a_check_are_refused(tmp_path: Path) -> None:
    hidden = nbformat.v4.new_code_cell("### BEGIN HIDDEN TESTS\nassert 1\n### END HIDDEN TESTS")
    notebook = nbformat.v4.new_notebook(cells=[hidden])
    notebook.metadata["lockstep"] = {"exercise": next(iter(EXERCISES))}
    nbformat.write(notebook, tmp_path / "x.ipynb")
    with pytest.raises(SpecError, match="hidden tests"):
        solution_text(tmp_path / "x.ipynb")


def test_every_exercise_has_a_solution_and_tasks() -> None:
    names = {path.stem for path in (ROOT / "exercises").glob("*.ipynb")}
    assert names == {path.stem for path in (ROOT / "solutions").glob("*.ipynb")} == set(EXERCISES)


@pytest.mark.parametrize("name", EXERCISES)
def test_an_exercise_holds_no_answer_no_hidden_test_and_no_output(name: str) -> None:
    made = nbformat.read(ROOT / "exercises" / f"{name}.ipynb", as_version=4)
    nbformat.validate(made)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert not any(
        word in cell.source for cell in code for word in ("### BEGIN", "### END", "assert verdict")
    )
    assert sum(STUB in cell.source for cell in code) == len(EXERCISES[name])


@pytest.mark.parametrize("name", EXERCISES)
def test_a_check_runs_the_cells_that_define_answers_and_none_that_only_look(name: str) -> None:
    for directory in ("exercises", "solutions"):
        tasks, cells = read(ROOT / directory / f"{name}.ipynb")
        defined = "\n".join(source for _, source in cells)
        assert tasks == EXERCISES[name]
        assert all(re.search(rf"^(def|class) {t.answer}\b", defined, re.MULTILINE) for t in tasks)
        assert "check(" not in defined


def made_of(path: Path, source: str) -> str:
    """The source of the exercise's only cell where the solution's is `source`."""
    cell = nbformat.v4.new_code_cell(source, id="seven")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    made: str = nbformat.reads(exercise_text(path), as_version=4).cells[0].source
    return made


def test_an_answer_becomes_a_stub_and_a_hidden_test_nothing(tmp_path: Path) -> None:
    source = """def f(x):
    y = 2 * x
    ### BEGIN SOLUTION
    if y:
        return y
    ### END SOLUTION


print(f(1))
### BEGIN HIDDEN TESTS
assert f(1) == 2
### END HIDDEN TESTS"""
    made = made_of(tmp_path / "lesson.ipynb", source)
    assert made == f"def f(x):\n    y = 2 * x\n    {STUB}\n\n\nprint(f(1))"


@pytest.mark.parametrize(
    "source",
    [
        "### BEGIN SOLUTION\nx = 1",
        "### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION",
        "### BEGIN SOLUTION\n### END HIDDEN TESTS",
    ],
)
def test_markers_that_do_not_match_are_refused_with_their_cell(tmp_path: Path, source: str) -> None:
    with pytest.raises(SpecError, match=r"cell seven"):
        made_of(tmp_path / "lesson.ipynb", source)


def test_a_cell_with_nothing_but_hidden_tests_is_left_out_and_the_others_keep_their_ids(
    tmp_path: Path,
) -> None:
    cell = nbformat.v4.new_code_cell
    hidden = cell("### BEGIN HIDDEN TESTS\nassert True\n### END HIDDEN TESTS", id="hidden")
    plain = cell(
        "1 + 1", id="plain", execution_count=3, outputs=[nbformat.v4.new_output("stream", text="2")]
    )
    (tmp_path / "out").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[plain, hidden]), tmp_path / "x.ipynb")
    (written,) = generate(tmp_path, tmp_path / "out")
    made = nbformat.read(written, as_version=4)
    assert [(c.id, c.outputs, c.execution_count) for c in made.cells] == [("plain", [], None)]
    with pytest.raises(SpecError, match="a directory with notebooks"):
        generate(tmp_path / "out" / "none", tmp_path)


def test_without_nbgrader_the_command_that_makes_exercises_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("course_lib.course.instructors", "nbgrader.converters"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nbgrader", None)
    with pytest.raises(SystemExit) as ended:
        main(["exercises"])
    assert ended.value.code == 2
    assert "pip install nbgrader" in (" ".join(capsys.readouterr().err.split()))


def test_what_is_no_exercise_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        read(tmp_path / "none.ipynb")
    (tmp_path / "text.ipynb").write_text("no notebook")
    with pytest.raises(SpecError, match="as a notebook"):
        read(tmp_path / "text.ipynb")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "other.ipynb")
    with pytest.raises(SpecError, match=r"no exercise .*04_allreduce_from_scratch"):
        read(tmp_path / "other.ipynb")
