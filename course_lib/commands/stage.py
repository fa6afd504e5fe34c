"""`lockstep stage`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from course_lib.collectives import ALGORITHMS, Link, Topology
from course_lib.errors import SpecError
from course_lib.reduction.call import compare
from course_lib.widgets.stage_scene import Reduced


def stage(
    algorithms: Annotated[
        list[str] | None, typer.Argument(help="Names, see `allreduce --all`; ring and hierarchical if none is given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write: a page that plays (.html), or a still picture (.svg).")] = Path(
        "stage.html"
    ),
    workers: Annotated[int, typer.Option(help="How many workers, from 2 to 32.")] = 8,
    hosts: Annotated[int, typer.Option(help="How many hosts they are on.")] = 2,
    size: Annotated[str, typer.Option("--bytes", help="What each worker brings, such as 4MiB.")] = "4MiB",
    mbit: Annotated[float, typer.Option(help="The simulated link between hosts, in Mbit/s.")] = 1000.0,
    real: Annotated[bool, typer.Option("--real", help="Carry it out in real processes, and show their moments.")] = False,
    rounds: Annotated[int | None, typer.Option("--round", min=0, help="The rounds that are over in a still picture.")] = None,
) -> None:
    """Show all-reduce algorithms side by side on one clock, as a page that needs no kernel and no network."""
    from course_lib.widgets.all_reduce_stage import AllReduceStage  # widgets take long to import: only where they are needed

    names = algorithms or ["ring", "hierarchical"]
    for name in names:
        if name not in ALGORITHMS:
            raise SpecError.unknown("algorithm", name, ALGORITHMS)
    if out.suffix not in (".html", ".svg"):
        raise SpecError("out", str(out), "a file that ends in .html or .svg")
    if not mbit > 0:
        raise SpecError("mbit", mbit, "a number above 0")
    inter = Link(Topology().inter.alpha, 8 / (mbit * 1e6))
    shown: Sequence[str | Reduced] = compare(size, names, workers, hosts) if real else names
    widget = AllReduceStage(*shown, workers=workers, hosts=hosts, bytes=size, topology=Topology(inter=inter))
    try:
        print(widget.still(out, rounds) if out.suffix == ".svg" else widget.to_html(out))
    except OSError as error:
        raise SpecError("out", str(out), f"cannot be written: {error}") from None
