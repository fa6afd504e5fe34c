"""Options of several commands."""

from __future__ import annotations

from typing import Annotated

import typer

from course_lib.spec import RunSpec


def about(field: str) -> str:
    """Help for an option, from the spec that also checks it."""
    text = RunSpec.model_fields[field].description or ""
    return text[0].upper() + text[1:] + "."


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Framework = Annotated[str | None, typer.Option(help="tensorflow or torch.")]
Workload = Annotated[str | None, typer.Option(help="digits, digits_cnn or wide.")]
Slow = Annotated[list[str] | None, typer.Option(help="A straggler: task=factor, such as worker:1=3. May be repeated.")]
Workers = Annotated[int | None, typer.Option(help=about("workers"))]
Ps = Annotated[int | None, typer.Option(help=about("ps"))]
AllReduce = Annotated[str | None, typer.Option(help=about("all_reduce"))]
Parameters = Annotated[int | None, typer.Option(help=about("parameters"))]
GlobalBatch = Annotated[int | None, typer.Option(help=about("global_batch"))]
Steps = Annotated[int | None, typer.Option(help=about("steps"))]
Seed = Annotated[int | None, typer.Option(help=about("seed"))]
LearningRate = Annotated[float | None, typer.Option(help=about("learning_rate"))]
DeviceMs = Annotated[float | None, typer.Option(help=about("device_ms"))]
