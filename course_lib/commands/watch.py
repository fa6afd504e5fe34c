"""`lockstep runs`, `watch`, `picture` and `export`: runs and races from their directories, while
they go on or long after.
"""

import contextlib
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from course_lib.commands.terminal import Json, dump, say, show
from course_lib.errors import SpecError
from course_lib.record import rundir
from course_lib.record.export import FORMATS, save_frames
from course_lib.record.past import DAMAGED, WHERE
from course_lib.record.rundir import usable
from course_lib.record.saved import OUTCOMES, SavedRun, saved_runs
from course_lib.widgets.board.plots import NAMES
from course_lib.widgets.board.view import Side, View
from course_lib.widgets.cards import runs as past
from course_lib.widgets.kit import page, svg
from course_lib.widgets.timeline import Timeline

PERIOD = 0.25  # seconds between pictures


def kept(name: str) -> Path:
    """The directory of a run, also by its name alone among those that are kept."""
    with contextlib.suppress(OSError, ValueError):  # of a name that is none
        if not (path := Path(name)).exists() and len(path.parts) == 1:
            return rundir.runs() / name
    return Path(name)


Runs = Annotated[
    Path, typer.Argument(parser=kept, metavar="RUN", help="The directory of a run, or of a race.")
]
RunDir = Annotated[
    Path,
    typer.Argument(
        parser=kept, metavar="RUN", help="The directory of a run, or its name in `lockstep runs`."
    ),
]
Wait = Annotated[float, typer.Option(min=0, max=86400, help="Seconds after which to leave.")]
Svg = Annotated[Path, typer.Option(help="The SVG file to write.")]
First = Annotated[int | None, typer.Option(min=0, help="The first step, usually in the middle.")]
Steps = Annotated[int, typer.Option(min=1, max=100, help="How many steps to show.")]
Title = Annotated[str, typer.Option(help="The title; the strategy's name if not given.")]
Format = Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")]
Folder = Annotated[Path | None, typer.Option(help="The folder; if not given, one in the run's.")]
Only = Annotated[str, typer.Option(help="Only runs of this one.")]
State = Annotated[str, typer.Option(help=f"Only runs that are {', '.join([*OUTCOMES, DAMAGED])}.")]
Where = Annotated[str, typer.Option(help=f"Only runs of which this is true: {WHERE}.")]
Last = Annotated[int, typer.Option(min=1, help="At most so many.")]


def runs(
    strategy: Only = "",
    workload: Only = "",
    framework: Only = "",
    state: State = "",
    last: Last = 20,
    where: Where = "",
    as_json: Json = False,
) -> None:
    """List the runs that are kept, the newest first: how far each came, and what happened to it."""
    table = past.runs(strategy, workload, framework, state, last, where)
    if as_json:
        dump([row._asdict() for row in table.rows])
    elif table.rows:
        show(past.HEADERS, map(past.cells, table.rows))
    else:
        say(table)


def watch(run_dir: Runs, timeout: Wait = 86400.0) -> None:
    """Follow a run until it is over: its state, loss and throughput, and what each task does."""
    view = View(saved_runs(run_dir))
    console = Console(highlight=False)
    deadline = time.monotonic() + timeout
    with Live(console=console, auto_refresh=False, transient=True) as live:
        view.update()
        while not view.over and time.monotonic() < deadline:
            if console.is_terminal:
                live.update(frame(view, console.width), refresh=True)
            time.sleep(max(0.0, min(PERIOD, deadline - time.monotonic())))
            view.update()
    console.print(frame(view, console.width))


def frame(view: View, width: int) -> RenderableType:
    """The view as text: the headline, a block for each run, and what the characters mean."""
    parts = enumerate(view.headline().split("**"))
    headline = Text.assemble(*((part, "bold" if i % 2 else "") for i, part in parts))
    blocks = (_block(view, side, width) for side in view.sides)
    marks = (
        Text.assemble((shade.mark, shade.color), f" {name}") for name, shade in svg.SHADE.items()
    )
    legend = "", Columns(marks, padding=(0, 2))
    return Group(headline, *filter(None, [view.detail()]), *blocks, *legend)


def _block(view: View, side: Side, width: int) -> RenderableType:
    """A run: its figures, a lane of characters for each task, and the time that the lanes span."""
    window, lanes = view.lanes(side, columns=max(20, min(100, width - 32)))
    grid = Table.grid(padding=(0, 1))
    for lane in lanes:
        line, at = Text(), 0
        cells = np.where(lane.hidden == svg.NOTHING, lane.cells, lane.hidden)
        for first, last, what in svg.runs(cells):
            shade = svg.SHADE[NAMES[what]]
            line.append(" " * (first - at)).append(shade.mark * (last - first), shade.color)
            at = last
        grid.add_row(Text(lane.name, justify="right"), line, lane.note)
    about = f"{side.spec.framework}, {side.state}, {side.reality.word}"
    head = Text.assemble((f"\n{side.label}", "bold"), f"  {about}  {side.summary()}")
    zero = window.zero
    foot = f"{'':10} {window.begin - zero:.2f} s to {window.end - zero:.2f} s"
    return Group(head, grid, foot)


def picture(
    run_dir: RunDir, out: Svg, first: First = None, steps: Steps = 6, title: Title = ""
) -> None:
    """Draw what each worker of a run did, from its trace, as an SVG file."""
    if out.suffix != ".svg":
        raise SpecError("out", str(out), "an SVG file: --out run.svg")
    try:
        timeline = Timeline(run_dir)
        drawn = timeline.picture(first, steps, title)
    except (OSError, ValueError) as error:
        text = "cannot be drawn: the directory of a run is needed, as `run` prints it"
        raise SpecError("run_dir", str(run_dir), f"{text} ({error})") from None
    with usable("out", out):
        print(page.save(out, drawn))


def export(run_dir: RunDir, form: Format = "csv", out: Folder = None) -> None:
    """Write the trace of a run as tables, a file for each kind of events."""
    folder = out or run_dir / "frames"
    with usable("out", folder):
        files = save_frames(SavedRun(run_dir).trace, folder, form)
    print(*files, sep="\n") if files else say("This run has no events.")
