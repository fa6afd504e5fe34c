"""`lockstep run`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from course_lib.commands import options
from course_lib.commands.options import with_fields
from course_lib.commands.tables import show, table
from course_lib.launch import start
from course_lib.progress import follow
from course_lib.record import measures
from course_lib.record.trace import Trace
from course_lib.strategies import catalog


@with_fields
def run(
    strategy: Annotated[
        str, typer.Argument(help="The name of a strategy, see `lockstep strategies`.")
    ] = "multi_worker_mirrored",
    *,
    fields: dict[str, Any],
    timeout: options.Timeout = 600.0,
    as_json: options.Json = False,
) -> None:
    """Train with a strategy, in real processes on this machine."""
    known = catalog.STRATEGIES.get(strategy)
    # so that one command goes through all strategies
    if known and fields.get("workers", 1) > known.max_workers == 1:
        workers = fields.pop("workers")
        print(f"{strategy} has one worker: --workers {workers} is left out", file=sys.stderr)
    with start(strategy, **fields) as started:
        if not as_json:
            for reason in started.plan.reasons:
                Console(stderr=True).print(
                    f"[bold]{reason.what}[/bold] {reason.choice}: {reason.why}", highlight=False
                )
        follow(started, timeout)
        result = started.result
    if as_json:
        print(json.dumps(result))
    else:
        report(result, started.trace)


def report(result: dict[str, Any], trace: Trace) -> None:
    """A finished run as tables."""
    shown = {name: value for name, value in result.items() if name != "run_dir"}
    Console().print(
        table(
            ["result", "seconds are counted from the call"],
            [[name, show(value)] for name, value in shown.items()],
        )
    )
    compiles = ", which TensorFlow compiles in" if result["framework"] == "tensorflow" else ""
    print(f"Where each task's time went, the first step included{compiles}:")
    print(measures.table(trace))
    print(f"The record of this run: {result['run_dir']}")
