"""MachineCard and StrategyTable: the facts they are given, all of them, as HTML that needs no
script and as text.
"""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from course_lib import hardware
from course_lib.strategies import catalog
from course_lib.widgets import MachineCard, StrategyTable
from course_lib.widgets.cards.catalog import QUESTIONS
from course_lib.widgets.kit.glossary import TERMS, explained, glossary
from course_lib.widgets.kit.page import Card


@pytest.fixture(scope="module")
def here() -> hardware.Machine:
    return hardware.probe()


@pytest.fixture(scope="module")
def machine_card(here: hardware.Machine) -> MachineCard:
    return MachineCard(
        hardware.machine_rows(here), catalog.rows(here), [("device", "cpu", "No GPU was found.")]
    )


@pytest.fixture(scope="module")
def strategy_table(here: hardware.Machine) -> StrategyTable:
    return StrategyTable(catalog.rows(here))


def text_of(card: Card) -> str:
    """What a reader sees of a card, without tags; raises if the tags do not match."""
    return "".join(ET.fromstring(f"<div>{card.body()}</div>").itertext())


def test_the_machine_card_has_every_fact_and_every_standing_with_its_cure(
    machine_card: MachineCard, here: hardware.Machine
) -> None:
    text = text_of(machine_card)
    for what, much, means in hardware.machine_rows(here):
        assert what in text and much in text and means in text
    for row in catalog.rows(here):
        assert row["strategy"] in text and row["why"][1:] in text and row["cure"] in text
    assert "No GPU was found." in text
    facts, strategies = len(hardware.machine_rows(here)), len(catalog.rows(here))
    assert repr(machine_card) == f"MachineCard({facts} facts, {strategies} strategies)"


def test_strategies_that_stand_for_the_same_reason_share_a_row_and_none_is_lost(
    machine_card: MachineCard, here: hardware.Machine
) -> None:
    rows = catalog.rows(here)
    groups = machine_card.groups()
    assert len({group[:3] for group in groups}) == len(groups) < len(rows)
    named = [name for *_, names in groups for name in names]
    assert sum(name.count(", ") + 1 for name in named) == len(rows)


def test_the_strategy_table_has_every_fact_of_every_strategy(
    strategy_table: StrategyTable, here: hardware.Machine
) -> None:
    text, plain = text_of(strategy_table), strategy_table.table()
    for row in catalog.rows(here):
        for fact in (*QUESTIONS, "source", "why", "cure"):
            assert row[fact] in text
            assert fact == "source" or row[fact] in plain
    names, rows = len(catalog.STRATEGIES), len(catalog.rows(here))
    assert repr(strategy_table) == f"StrategyTable({names} strategies, {rows} with a framework)"


def test_each_filter_has_a_rule_for_each_of_its_choices(
    strategy_table: StrategyTable, here: hardware.Machine
) -> None:
    rules, body = strategy_table.style(), strategy_table.body()
    for choice in (
        *QUESTIONS,
        "tensorflow",
        "torch",
        *{row["reality"] for row in catalog.rows(here)},
    ):
        assert f"option[value={choice}]" in rules and f'<option value="{choice}">' in body


def test_what_the_cards_are_given_is_text_and_not_html() -> None:
    row = dict.fromkeys([*QUESTIONS, "source", "why", "cure"], "<b>x</b>") | {
        "strategy": "<i>",
        "framework": "torch",
        "reality": "measured",
    }
    for card in (StrategyTable([row]), MachineCard([("a<", "b<", "c<")], [row])):
        assert "<b>x" not in card.body() and "<i>" not in card.body()
        text_of(card)


def test_a_known_word_is_explained_at_its_first_use_and_listed_for_keyboards() -> None:
    html = explained("Gradients of replicas & gradients, not all-reduced")
    assert html.count("<abbr") == 2 and "not all-reduced" in html and "&amp; " in html
    listed = glossary(["the gradients"], ["emulated"])
    assert (
        TERMS["gradients"] in listed and "<dt>emulated</dt>" in listed and "replicas" not in listed
    )
    assert glossary(["nothing"]) == ""


def test_a_page_of_a_card_asks_nobody_for_anything(
    machine_card: MachineCard, strategy_table: StrategyTable, tmp_path: Path
) -> None:
    for card in (machine_card, strategy_table):
        page = card.to_html(tmp_path / "card.html").read_text()
        assert not any(
            asking in page for asking in ("src=", '<link rel="style', "@import", "url(", "<script")
        )
        assert card.body() in page.replace(' data-lm-suppress-shortcuts="true"', "")
