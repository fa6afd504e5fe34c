"""`lockstep allreduce` and `lockstep stage`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from course_lib.collectives import ALGORITHMS, verify
from course_lib.commands.terminal import Json, dump, say, show, text, with_fields
from course_lib.errors import SpecError
from course_lib.record.rundir import usable
from course_lib.reduction.allreduce import compare
from course_lib.reduction.allreduce import stage as show_stage
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import ONE_HOST
from course_lib.text import count

AlgorithmNames = Annotated[
    list[str] | None, typer.Argument(help="Their names, see `allreduce --all`.", show_default=False)
]
Workers = Annotated[int, typer.Option(help="How many workers.")]
HostCount = Annotated[int, typer.Option(help="How many hosts; TCP goes between them.")]
Size = Annotated[str, typer.Option("--bytes", help="What each worker brings, such as 4MiB.")]
Out = Annotated[Path, typer.Option(help="A page that plays (.html) or a still picture (.svg).")]
Rounds = Annotated[int | None, typer.Option("--round", min=0, help="Rounds done in a picture.")]
OneLink = Annotated[
    Link | None,
    typer.Option("--link", parser=Link.of, metavar="<link>", help="mbit,delay_ms, as 200,0.5."),
]
HEADERS = ["algorithm", "rounds", "sends", "link", "ms", "model", "error", "GB/s", "exact"]


@with_fields("engine")
def allreduce(
    algorithms: AlgorithmNames = None,
    workers: Workers = 4,
    hosts: HostCount = 1,
    link: OneLink = None,
    size: Size = "1MiB",
    dtype: Annotated[str, typer.Option(help="The numpy dtype of its elements.")] = "float32",
    simulated: Annotated[bool, typer.Option("--simulate", help="Start no process.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All algorithms side by side.")] = False,
    as_json: Json = False,
    *,
    fields: dict[str, Any],
) -> int:
    """Sum an array over workers, by algorithms of the course (usually ring), in real processes. The
    exit code is 1 if a sum is wrong.
    """
    names = list(ALGORITHMS) if everything else algorithms or ["ring"]
    results = compare(size, names, workers, hosts, dtype, simulated=simulated, link=link, **fields)
    figures = [result.as_dict() for result in results]
    if as_json:
        dump(figures if len(figures) > 1 else figures[0])
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
    times = [1e3 * row[name] for name in ("seconds", "predicted_seconds")]
    ms = [f"{each:.0f}" if each >= 100 else f"{each:#.3g}".rstrip(".") for each in times]
    error, bus = f"{row['prediction_error']:+z.0%}", f"{row['bus_bandwidth'] / 1e9:.2g}"
    exact = "yes" if row["exact"] else "NO"
    link = link if row["hosts"] > 1 else "-"
    return [row["algorithm"], str(row["rounds"]), sent, link, *ms, error, bus, exact]


def stage(
    algorithms: AlgorithmNames = None,
    out: Out = Path("stage.html"),
    workers: Workers = 8,
    hosts: HostCount = 2,
    link: OneLink = None,
    size: Size = "4MiB",
    real: Annotated[bool, typer.Option("--real", help="Show moments of real processes.")] = False,
    rounds: Rounds = None,
) -> None:
    """Show all-reduce algorithms (usually ring and hierarchical) side by side on one clock, as a
    page that needs no kernel and no network.
    """
    names: list[Any] = algorithms or ["ring", "hierarchical"]
    if out.suffix not in (".html", ".svg"):
        raise SpecError("out", str(out), "a file that ends in .html or .svg")
    if rounds is not None and out.suffix == ".html":
        raise SpecError("round", rounds, "is for a still picture: take an --out that ends in .svg")
    if link and hosts == 1:
        raise SpecError("link", str(link), ONE_HOST)
    shown = compare(size, names, workers, hosts, link=link) if real else names
    widget = show_stage(*shown, workers=workers, hosts=hosts, bytes=size, link=link)
    with usable("out", out):
        print(widget.still(out, rounds) if out.suffix == ".svg" else widget.to_html(out))
