"""`lockstep race`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from course_lib.commands import options
from course_lib.commands.options import with_fields
from course_lib.commands.tables import table
from course_lib.errors import SpecError
from course_lib.racing.call import race as start_race
from course_lib.racing.entrants import parse_entrant


@with_fields
def race(
    entrants: Annotated[
        list[str],
        typer.Argument(
            help="Two strategies or more. Fields of its own follow a comma: "
            "one_device,device_ms=80."
        ),
    ],
    *,
    fields: dict[str, Any],
    target_loss: Annotated[
        float | None,
        typer.Option(help="The loss they race for; if not given, the lowest that all reach."),
    ] = None,
    target_accuracy: Annotated[
        float | None,
        typer.Option(
            help="The test accuracy they race for, such as 0.9, measured every 10 steps or as "
            "--evaluate-every says."
        ),
    ] = None,
    timeout: options.Timeout = 600.0,
    as_json: options.Json = False,
) -> None:
    """Run strategies at the same time, each in its own processes with an equal share of this
    machine, and compare them.
    """
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
