"""`lockstep picture`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course_lib.errors import SpecError
from course_lib.record.events import Phase
from course_lib.widgets.source import source
from course_lib.widgets.timeline.still import lanes_svg


def picture(
    run_dir: Annotated[Path, typer.Argument(help="The directory of a run, as `run` prints it.")],
    out: Annotated[Path, typer.Option(help="The SVG file to write.")],
    first: Annotated[
        int | None,
        typer.Option(min=0, help="The first step to show; if not given, one in the middle."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=100, help="How many steps to show.")] = 6,
    title: Annotated[str, typer.Option(help="The title; the strategy's name if not given.")] = "",
) -> None:
    """Draw what each worker of a run did, from its trace, as an SVG file."""
    try:
        shown = source(run_dir)
        last = max((p.step for p in shown.trace.all(Phase)), default=0)
        first = max(0, (last - steps) // 2) if first is None else first
        named = " · ".join(filter(None, (title or shown.title, shown.reality)))
        out.write_text(lanes_svg(shown.trace, named, first, steps))
    except (OSError, ValueError) as error:
        raise SpecError(
            "run_dir",
            str(run_dir),
            f"cannot be drawn: the directory of a run is needed, as `run` prints it ({error})",
        ) from None
    print(out)
