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
    "MachineCard": "machine_card()",
    "StrategyTable": "strategy_table()",
}


@pytest.mark.parametrize("given", [(3,), (None,), ([1, 2],), (TrainingBoard,), (), (1, 2, 3, 4)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_widget_answers_a_wrong_argument_in_one_sentence_with_an_example(
    name: str, given: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, given) in (("AllReduceStage", ()), ("AllReduceStage", (TrainingBoard,))):
        return  # it has usual algorithms, and takes any function for one
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(SpecError) as refused:
        getattr(widgets, name)(*given)
    said = str(refused.value)
    assert EXAMPLES[name] in said and "\n" not in said
    assert said.startswith((f"{name}({', '.join(map(repr, given))}): ", "trace="))
    del refused
    gc.collect()
    assert not ignored  # as in "Exception ignored in __del__"


def test_a_board_of_the_wrong_kind_is_told_the_right_one() -> None:
    run = FinishedRun()
    with pytest.raises(SpecError, match="a run has a TrainingBoard"):
        RaceBoard(run)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="a race has a RaceBoard"):
        TrainingBoard(race_of({"a": run}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": ["a", "a"]},
        {"choices": "abc"},
        {"choices": [1, 2]},
        {"numbers": (3, 1, "ms")},
        {"numbers": (1, 3)},
        {"numbers": {"ring": 3}},
        {"choices": ["a", "b"], "numbers": (1, 2, "s")},
        {"answers": ["a", "b"]},
        {},
    ],
)
def test_a_prediction_takes_different_choices_or_a_range(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="it takes a question, and choices or numbers: Predict"):
        widgets.Predict("How long?", **fields)


@pytest.mark.parametrize("fields", [{"link": "50"}, {"cores": "2"}, {"run": 3}, {"wrkers": 3}])
def test_a_stage_says_which_settings_it_takes(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"ring', \w+=.*settings by name: AllReduceStage"):
        widgets.AllReduceStage("ring", **fields)
