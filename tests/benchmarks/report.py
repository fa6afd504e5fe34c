"""What came out, as a table for people and as JSON for the record."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from course_lib import hardware
from tests.benchmarks.harness import Aim, Row, Spread


def table(rows: Sequence[Row]) -> Table:
    """All rows, each with its peer, its spread and whether it reached its aim."""
    shown = Table(title="median (least to most)", title_justify="left", show_lines=True)
    for heading in ("", "ours", "peer", "", "ratio", "aim", ""):
        shown.add_column(heading, no_wrap=heading in ("ours", "ratio"))
    for row in rows:
        verdict = (
            ""
            if row.aim.kind == "shown"
            else "[green]reached[/green]"
            if row.reached
            else "[red]missed[/red]"
        )
        if not row.enough:
            verdict += f"{', but ' if verdict else ''}only {len(row.pairs)} repeats"
        shown.add_row(
            row.name,
            _figure(row.ours, row.unit),
            row.peer,
            _figure(row.theirs, row.unit),
            _ratio(row),
            str(row.aim),
            verdict,
        )
    return shown


def save(rows: Sequence[Row], failures: dict[str, str], facts: dict[str, Any], path: Path) -> None:
    """Write the record so far.

    Called after every row, so that an interrupted run keeps what it has.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {**facts, "rows": [row.as_dict() for row in rows], "failures": failures}
    path.write_text(json.dumps(record, indent=1) + "\n")


def facts(quick: bool) -> dict[str, Any]:
    """The machine, the versions, and how busy it was when the measuring began: figures of a busy
    machine say little.
    """
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "quick": quick,
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "machine": asdict(hardware.probe()),
        "versions": hardware.versions(),
    }


def _figure(spread: Spread, unit: str) -> str:
    return f"{_number(spread.median)} {unit}\n({_number(spread.low)} to {_number(spread.high)})"


def _ratio(row: Row) -> str:
    if row.aim == Aim("none"):
        return ""
    return f"{_number(row.ratio.median)}\n({_number(row.ratio.low)} to {_number(row.ratio.high)})"


def _number(value: float) -> str:
    """Four figures at most, without exponents for what people meet here."""
    if not math.isfinite(value):
        return "-"
    return (
        f"{value:.0f}"
        if abs(value) >= 1000
        else f"{value:.3g}"
        if abs(value) >= 10 or value == 0
        else f"{value:.3f}"
    )
