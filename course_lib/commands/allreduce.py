"""`lockstep allreduce` and `lockstep stage`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from course_lib.collectives import ALGORITHMS, verify
from course_lib.commands.screen import say, show, text
from course_lib.commands.shared import Engine, Json, OneLink
from course_lib.errors import SpecError
from course_lib.reduction.allreduce import compare
from course_lib.reduction.allreduce import stage as show_stage
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import ONE_HOST
from course_lib.text import count

AlgorithmNames = Annotated[
    list[str] | None, typer.Argument(help="Their names, see `allreduce --all`.", show_default=False)
]
HostCount = Annotated[
    int, typer.Option(help="How many hosts: one shares memory, TCP goes between several.")
]
Size = Annotated[str, typer.Option("--bytes", help="What each worker brings, such as 4MiB.")]
HEADERS = ["algorithm", "rounds", "sends", "link", "ms", "model", "error", "GB/s", "exact"]


def allreduce(
    algorithms: AlgorithmNames = None,
    workers: Annotated[int, typer.Option(help="How many workers.")] = 4,
    hosts: HostCount = 1,
    size: Size = "1MiB",
    link: OneLink = None,
    dtype: Annotated[str, typer.Option(help="The numpy dtype of its elements.")] = "float32",
    simulated: Annotated[
        bool, typer.Option("--simulate", help="Start no process: the model's time.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="All algorithms side by side.")] = False,
    engine: Engine = "local",
    as_json: Json = False,
) -> int:
    """Sum an array over workers, by algorithms of the course (usually ring), in real processes. The
    exit code is 1 if a sum is wrong.
    """
    if everything and algorithms:
        raise SpecError("--all", " ".join(algorithms), "either names or --all")
    names = list(ALGORITHMS) if everything else algorithms or ["ring"]
    imposed = Link.of(link) if link else None
    how: dict[str, Any] = {"simulated": simulated, "link": imposed, "engine": engine}
    results = compare(size, names, workers, hosts, dtype, **how)
    figures = [result.as_dict() for result in results]
    if as_json:
        print(json.dumps(figures if len(figures) > 1 else figures[0]))
    elif len(figures) > 1:
        where = f"{count(workers, 'worker')} on {count(hosts, 'host')}, {size} each"
        say(f"{where}, {results[0].reality}; most that a worker sends, most on a link")
        say("model: a formula that gives each rank a core of its own. GB/s: bus bandwidth.")
        show(HEADERS, [cells(row) for row in figures])
    else:
        show(["result", ""], [[name, text(value, name)] for name, value in figures[0].items()])
    wrong = [result for result in results if not result.exact]
    for result in wrong:
        say(f"{result.algorithm} is wrong: {verify(result.schedule)}", stderr=True)
    return 1 if wrong else 0


def cells(row: dict[str, Any]) -> list[str]:
    """A line of the table of all-reduces."""
    sent, link = (decimal(row[name]) for name in ("bytes_sent_per_worker", "busiest_link_bytes"))
    times = row["seconds"], row["predicted_seconds"]
    digits = [2 if seconds < 0.01 else 1 if seconds < 0.1 else 0 for seconds in times]
    ms = [f"{s * 1e3:.{n}f}" for s, n in zip(times, digits, strict=True)]
    error, bus = f"{row['prediction_error']:+z.0%}", f"{row['bus_bandwidth'] / 1e9:.2g}"
    exact = "yes" if row["exact"] else "NO"
    link = link if row["hosts"] > 1 else "-"
    return [row["algorithm"], str(row["rounds"]), sent, link, *ms, error, bus, exact]


def stage(
    algorithms: AlgorithmNames = None,
    out: Annotated[
        Path, typer.Option(help="The file: a page that plays (.html), or a still picture (.svg).")
    ] = Path("stage.html"),
    workers: Annotated[int, typer.Option(help="How many workers, from 2 to 32.")] = 8,
    hosts: HostCount = 2,
    size: Size = "4MiB",
    link: OneLink = None,
    real: Annotated[
        bool, typer.Option("--real", help="Carry it out in real processes, and show their moments.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option("--round", min=0, help="The rounds that are over in a still picture."),
    ] = None,
) -> None:
    """Show all-reduce algorithms (usually ring and hierarchical) side by side on one clock, as a
    page that needs no kernel and no network.
    """
    names = algorithms or ["ring", "hierarchical"]
    if out.suffix not in (".html", ".svg"):
        raise SpecError("out", str(out), "a file that ends in .html or .svg")
    if rounds is not None and out.suffix == ".html":
        raise SpecError("round", rounds, "is for a still picture: take an --out that ends in .svg")
    if link and hosts == 1:
        raise SpecError("link", link, ONE_HOST)
    shown: list[Any] = names
    imposed = Link.of(link) if link else None
    if real:
        shown = compare(size, names, workers, hosts, link=imposed)
    widget = show_stage(*shown, workers=workers, hosts=hosts, bytes=size, link=imposed)
    try:
        print(widget.still(out, rounds) if out.suffix == ".svg" else widget.to_html(out))
    except OSError as error:
        raise SpecError("out", str(out), f"cannot be written: {error}") from None
