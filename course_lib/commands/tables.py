"""Results as tables on a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

LINE = "\n"


def table(headers: list[str], rows: Any) -> Table:
    first, *others = headers
    table = Table(collapse_padding=True)
    table.add_column(first, no_wrap=True, min_width=18)  # the names that people must type
    for header in others:
        table.add_column(header)
    for row in rows:
        table.add_row(*row)
    return table


def show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    if isinstance(value, dict):
        return "\n".join(
            f"{name}: {show(inner).replace(LINE, ', ')}" for name, inner in value.items()
        )
    if isinstance(value, (list, tuple)):
        return "\n".join(map(show, value))
    return str(value)
