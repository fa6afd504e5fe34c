"""Predict: a guess that is locked before the run and met again beside what the run gave."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course_lib.errors import SpecError
from course_lib.widgets import Guesses, Predict
from course_lib.widgets.cards import predict


def bars(card: Predict) -> list[float]:
    """Widths of the bars of guess and result, in order."""
    root = ET.fromstring(f"<div>{card.answer.value}</div>")
    return [float(e.get("width", 0)) for e in root.iter("rect") if e.get("stroke")]


def test_a_slider_that_was_never_moved_is_no_guess() -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    card.lock()
    assert card.guess is None and card.hint.value.startswith("Move the slider first")
    card.input.value = 40
    card.lock()
    assert card.guess == 40 and card.input.disabled and card.button.disabled


def touch(card: Predict, slider: int = 0, typed: Any = None) -> None:
    """What the page reports of a slider."""
    card._receive({"slider": slider, "typed": typed})


def test_a_slider_that_is_pressed_where_it_stands_is_a_guess() -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    touch(card)
    card.lock()
    assert card.guess == 0


def test_who_types_a_number_out_of_range_is_told_the_range_before_it_is_locked() -> None:
    card = Predict("How long?", numbers={"ring": (0, 100, "ms"), "tree": (5, 50, "")})
    touch(card, 1)
    touch(card, 0)
    touch(card, 0, typed=500)
    card.inputs["ring"].value = 100  # to which the slider changes it
    assert card.hint.value == "ring goes from 0 to 100 ms."
    card.lock()
    assert card.guess is None and card.hint.value == "ring goes from 0 to 100 ms."
    touch(card, 1, typed=0)
    assert card.hint.value == "tree goes from 5 to 50."
    touch(card, 1, typed=50)
    card.lock()
    assert card.guess == {"ring": 100, "tree": 5}


@pytest.mark.parametrize("typed", [500, "abc", "1,5"])
def test_what_no_slider_takes_is_refused_also_when_the_cursor_leaves_it(typed: Any) -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    touch(card)
    touch(card, typed=typed)
    card.input.value = 100
    touch(card, typed=100)  # what the slider shows as the cursor leaves
    card.lock()
    assert card.guess is None and card.hint.value == "The slider goes from 0 to 100 ms."


def test_a_slider_that_was_only_passed_through_is_no_guess() -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    touch(card, typed=0)
    card.lock()
    assert card.guess is None


def test_a_number_is_shown_as_it_was_typed_and_locked_without_the_dust_of_its_steps() -> None:
    card = Predict("How many?", numbers=(0.5, 6, "times"))
    assert card.input.readout_format == ",.6"  # 0.25 is 0.25, and 4 is 4
    card.input.value = 3.9999999999999996
    card.lock()
    assert card.guess == 4


def test_sliders_of_a_card_begin_at_one_place() -> None:
    card = Predict("How long?", numbers={"a": (0, 9, "ms"), "the others": (0, 9, "ms")})
    looks = {(s.style.description_width, s.layout.width) for s in card.inputs.values()}
    assert len(looks) == 1


def test_a_locked_guess_stays_when_the_slider_moves_and_a_second_lock_comes() -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    card.input.value = 40
    card.lock()
    card.input.value = 80
    card.lock()
    assert card.guess == 40 and card.input.disabled


@pytest.mark.parametrize(
    "span, typed",
    [
        *(((0, 200), 33), ((200, 500), 300), ((0, 2000), 1225), ((0, 5), 0.25), ((0.5, 6), 2.1)),
        *(((0, 2.3), 0.25), ((1, 10), 1.75), ((0.1, 20), 0.3)),
    ],
)
def test_a_number_that_is_typed_stays_as_it_is(span: tuple[float, float], typed: float) -> None:
    slider = Predict("How long?", numbers=(*span, "ms")).input
    steps = (typed - slider.min) / slider.step
    assert steps == pytest.approx(round(steps)) and slider.step <= (span[1] - span[0]) / 50


def test_a_choice_must_be_made_before_it_is_locked() -> None:
    card = Predict("Which?", choices=["a", "b"])
    card.lock()
    assert card.guess is None and card.hint.value == "Choose first."


def test_several_numbers_are_guessed_together_and_named_where_one_is_missing() -> None:
    card = Predict("How long?", numbers={"ring": (0, 100, "ms"), "tree": (0, 100, "ms")})
    card.inputs["ring"].value = 10
    card.lock()
    assert card.guess is None and card.hint.value.startswith("Move tree first")
    card.inputs["tree"].value = 20
    card.lock()
    assert card.guess == {"ring": 10, "tree": 20}
    text = card.reveal({"ring": 30.0, "tree": 1500.0})
    assert text == "Your guess: ring 10 ms, tree 20 ms. Result: ring 30 ms, tree 1,500 ms."
    assert len(bars(card)) == 4


def test_bars_begin_at_zero_so_that_their_lengths_compare() -> None:
    card = Predict("How fast?", numbers=(50, 100, "steps/s"))
    card.input.value = 80
    card.lock()
    card.reveal(40.0)
    guess, result = bars(card)
    assert abs((guess - 1) / (result - 1) - 2) < 0.02


def test_a_result_off_the_scale_is_drawn_whole() -> None:
    card = Predict("How long?", numbers=(0, 10, "ms"))
    card.input.value = 5
    card.lock()
    card.reveal(50.0)
    assert max(bars(card)) <= 301


def test_a_card_has_a_picture_before_there_is_a_guess() -> None:
    for numbers in ((0, 10, "ms"), {"ring": (0, 10, "ms"), "tree": (0, 10, "ms")}):
        card = Predict("How long?", numbers=numbers)  # type: ignore[arg-type]
        picture = card._bundle()["image/svg+xml"]
        assert "How long?" in picture and "Guess: no guess" in picture


def test_without_a_guess_only_the_result_is_drawn() -> None:
    card = Predict("How long?", numbers=(0, 10, "ms"))
    assert card.reveal(3.0) == "You made no guess. Result: 3 ms."
    assert len(bars(card)) == 1 and card.input.disabled


def test_text_and_picture_have_question_guess_and_result(tmp_path: Path) -> None:
    card = Predict("Is a < b?", choices=["yes", "no"])
    card.input.value = "yes"
    card.lock()
    assert card.table() == "Is a < b?\nguess: yes\nresult: none yet"
    card.reveal("no", "Look again.")
    assert card.table() == "Is a < b?\nguess: yes\nresult: no\nLook again."
    picture = card.still(tmp_path / "p.svg").read_text()
    with pytest.raises(SpecError, match="SVG"):
        card.still(tmp_path / "p.png")
    assert "Is a &lt; b?" in picture and "Result: no. Look again." in picture
    assert repr(card) == "Predict('Is a < b?')"


TEMPTING = {"a": "a is smaller, but has more rounds.", "c": "c is new, but untried."}


def test_the_right_choice_is_ticked_and_the_guess_is_told_what_is_wrong_with_it() -> None:
    card = Predict("Which?", choices=["a", "b", "c"])
    card.input.value = "a"
    card.lock()
    card.reveal("b", "It has less to send.", TEMPTING)
    labels = [label for label, _ in card.input.options]
    assert labels == ["✗ a   (your guess)", "✓ b", "c"] and card.input.value == "a"
    words = "Your guess: a. Result: b. It has less to send. a is smaller, but has more rounds."
    assert words in card.answer.value and "wrong" not in words
    assert "✓ b" in card.picture()


@pytest.mark.parametrize("guess", ["b", None])
def test_who_was_right_or_made_no_guess_reads_no_word_about_other_choices(guess: str) -> None:
    card = Predict("Which?", choices=["a", "b", "c"])
    card.input.value = guess
    card.lock()
    assert card.reveal("b", "It is.", TEMPTING).endswith("Result: b. It is.")


def test_what_cannot_be_measured_here_has_a_reason_and_no_result() -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    text = card.reveal(None, "Nobody counts.")
    assert text == "You made no guess. Result: not measured here. Nobody counts."
    assert card.input.disabled and card.row()[3] == ""


def test_a_locked_guess_unfolds_the_cells_that_answer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: dict[str, Any] = {}
    monkeypatch.setattr(predict, "running", lambda: SimpleNamespace(user_ns=cells))
    cells["who"] = card = which()
    locked(cells.setdefault("other", Predict("Other?", choices=["a", "b"])), "a")
    assert card._onward.unfolded == []
    locked(card, "a")
    assert card._onward.unfolded == ["who"]
    card.forget()
    assert card._onward.unfolded == []


def test_all_guesses_of_a_kernel_stand_beside_their_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predict, "ASKED", {})
    assert "No question was asked" in Guesses()._repr_html_()
    locked(how_long(), 10, 20).reveal({"ring": 15.0, "tree": 29.0})
    locked(which(), "b").reveal("a")
    Predict("Where?", choices=["here", "there"]).reveal("here")
    locked(how_long(), 10, 20).reveal({"ring": 35.0, "tree": 20.0})  # its cell once more
    assert [row[1:] for row in map(Predict.row, predict.ASKED.values())] == [
        ("ring 10 ms, tree 20 ms", "ring 35 ms, tree 20 ms", "not near"),
        ("b", "a", "not right"),
        ("no guess", "here", ""),
    ]
    assert Guesses().table().splitlines()[1].startswith("How long?  ring 10 ms, tree 20 ms")
    assert Guesses()._repr_html_().count("<tr>") == 4


@pytest.mark.parametrize("result, how", [(45.0, "near"), (51.0, "not near"), (40, "near")])
def test_a_number_is_near_within_a_tenth_of_its_range(result: float, how: str) -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    locked(card, 40).reveal(result)
    assert card.row()[3] == how


# --- what is kept beside the notebook ---


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file for guesses of a notebook that is open in Jupyter."""
    names = {"__session__": str(tmp_path / "lesson.ipynb")}
    monkeypatch.setattr(predict, "running", lambda: SimpleNamespace(user_ns=names))
    return tmp_path / predict.NAME


def which(choices: tuple[str, ...] = ("a", "b")) -> Predict:
    return Predict("Which?", choices=choices)


def how_long(highest: float = 100) -> Predict:
    return Predict("How long?", numbers={"ring": (0, highest, "ms"), "tree": (0, highest, "ms")})


def locked(card: Predict, *values: Any) -> Predict:
    for one, value in zip(card.inputs.values(), values, strict=True):
        one.value = value
    card.lock()
    return card


def test_a_locked_guess_is_there_in_a_new_card_and_cannot_be_changed(notebook: Path) -> None:
    locked(which(), "b")
    locked(how_long(), 10, 20)
    again, numbers = which(), how_long()
    assert (again.guess, numbers.guess) == ("b", {"ring": 10, "tree": 20})
    again.input.value = "a"
    again.lock()
    assert again.guess == "b" and again.input.disabled and again.button.disabled
    assert again.reveal("b") == "Your guess: b. Result: b."


def test_a_guess_is_kept_with_its_lesson_and_with_its_result_once_it_is_revealed(
    notebook: Path,
) -> None:
    card = locked(how_long(), 10, 20)
    assert [*json.loads(notebook.read_text()).values()] == [
        {"guess": {"ring": 10, "tree": 20}, "lesson": "lesson"}
    ]
    card.reveal({"ring": np.float32(30), "tree": np.int64(4)})
    (entry,) = predict.kept(notebook).values()
    assert entry["result"] == {"ring": 30, "tree": 4}


def test_a_guess_can_be_forgotten_and_made_anew(notebook: Path) -> None:
    card = locked(which(), "b")
    card.reveal("a")
    card.forget()
    assert (card.guess, card.answer.value, card.input.value) == (None, "", None)
    assert which().guess is None
    locked(card, "a")
    assert which().guess == "a"


def test_another_question_or_other_answers_are_another_guess(notebook: Path) -> None:
    locked(which(), "b")
    assert which(("a", "b", "c")).guess is None
    assert Predict("Who?", choices=["a", "b"]).guess is None
    locked(how_long(), 10, 20)
    assert how_long(highest=15).guess is None
    assert which().guess == "b"


@pytest.mark.parametrize("text", ["{", "[]", "\xff", '{"Which?\\n- a\\n- b": 1}'])
def test_a_damaged_file_is_replaced(notebook: Path, text: str) -> None:
    notebook.write_text(text, encoding="latin-1")
    card = which()
    assert card.guess is None
    locked(card, "a")
    assert which().guess == "a"


@pytest.mark.parametrize("kept", ["c", 5, ["a"], None, [], {}])
def test_a_kept_guess_that_cannot_be_the_answer_is_no_guess(notebook: Path, kept: Any) -> None:
    locked(which(), "a")
    (question,) = json.loads(notebook.read_text())
    notebook.write_text(json.dumps({question: {"guess": kept, "lesson": "x"}}))
    assert which().guess is None


def test_where_the_file_cannot_be_written_the_card_goes_on_and_says_so(notebook: Path) -> None:
    notebook.mkdir()
    card = locked(which(), "a")
    assert card.guess == "a" and "cannot be written" in card.hint.value
    assert card.reveal("a") == "Your guess: a. Result: a."
    assert [*notebook.parent.iterdir()] == [notebook], "no half-written file is left"


def test_without_an_open_notebook_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    locked(which(), "a")
    assert which().guess is None and not [*tmp_path.iterdir()]
