"""The machine and the catalogue as cards, for notebooks."""

from typing import Any

from course_lib import hardware
from course_lib.launch import prepare
from course_lib.strategies import catalog
from course_lib.strategies.gate import admit, requested
from course_lib.widgets.cards.catalog import MachineCard, StrategyTable


def machine_card(strategy: str | None = None, **fields: Any) -> MachineCard:
    """What this machine has and what that means for each strategy. With a `strategy` and `fields`
    of `RunSpec`, the plan of that run as well.
    """
    here = hardware.probe()
    reasons: tuple[hardware.Reason, ...] = ()
    if strategy:
        prepared = prepare(admit(requested(strategy, fields), here), here)
        prepared.engine.release()  # it has found room, and only says so
        reasons = prepared.plan.reasons
    return MachineCard(
        hardware.machine_rows(here),
        catalog.rows(here),
        [(r.what, r.choice, r.why) for r in reasons],
    )


def strategy_table() -> StrategyTable:
    """The catalogue of strategies, to compare and filter, and how real each is on this machine."""
    return StrategyTable(catalog.rows(hardware.probe()))
