"""A run on a terminal: a live line of how far it is. Off a terminal it only waits."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from course_lib.cluster.run import Run
from course_lib.errors import Stalled
from course_lib.record import measures
from course_lib.record.events import Metric, Phase


def follow(run: Run, timeout: float) -> None:
    """Wait for a run to end and show its progress on stderr, if that is a terminal.

    Raises as `Run.wait` does.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        run.wait(timeout)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    deadline = time.monotonic() + timeout
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(
            f"{run.spec.strategy} ({run.spec.framework})", total=run.spec.steps, figures="starting"
        )
        while True:
            try:
                run.wait(0.25)
                return
            except Stalled as stalled:
                if time.monotonic() >= deadline:
                    raise Stalled(stalled.waiting_for, timeout) from None
                progress.update(bar, completed=steps_done(run), figures=figures(run))


def steps_done(run: Run) -> int:
    """Steps that the slowest worker has applied."""
    applied = run.trace.all(Phase, what="apply")
    return min(
        (
            max((p.step + 1 for p in applied if p.task == task), default=0)
            for task in run.tasks
            if task.startswith("worker")
        ),
        default=0,
    )


def figures(run: Run) -> str:
    """The last loss and the throughput so far, in words."""
    losses = run.trace.all(Metric, name="loss")
    if not losses:
        return run.state
    return f"loss {losses[-1].value:.3f}, {measures.examples_per_second(run.trace, run.spec.batch):.0f} examples/s"
