"""`lockstep race`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from course_lib.commands import options
from course_lib.commands.tables import table
from course_lib.errors import SpecError
from course_lib.racing.call import race as start_race
from course_lib.racing.entrants import parse_entrant


def race(
    entrants: Annotated[
        list[str],
        typer.Argument(
            help="Two strategies or more. Fields of its own follow a comma: one_device,device_ms=80."
        ),
    ],
    framework: options.Framework = None,
    workers: options.Workers = None,
    all_reduce: options.AllReduce = None,
    ps: options.Ps = None,
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
    target_loss: Annotated[
        float | None,
        typer.Option(help="The loss they race for; if not given, the lowest that all reach."),
    ] = None,
    target_accuracy: Annotated[
        float | None,
        typer.Option(
            help="The test accuracy they race for, such as 0.9, measured every 10 steps or as --evaluate-every says."
        ),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="A directory for the entrants' run directories.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds to wait for the end of the race.")
    ] = 600.0,
    as_json: options.Json = False,
) -> None:
    """Run strategies at the same time, each in its own processes with an equal share of this
    machine, and compare them.
    """
    fields = options.fields(locals())
    if len(entrants) < 2:
        raise SpecError(
            "race",
            entrants[0],
            "two strategies or more, such as: lockstep race one_device multi_worker_mirrored",
        )
    targets = {"target_loss": target_loss, "target_accuracy": target_accuracy}
    with start_race(*map(parse_entrant, entrants), **targets, **fields) as started:
        started.wait(timeout)
    if as_json:
        print(json.dumps(started.as_dict()))
    else:
        shown = started.comparison
        Console().print(table(shown.headers(), shown.rows()))
        print("\n".join(shown.words()))
