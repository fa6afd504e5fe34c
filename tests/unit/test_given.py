"""What widgets say to arguments that they cannot show."""

import gc
import sys
from typing import Any

import pytest

from course_lib import widgets
from course_lib.errors import SpecError
from course_lib.widgets import RaceBoard, TrainingBoard
from tests.unit.test_race_board import race_of
from tests.unit.test_widgets import FinishedRun

EXAMPLES = {
    "TrainingBoard": "TrainingBoard(start(",
    "RaceBoard": "RaceBoard(race(",
    "Timeline": "Timeline(run)",
    "AllReduceStage": 'AllReduceStage("ring", "tree"',
    "Predict": 'choices=["ring", "tree"])',
}


@pytest.mark.parametrize("given", [(3,), (None,), ([1, 2],), (TrainingBoard,)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_widget_answers_a_wrong_argument_in_one_sentence_with_an_example(
    name: str, given: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, given) == ("AllReduceStage", (TrainingBoard,)):
        return  # it takes any function for an algorithm
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(SpecError) as refused:
        getattr(widgets, name)(*given)
    said = str(refused.value)
    assert EXAMPLES[name] in said and "\n" not in said
    assert "=" in said.partition(":")[0]
    del refused
    gc.collect()
    assert not ignored  # as in "Exception ignored in __del__"


def test_a_board_of_the_wrong_kind_is_told_the_right_one() -> None:
    run = FinishedRun()
    with pytest.raises(SpecError, match="TrainingBoard"):
        RaceBoard(run)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="RaceBoard"):
        TrainingBoard(race_of({"a": run}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": ["a", "a"]},
        {"numbers": (3, 1, "ms")},
        {"choices": ["a", "b"], "numbers": (1, 2, "s")},
        {},
    ],
)
def test_a_prediction_takes_different_choices_or_a_range(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="different choices or numbers: Predict"):
        widgets.Predict("How long?", **fields)


def test_a_stage_says_which_link_it_takes() -> None:
    with pytest.raises(SpecError, match="link='50': a link: AllReduceStage"):
        widgets.AllReduceStage("ring", link="50")  # type: ignore[arg-type]
