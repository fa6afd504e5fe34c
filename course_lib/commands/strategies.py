"""`lockstep strategies`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from course_lib import hardware
from course_lib.commands.options import Json
from course_lib.commands.tables import show, table
from course_lib.strategies import catalog

NAMES = {"tensorflow": "TensorFlow", "torch": "PyTorch"}


def strategies(
    name: Annotated[
        str | None, typer.Argument(help="Only this one, with all that there is to know.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the strategies, and which of them run here."""
    rows = catalog.rows(hardware.probe())
    if name is not None:
        rows = [row for row in rows if row["strategy"] == catalog.find(name).name]
    if as_json:
        print(json.dumps(rows))
    elif name is not None:
        facts = list(rows[0])
        Console().print(
            table(
                ["", *(NAMES[row["framework"]] for row in rows)],
                [[f, *(show(row[f]) for row in rows)] for f in facts],
            )
        )
    else:
        Console().print(
            table(["strategy", *NAMES.values(), "who updates", "who waits"], overview(rows))
        )
        for row in rows:
            if row["reality"] == "unavailable":
                print(f"{row['strategy']}, {NAMES[row['framework']]}: {row['why']}. {row['cure']}")


def overview(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each strategy; a dash for a framework in which it is not built."""
    lines = []
    for name in dict.fromkeys(row["strategy"] for row in rows):
        mine = {row["framework"]: row for row in rows if row["strategy"] == name}
        first = next(iter(mine.values()))
        lines.append(
            [
                name,
                *(mine[f]["reality"] if f in mine else "-" for f in NAMES),
                first["update"],
                first["waits"],
            ]
        )
    return lines
