"""`lockstep stage`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from course_lib.collectives import ALGORITHMS, FOILS
from course_lib.commands import options
from course_lib.errors import SpecError
from course_lib.reduction.call import compare
from course_lib.widgets.stage.scene import Reduced


def stage(
    algorithms: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names, see `allreduce --all`; ring and hierarchical if none is given."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write: a page that plays (.html), or a still picture (.svg)."
        ),
    ] = Path("stage.html"),
    workers: Annotated[int, typer.Option(help="How many workers, from 2 to 32.")] = 8,
    hosts: Annotated[int, typer.Option(help="How many hosts they are on.")] = 2,
    size: Annotated[
        str, typer.Option("--bytes", help="What each worker brings, such as 4MiB.")
    ] = "4MiB",
    mbit: options.Mbit = None,
    real: Annotated[
        bool, typer.Option("--real", help="Carry it out in real processes, and show their moments.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option("--round", min=0, help="The rounds that are over in a still picture."),
    ] = None,
) -> None:
    """Show all-reduce algorithms side by side on one clock, as a page that needs no kernel and no
    network.
    """
    # widgets take long to import: only where they are needed
    from course_lib.reduction.stage import stage as show

    names = algorithms or ["ring", "hierarchical"]
    for name in names:
        if name not in ALGORITHMS | FOILS:
            raise SpecError.unknown("algorithm", name, ALGORITHMS | FOILS)
    if out.suffix not in (".html", ".svg"):
        raise SpecError("out", str(out), "a file that ends in .html or .svg")
    if rounds is not None and out.suffix == ".html":
        raise SpecError("round", rounds, "is for a still picture: take an --out that ends in .svg")
    link = options.link(mbit, None)
    if link and hosts == 1:
        raise SpecError(
            "link", str(link), "a link is between hosts, and there is one: set hosts to 2 or more"
        )
    shown: Sequence[str | Reduced] = (
        compare(size, names, workers, hosts, link=link) if real else names
    )
    widget = show(*shown, workers=workers, hosts=hosts, bytes=size, link=link)
    try:
        print(widget.still(out, rounds) if out.suffix == ".svg" else widget.to_html(out))
    except OSError as error:
        raise SpecError("out", str(out), f"cannot be written: {error}") from None
