"""MachineCard and StrategyTable: the facts they are given, all of them, as HTML that needs no
script and as text.
"""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from course_lib import hardware
from course_lib.strategies import catalog
from course_lib.widgets.cards import QUESTIONS, MachineCard, StrategyTable
from course_lib.widgets.kit.page import TERMS, Card, glossary


@pytest.fixture(scope="module")
def here() -> hardware.Machine:
    return hardware.probe()


@pytest.fixture(scope="module")
def machine_card(here: hardware.Machine) -> MachineCard:
    return MachineCard(hardware.machine_rows(here))


@pytest.fixture(scope="module")
def strategy_table(here: hardware.Machine) -> StrategyTable:
    return StrategyTable(catalog.rows(here))


def text_of(card: Card) -> str:
    """What a reader sees of a card, without tags; raises if the tags do not match."""
    return "".join(ET.fromstring(f"<div>{card.body()}</div>").itertext())


def test_the_machine_card_has_every_fact(machine_card: MachineCard, here: hardware.Machine) -> None:
    text = text_of(machine_card)
    for what, much, means in hardware.machine_rows(here):
        assert what in text and much in text and means in text
    assert repr(machine_card) == machine_card.table()


def test_the_strategy_table_has_every_fact_of_every_strategy(
    strategy_table: StrategyTable, here: hardware.Machine
) -> None:
    text, plain = text_of(strategy_table), strategy_table.table()
    for row in catalog.rows(here):
        for fact in (*QUESTIONS, "source", "why", "cure"):
            assert row[fact] in text
            assert fact == "source" or row[fact] in plain


def test_each_filter_has_a_rule_for_each_of_its_choices(
    strategy_table: StrategyTable, here: hardware.Machine
) -> None:
    rules, body = strategy_table.style, strategy_table.body()
    for choice in (
        *QUESTIONS,
        *{row["reality"] for row in catalog.rows(here)},
    ):
        assert f"option[value={choice}]" in rules and f'<option value="{choice}">' in body


def test_what_the_cards_are_given_is_text_and_not_html() -> None:
    row = dict.fromkeys([*QUESTIONS, "source", "why", "cure"], "<b>x</b>") | {
        "strategy": "<i>",
        "framework": "torch",
        "reality": "measured",
    }
    for card in (StrategyTable([row]), MachineCard([("a<", "b<", "c<")])):
        assert "<b>x" not in card.body() and "<i>" not in card.body()
        text_of(card)


def test_a_known_word_is_explained_below_the_card() -> None:
    listed = glossary(["The Gradients of replicas, not all-reduced"], ["emulated"])
    assert TERMS["gradients"] in listed and "<dt>emulated</dt>" in listed
    assert "<dt>all-reduce</dt>" not in listed and glossary(["nothing"]) == ""


def test_a_page_of_a_card_asks_nobody_for_anything(
    machine_card: MachineCard, strategy_table: StrategyTable, tmp_path: Path
) -> None:
    for card in (machine_card, strategy_table):
        page = card.to_html(tmp_path / "card.html").read_text()
        asking = ("src=", '<link rel="style', "@import", "url(", "fetch(", "import(")
        assert not any(words in page for words in asking)
        assert card.body() in page
