"""Predict: a guess that is locked before the run and met again beside what the run gave."""

import xml.etree.ElementTree as ET
from pathlib import Path

from course_lib.widgets import Predict


def bars(card: Predict) -> list[float]:
    """Widths of the bars of guess and result, in order."""
    root = ET.fromstring(f"<div>{card.answer.value}</div>")
    return [float(e.get("width", 0)) for e in root.iter("rect") if e.get("stroke")]


def test_a_slider_that_was_never_moved_is_no_guess() -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    card.lock()
    assert card.guess is None and card.hint.value == "Move the slider first."
    card.input.value = 40
    card.lock()
    assert card.guess == 40 and card.input.disabled and card.button.disabled


def test_a_locked_guess_stays_when_the_slider_moves_and_a_second_lock_comes() -> None:
    card = Predict("How long?", numbers=(0, 100, "ms"))
    card.input.value = 40
    card.lock()
    card.input.value = 80
    card.lock()
    assert card.guess == 40 == card.input.value


def test_a_choice_must_be_made_before_it_is_locked() -> None:
    card = Predict("Which?", choices=["a", "b"])
    card.lock()
    assert card.guess is None and card.hint.value == "Choose first."


def test_several_numbers_are_guessed_together_and_named_where_one_is_missing() -> None:
    card = Predict("How long?", numbers={"ring": (0, 100, "ms"), "tree": (0, 100, "ms")})
    card.inputs["ring"].value = 10
    card.lock()
    assert card.guess is None and card.hint.value == "Move these sliders first: tree."
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


def test_without_a_guess_only_the_result_is_drawn() -> None:
    card = Predict("How long?", numbers=(0, 10, "ms"))
    assert card.reveal(3.0) == "You made no guess. Result: 3 ms."
    assert len(bars(card)) == 1 and card.input.disabled


def test_text_and_page_have_question_guess_and_result(tmp_path: Path) -> None:
    card = Predict("Is a < b?", choices=["yes", "no"])
    card.input.value = "yes"
    card.lock()
    assert card.table() == "Is a < b?\nguess: yes\nresult: none yet"
    card.reveal("no", "Look again.")
    assert card.table() == "Is a < b?\nguess: yes\nresult: no\nLook again."
    page = card.to_html(tmp_path / "p.html").read_text()
    assert (
        "Is a &lt; b?" in page
        and "You guessed: yes. You were wrong; result: no. Look again." in page
    )
    assert repr(card) == "Predict('Is a < b?')"
