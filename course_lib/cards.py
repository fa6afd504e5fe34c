"""The machine and the catalogue as cards, for notebooks."""

from course_lib import hardware
from course_lib.strategies import catalog
from course_lib.widgets.cards import MachineCard, StrategyTable


def machine_card() -> MachineCard:
    """The card of this machine: what it has, and what that means."""
    return MachineCard(hardware.machine_rows(hardware.probe()))


def strategy_table() -> StrategyTable:
    """The catalogue of strategies, to compare and filter, and how real each is on this machine."""
    return StrategyTable(catalog.rows(hardware.probe()))
