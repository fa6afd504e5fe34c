"""Results as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table

LINE = "\n"


def show(
    headers: Sequence[str], rows: Iterable[Sequence[RenderableType]], lines: bool = False
) -> None:
    """Print a table; `lines`: with a line between its rows."""
    first, *others = headers
    table = Table(collapse_padding=True, show_lines=lines)
    table.add_column(first, no_wrap=True, min_width=18)  # the names that people must type
    for header in others:
        table.add_column(header)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def text(value: object) -> str:
    """A value of a result, as text for a cell; parts of it on lines of their own."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    if isinstance(value, dict):
        inner = ((name, text(value).replace(LINE, ", ")) for name, value in value.items())
        return "\n".join(f"{name}: {value}" for name, value in inner)
    if isinstance(value, list | tuple):
        return "\n".join(map(text, value))
    return str(value)
