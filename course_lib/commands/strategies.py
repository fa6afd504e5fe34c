"""`lockstep strategies`."""

from __future__ import annotations

import json

from rich.console import Console

from course_lib import hardware
from course_lib.commands.options import Json
from course_lib.commands.tables import show, table
from course_lib.strategies import catalog


def strategies(as_json: Json = False) -> None:
    """List the strategies, and which of them run here."""
    rows = catalog.rows(hardware.probe())
    if as_json:
        print(json.dumps(rows))
        return
    shown = ("strategy", "framework", "reality", "update", "waits")
    Console().print(table(list(shown), [[show(row[name]) for name in shown] for row in rows]))
