"""Options that several commands have, made from the fields of `RunSpec`; and output that fits the
terminal: sentences, tables, progress meanwhile, or JSON.
"""

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress
from rich.table import Table
from typer.core import TyperCommand

from course_lib.collectives import ALGORITHMS
from course_lib.record.progress import Line
from course_lib.spec.run_spec import NOT_GIVEN, RunSpec
from course_lib.spec.settings import REDUCTIONS
from course_lib.workloads import WORKLOADS

# --- options ---

KINDS: dict[str, Any] = {"boolean": bool, "integer": int, "number": float}
REPEATED = {"placement": "--place", "link": "--link", "slow": "--slow", "faults": "--fault"}
"""Fields of several items -> the option that is given once for each item."""
GROUPS = {
    **{"strategy": "Cluster", "hosts": "Network", "engine": "Cluster", "workload": "Training"},
    **{"device_ms": "Cluster", "slow": "Faults", "sampler": "Training"},
    **{"record_examples": "Record", "max_restarts": "Faults"},
}
"""The first of neighbours in `RunSpec` -> the group of their options."""
FIELDS = RunSpec.model_json_schema()["properties"]
FIELDS["workload"]["description"] = f"{', '.join(WORKLOADS)}, or FILE.py:NAME of your own Workload"
ALGORITHM = f"native for the framework's own, {', '.join(ALGORITHMS)}"
FIELDS["all_reduce"]["description"] = f"{ALGORITHM}, or for mirrored {', '.join(REDUCTIONS)}"
for name in ("framework", "workers"):  # which depend on the strategy
    FIELDS[name].pop("default", None)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Timeout = Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds to wait for the end.")]


def with_fields(*chosen: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a command's parameter `fields` by one option for each of the `chosen` fields of
    `RunSpec`, or for all. The command gets those that were typed as a dict.
    """

    def typed(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True).parameters

        def run(**options: Any) -> Any:
            mine = {name: options.pop(name) for name in own if name != "fields"}
            fields = {name: value for name, value in options.items() if value is not None}
            return command(fields=fields, **mine)

        offered = [each for each in _options() if not chosen or each.name in chosen]
        parameters = [p for name in own for p in (offered if name == "fields" else [own[name]])]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for typer
        return run

    return typed


def _options() -> Iterator[inspect.Parameter]:
    group = ""
    for name, schema in FIELDS.items():
        group = GROUPS.get(name, group)
        if name in REPEATED:
            yield _option(name, list[str], schema, group, REPEATED[name])
        elif name not in NOT_GIVEN:
            either = [schema, *schema.get("anyOf", ())]
            kind = next(KINDS.get(e["type"], str) for e in either if "type" in e)
            yield _option(name, kind, schema, group)


def _option(
    name: str, kind: Any, schema: dict[str, Any], group: str, *flags: str
) -> inspect.Parameter:
    """An option with its help: what the field is, what is allowed, and its default."""
    text = f"{schema['title']}: {schema['description']}".removesuffix(": true or false")
    usual = schema.get("default")
    if usual and not isinstance(usual, bool | dict):
        text += f". Default: {usual}"
    text += ". May be repeated." if flags else "."
    option = typer.Option(*flags, help=text[0].upper() + text[1:], rich_help_panel=group)
    annotation, keyword = Annotated[kind | None, option], inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=annotation)


class Command(TyperCommand):
    """A command whose help has its options in groups, and its examples at the end."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups = defaultdict[str, list[tuple[str, str]]](list)
        for each in self.get_params(ctx):
            if line := each.get_help_record(ctx):
                usual = f"{each.param_type_name}s".capitalize()
                groups[getattr(each, "rich_help_panel", None) or usual].append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.epilog.splitlines()))


# --- output ---

NUMBER = re.compile(r"-|NO|yes|[+-]?[\d.,]+( ?(%|/s|[KMG]?i?B|m?s|GB/s))?")
"""A cell that stands at the right edge of its column, if all in it do."""


def console(stderr: bool = False) -> Console:
    """The terminal; it prints what it is given, as [r] is no markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def say(*texts: object, stderr: bool = False) -> None:
    """Print sentences: between words, a terminal's lines end; anything else gets one line each."""
    out = console(stderr)
    for text in texts:
        out.print(str(text), soft_wrap=not out.is_terminal)


def show(headers: Sequence[str], rows: Iterable[Sequence[str]], lines: bool = False) -> None:
    """Print a table in which no word is broken; `lines`: with room between its rows. Where the
    columns do not fit, each row is a block of lines.
    """
    cells, out = [list(row) for row in rows], console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, leading=int(lines))
    needed = 0
    for i, (header, *column) in enumerate(zip(headers, *cells, strict=True)):
        words = "\n".join([header, *column]).split("\n" if i == 0 else None)
        width = max(map(len, words), default=1)
        numbers = column and all(map(NUMBER.fullmatch, column))
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
    """Bars on stderr, each before its description, gone at the end; nothing where that is no
    terminal.
    """
    out = console(stderr=True)
    # stdout may be a file
    how: Any = {"transient": True, "redirect_stdout": False, "disable": not out.is_terminal}
    bars = Progress(BarColumn(12), "{task.description}", console=out, **how)
    with Line(str), bars:  # waits inside add no line of theirs
        yield bars


def strict(value: Any) -> Any:
    """The value with None in place of NaN and infinity, which JSON does not have."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def dump(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(strict(value)))


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
    return "\n".join(map(text, value)) if isinstance(value, list | tuple) else str(value)


UNITS = {
    **dict.fromkeys(("variables_on", "optimizer_state_on", "bytes_per_step"), " bytes"),
    **{"examples_per_second": " /s", "seconds": " s", "_ms": " ms"},
}
"""The end of a field's name -> its unit."""
