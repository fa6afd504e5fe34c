"""`lockstep allreduce`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal

from course_lib.collectives import ALGORITHMS
from course_lib.commands.options import Json
from course_lib.commands.tables import show, table
from course_lib.reduction.call import compare


def allreduce(
    algorithm: Annotated[str, typer.Argument(help="Its name, see --all.")] = "ring",
    workers: Annotated[int, typer.Option(help="How many workers.")] = 4,
    hosts: Annotated[int, typer.Option(help="How many hosts they are on: memory is shared on a host, TCP goes between hosts.")] = 1,
    size: Annotated[str, typer.Option("--bytes", help="What each worker brings, such as 4MiB.")] = "1MiB",
    dtype: Annotated[str, typer.Option(help="The numpy dtype of its elements.")] = "float32",
    simulated: Annotated[bool, typer.Option("--simulate", help="Start no process: the model's time.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All algorithms side by side.")] = False,
    as_json: Json = False,
) -> None:
    """Sum an array over workers, by an algorithm of the course, in real processes on this machine."""
    names = list(ALGORITHMS) if everything else [algorithm]
    found = [result.as_dict() for result in compare(size, names, workers, hosts, dtype, simulated=simulated)]
    if as_json:
        print(json.dumps(found if everything else found[0]))
    elif everything:
        headers = ["algorithm", "rounds", "sends", "on a link", "ms", "predicted", "GB/s", "exact"]
        Console().print(table(headers, [figures(row) for row in found]))
    else:
        Console().print(table(["result", ""], [[name, show(value)] for name, value in found[0].items()]))


def figures(row: dict[str, Any]) -> list[str]:
    """A line of the table of all-reduces."""
    amounts = [decimal(row[name]) for name in ("bytes_sent_per_worker", "busiest_link_bytes")]
    times = [f"{row[name] * 1e3:.3g}" for name in ("seconds", "predicted_seconds")]
    return [row["algorithm"], str(row["rounds"]), *amounts, *times, f"{row['bus_bandwidth'] / 1e9:.2f}", "yes" if row["exact"] else "NO"]
