"""Options of several commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from course_lib.spec import Link, RunSpec, parse_link, parse_slow


def about(field: str, what: str = "", varies: bool = False) -> str:
    """Help for an option: `what` it is, what the spec allows, and its default, unless that `varies`
    with the strategy.
    """
    info = RunSpec.model_fields[field]
    text = ": ".join(filter(None, [what, info.description]))
    default = f" Default: {info.default}." if info.default and not varies else ""
    return f"{text[0].upper()}{text[1:]}.{default}"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Framework = Annotated[str | None, typer.Option(help="tensorflow or torch.")]
Workload = Annotated[str | None, typer.Option(help="digits, digits_cnn, digits_deep or wide.")]
Slow = Annotated[
    list[str] | None,
    typer.Option(help="A straggler: task=factor, such as worker:1=3. May be repeated."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help=about(
            "workers", "workers, as many as the strategy usually has if not given", varies=True
        )
    ),
]
Ps = Annotated[int | None, typer.Option(help=about("ps"))]
AllReduce = Annotated[str | None, typer.Option(help=about("all_reduce"))]
Parameters = Annotated[int | None, typer.Option(help=about("parameters"))]
GlobalBatch = Annotated[int | None, typer.Option(help=about("global_batch"))]
Steps = Annotated[int | None, typer.Option(help=about("steps", "steps to train"))]
Seed = Annotated[
    int | None,
    typer.Option(help=about("seed", "decides the first weights and the order of the examples")),
]
EvaluateEvery = Annotated[int | None, typer.Option(help=about("evaluate_every"))]
LearningRate = Annotated[
    float | None,
    typer.Option(help=about("learning_rate", "learning rate, that of the workload if not given")),
]
DeviceMs = Annotated[float | None, typer.Option(help=about("device_ms"))]
Hosts = Annotated[
    int | None, typer.Option(help=about("hosts", "hosts that the workers are spread over"))
]
Mbit = Annotated[float | None, typer.Option(help="The link of each host, in megabits a second.")]
DelayMs = Annotated[
    float | None, typer.Option(help="The delay of each host's link, in milliseconds.")
]
Links = Annotated[
    list[str] | None,
    typer.Option(
        "--link",
        help="Another link for one host: host=mbit or host=mbit,delay_ms. May be repeated.",
    ),
]


def link(mbit: float | None, delay_ms: float | None) -> Link | None:
    """The link that was asked for, if one was."""
    return None if mbit is None and delay_ms is None else Link(mbit=mbit, delay_ms=delay_ms or 0.0)


def fields(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a command, given as its `locals()`, that are fields of a `RunSpec` and were
    set, as what the spec takes.
    """
    found = {
        name: value
        for name, value in options.items()
        if name in RunSpec.model_fields and value is not None
    }
    if options["slow"]:
        found["slow"] = dict(map(parse_slow, options["slow"]))
    if options["links"]:
        found["links"] = dict(map(parse_link, options["links"]))
    if imposed := link(options["mbit"], options["delay_ms"]):
        found["link"] = imposed
    return found
