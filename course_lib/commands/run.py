"""`lockstep run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from course_lib.commands import options
from course_lib.commands.options import about
from course_lib.commands.tables import show, table
from course_lib.launch import start
from course_lib.progress import follow
from course_lib.record import measures
from course_lib.record.trace import Trace
from course_lib.strategies import catalog


def run(
    strategy: Annotated[
        str, typer.Argument(help="The name of a strategy, see `lockstep strategies`.")
    ] = "multi_worker_mirrored",
    framework: options.Framework = None,
    workers: options.Workers = None,
    ps: options.Ps = None,
    all_reduce: options.AllReduce = None,
    cross_device_ops: Annotated[str | None, typer.Option(help=about("cross_device_ops"))] = None,
    staleness_bound: Annotated[int | None, typer.Option(help=about("staleness_bound"))] = None,
    backups: Annotated[int | None, typer.Option(help=about("backups"))] = None,
    microbatches: Annotated[int | None, typer.Option(help=about("microbatches"))] = None,
    pipeline: Annotated[str | None, typer.Option(help=about("pipeline"))] = None,
    emulate: Annotated[
        bool | None, typer.Option("--emulate", help="Emulate a device that is not there (tpu).")
    ] = None,
    hosts: options.Hosts = None,
    mbit: options.Mbit = None,
    delay_ms: options.DelayMs = None,
    links: options.Links = None,
    workload: options.Workload = None,
    parameters: options.Parameters = None,
    global_batch: options.GlobalBatch = None,
    steps: options.Steps = None,
    seed: options.Seed = None,
    learning_rate: options.LearningRate = None,
    evaluate_every: options.EvaluateEvery = None,
    device_ms: options.DeviceMs = None,
    slow: options.Slow = None,
    run_dir: Annotated[
        Path | None, typer.Option(help=about("run_dir", "where the record of the run is written"))
    ] = None,
    no_trace: Annotated[bool, typer.Option("--no-trace", help="Record no events.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds to wait for the end of the run.")
    ] = 600.0,
    as_json: options.Json = False,
) -> None:
    """Train with a strategy, in real processes on this machine."""
    known = catalog.STRATEGIES.get(strategy)
    # so that one command goes through all strategies
    if known and workers and workers > known.max_workers == 1:
        print(f"{strategy} has one worker: --workers {workers} is left out", file=sys.stderr)
        workers = None
    fields = options.fields(locals())
    if no_trace:
        fields["trace"] = False
    with start(fields.pop("strategy"), **fields) as started:
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
