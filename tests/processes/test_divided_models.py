"""How a learner's own PyTorch model is divided: the parts between which a pipeline is cut."""

from typing import Any

import pytest
import torch
from torch import nn

from course_lib.strategies.torch import stages
from tests import own_models

NAMES = ["embed", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "logits"]
TOKENS = torch.arange(10).view(2, 5)


class Model(nn.Module):
    """A chain of modules, with one thing that is not as a pipeline needs it."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.embed = nn.Embedding(12, 8)
        relu = nn.ReLU(inplace=True)  # the same module twice
        self.blocks = nn.ModuleList([nn.Linear(8, 8), relu, nn.Linear(8, 8), relu])
        self.logits = nn.Linear(8, 12)
        if wrong == "tied":
            self.blocks[2].weight = self.blocks[0].weight
        if wrong == "loose":
            self.places = nn.Parameter(torch.zeros(8))

    def forward(self, tokens: Any) -> Any:
        first = values = self.embed(tokens)
        if self.wrong == "loose":
            values = values + self.places
        if self.wrong == "between":
            values = values + 1
        for block in self.blocks:
            values = block(values)
        if self.wrong == "around":
            values = values + first
        logits = self.logits(values)
        return -logits if self.wrong == "after" else logits


def test_parts_that_follow_each_other_are_found_in_any_model() -> None:
    assert stages.check(Model(), NAMES, TOKENS) == 4  # with weights
    assert stages.check(nn.Sequential(nn.Embedding(12, 8), nn.ReLU()), (), TOKENS) == 1


@pytest.mark.parametrize(
    ("wrong", "names", "said"),
    [
        ("", (), "no torch.nn.Sequential: Workload.*, stages="),
        ("", [*NAMES, "tail"], "not all modules of its model: AttributeError.*tail"),
        ("", NAMES[:-1], "parameter logits.weight is in none of its stages"),
        ("", ["blocks.0", "embed", *NAMES[2:]], "stage blocks.0 cannot take what comes from the"),
        ("tied", NAMES, "blocks.0 and blocks.2 share a weight: each of two stages would train a"),
        ("loose", NAMES, "parameter places is in none of its stages"),
        ("between", NAMES, "stage blocks.0 does not simply follow embed: its forward must hand"),
        ("around", NAMES, "stage logits does not simply follow blocks.3"),
        ("after", NAMES, "its outputs are not those of logits, its last stage"),
    ],
)
def test_stages_that_are_not_the_model_are_named(wrong: str, names: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        stages.check(Model(wrong), names, TOKENS)
    assert "\n" not in str(caught.value)


def test_a_stage_hands_on_one_tensor_of_floats() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Linear(4, 3)

        def forward(self, found: Any) -> Any:
            return self.logits(found[0])

    model = nn.Sequential(nn.LSTM(20, 4), Last())
    inputs = torch.from_numpy(own_models.LARGEST["train"][0][:2]).float()
    with pytest.raises(ValueError, match="0 makes a tuple: a stage sends on one tensor of floats"):
        stages.check(model, (), inputs)
