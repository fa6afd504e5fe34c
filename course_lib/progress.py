"""A run on a terminal: a live line of how far it is. Off a terminal it only waits."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from course_lib.cluster.run import Run
from course_lib.errors import Stalled
from course_lib.record.digest import Digest


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
    deadline, digest = time.monotonic() + timeout, Digest(run.spec)
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
                digest.look(run.trace)
                progress.update(
                    bar, completed=digest.steps_done, figures=figures(digest) or run.state
                )


def figures(digest: Digest) -> str:
    """The last loss and the throughput so far, in words."""
    losses = digest.losses
    if losses.last is None:
        return ""
    rate = losses.rate()
    return f"loss {losses.last:.3f}{f', {rate:,.0f} examples/s' if rate else ''}"
