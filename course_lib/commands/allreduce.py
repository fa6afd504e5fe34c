"""`lockstep allreduce`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal

from course_lib.collectives import ALGORITHMS
from course_lib.commands import options
from course_lib.commands.options import Json
from course_lib.commands.tables import show, table
from course_lib.errors import SpecError
from course_lib.reduction.call import compare


def allreduce(
    algorithms: Annotated[
        list[str] | None,
        typer.Argument(help="One name or several, see --all; ring, if none is given."),
    ] = None,
    workers: Annotated[int, typer.Option(help="How many workers.")] = 4,
    hosts: Annotated[
        int,
        typer.Option(
            help="How many hosts they are on: memory is shared on a host, TCP goes between hosts."
        ),
    ] = 1,
    size: Annotated[
        str, typer.Option("--bytes", help="What each worker brings, such as 4MiB.")
    ] = "1MiB",
    mbit: options.Mbit = None,
    delay_ms: options.DelayMs = None,
    dtype: Annotated[str, typer.Option(help="The numpy dtype of its elements.")] = "float32",
    simulated: Annotated[
        bool, typer.Option("--simulate", help="Start no process: the model's time.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="All algorithms side by side.")] = False,
    as_json: Json = False,
) -> None:
    """Sum an array over workers, by algorithms of the course, in real processes on this machine."""
    if everything and algorithms:
        raise SpecError("--all", " ".join(algorithms), "either names or --all")
    names = list(ALGORITHMS) if everything else algorithms or ["ring"]
    found = [
        result.as_dict()
        for result in compare(
            size,
            names,
            workers,
            hosts,
            dtype,
            simulated=simulated,
            link=options.link(mbit, delay_ms),
        )
    ]
    if as_json:
        print(json.dumps(found if len(found) > 1 else found[0]))
    elif len(found) > 1:
        print(
            f"{workers} workers on {hosts} host{'s' * (hosts > 1)}, {size} each, {found[0]['reality']}; most that a worker sends, most on a link"
        )
        Console().print(table(HEADERS, [figures(row) for row in found]))
    else:
        Console().print(
            table(["result", ""], [[name, show(value)] for name, value in found[0].items()])
        )


HEADERS = ["algorithm", "rounds", "sends", "link", "ms", "model ms", "bus GB/s", "exact"]


def figures(row: dict[str, Any]) -> list[str]:
    """A line of the table of all-reduces."""
    sent, link = (decimal(row[name]) for name in ("bytes_sent_per_worker", "busiest_link_bytes"))
    times = [
        f"{row[name] * 1e3:.{0 if row[name] > 0.1 else 2}f}"
        for name in ("seconds", "predicted_seconds")
    ]
    crossed = link if row["hosts"] > 1 else "-"
    return [
        row["algorithm"],
        str(row["rounds"]),
        sent,
        crossed,
        *times,
        f"{row['bus_bandwidth'] / 1e9:.2g}",
        "yes" if row["exact"] else "NO",
    ]
