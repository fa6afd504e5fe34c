"""What is added in one file is found without a line anywhere else."""

import importlib
import sys
from pathlib import Path

import pytest

import course_lib.widgets as widgets
from course_lib.widgets import cards

TOY_CARD = """
from course_lib.widgets.kit.card import Card


class ToyCard(Card):
    title = "Toy"

    def body(self) -> str:
        return "<p>a toy</p>"

    def table(self) -> str:
        return "a toy"
"""


def test_a_card_is_found_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_card.py").write_text(TOY_CARD)
    assert not hasattr(widgets, "ToyCard")
    monkeypatch.setattr(cards, "__path__", [*cards.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    try:
        assert "ToyCard" in dir(widgets)
        card = widgets.ToyCard()
        assert "<p>a toy</p>" in card.to_html(tmp_path / "toy.html").read_text()
        assert {"MachineCard", "Predict", "StrategyTable"} <= set(dir(widgets))
        assert "Card" not in dir(widgets)  # it is only imported there
    finally:
        sys.modules.pop("course_lib.widgets.cards.toy_card", None)
