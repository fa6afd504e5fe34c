"""Print sentences and tables that fit the terminal, and progress meanwhile."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.theme import Theme

from course_lib.record.progress import Line

READABLE = Theme(
    {
        **{"progress.elapsed": "none", "bar.back": "bright_black"},
        **{"bar.complete": "magenta", "bar.pulse": "magenta", "bar.finished": "green"},
    }
)
"""Colours of the terminal's own: no yellow, which nobody reads on white, no grey lost on black."""
NUMBER = re.compile(r"-|NO|yes|[+-]?[\d.,]+( ?(%|/s|[KMG]?i?B|m?s|GB/s))?")
"""A cell that stands at the right edge of its column, if all in it do."""


def console(stderr: bool = False) -> Console:
    """The terminal; it prints what it is given, as [r] is no markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, theme=READABLE)


def say(*texts: object, stderr: bool = False) -> None:
    """Print sentences: between words, a terminal's lines end; anything else gets one line each."""
    out = console(stderr)
    for text in texts:
        out.print(str(text), soft_wrap=not out.is_terminal)


def show(
    headers: Sequence[str], rows: Iterable[Sequence[str]], lines: bool = False, right: bool = False
) -> None:
    """Print a table in which no word is broken; `lines`: with room between its rows, `right`: all
    columns but the first at their right edge, as those of numbers are. Where the columns do not
    fit, each row is a block of lines.
    """
    cells, out = [list(row) for row in rows], console()
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        leading=int(lines),
        header_style="bold",
    )
    needed = 0
    for i, header in enumerate(headers):
        column = [row[i] for row in cells]
        parts = "\n".join([header, *column])
        width = max(map(len, parts.split("\n") if i == 0 else parts.split()), default=1)
        numbers = (right and i) or (column and all(map(NUMBER.fullmatch, column)))
        justify: Any = "right" if numbers else "left"
        table.add_column(header, justify=justify, min_width=width, no_wrap=i == 0)
        needed += width + 2
    for row in cells:
        table.add_row(*row)
    if needed <= out.width:
        out.print(table)
        return
    for first, *others in cells:
        out.print(f"\n{first}", style="bold")
        for header, cell in zip(headers[1:], others, strict=True):
            out.print(Padding(f"{header}: {cell}" if header else cell, (0, 0, 0, 2)))


@contextmanager
def progress() -> Iterator[Progress]:
    """Bars on stderr, gone at the end; nothing where that is no terminal. Each task has `said`."""
    out = console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(12), TextColumn("{task.fields[said]}")
    bars = Progress(
        *columns,
        TimeElapsedColumn(),
        console=out,
        transient=True,
        redirect_stdout=False,  # it may be a file
        disable=not out.is_terminal,
    )
    with Line(str), bars:  # an empty line: waits inside add none of theirs
        yield bars


# --- values ---


def strict(value: Any) -> Any:
    """The value with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text(value: object, name: str = "") -> str:
    """A value of a result, as text for a cell, with its unit where the field's `name` tells it;
    parts that have a task's name, or parts of their own, on lines of their own.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        digits = f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.4g}"
        return digits + next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if part not in ({}, [])}
        inner = [f"{key}: " + text(part, name).replace("\n", ", ") for key, part in kept.items()]
        nested = any(isinstance(part, dict) or ":" in str(key) for key, part in value.items())
        return ("\n" if nested else ", ").join(inner)
    if isinstance(value, list | tuple):
        return "\n".join(map(text, value))
    return str(value)


UNITS = {
    **dict.fromkeys(("variables_on", "optimizer_state_on", "bytes_per_step"), " bytes"),
    **{"examples_per_second": " /s", "seconds": " s", "_ms": " ms"},
}
"""The end of a field's name -> its unit."""
