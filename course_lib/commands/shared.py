"""Options that several commands have; those of `run` and `race` are made from the fields of
`RunSpec`.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import typer

from course_lib.collectives import ALGORITHMS
from course_lib.spec.run_spec import NOT_GIVEN, RunSpec, parse_item
from course_lib.spec.settings import REDUCTIONS
from course_lib.workloads import WORKLOADS

KINDS = {"boolean": bool, "integer": int, "number": float, "string": str}
NUMBERS: dict[Any, str] = {int: "<int>", float: "<float>"}
REPEATED = {"placement": "--place", "link": "--link", "slow": "--slow", "faults": "--fault"}
"""Fields of several items -> the option that is given once for each item."""
BY_STRATEGY = ("framework", "workers")  # their default depends on the strategy


def about(schema: dict[str, Any], default: bool = True) -> str:
    """Help for an option: what a field is, what is allowed, and its default."""
    usual = schema.get("default") if default else None
    shown = f" Default: {usual}." if usual and not isinstance(usual, bool | dict) else ""
    text = f"{schema['title']}: {schema['description']}".removesuffix(": true or false")
    return f"{text[0].upper()}{text[1:]}.{shown}"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
OneLink = Annotated[
    str | None,
    typer.Option("--link", help="Of each host: mbit,delay_ms, such as 200,0.5."),
]
_FIELDS = RunSpec.model_json_schema()["properties"]
Engine = Annotated[str, typer.Option(help=about(_FIELDS["engine"], False))]
Timeout = Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds to wait for the end.")]


def with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `fields` by one option for each field of `RunSpec`; the command
    gets the fields that were typed as a dict.
    """
    own = inspect.signature(command, eval_str=True).parameters

    def typed(**options: Any) -> None:
        mine = {name: options.pop(name) for name in own if name != "fields"}
        command(fields=fields(options), **mine)

    parameters: list[inspect.Parameter] = []
    for name, mine in own.items():
        parameters += _options() if name == "fields" else [mine]
    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for typer
    return typed


def _options() -> Iterator[inspect.Parameter]:
    for name, schema in RunSpec.model_json_schema()["properties"].items():
        if name == "workload":
            own = "FILE.py:NAME for a Workload of yours"
            schema |= {"description": f"{', '.join(WORKLOADS)}, or {own}"}
        if name == "all_reduce":
            own = f"native for the framework's own, {', '.join(ALGORITHMS)}"
            schema |= {"description": f"{own}, or for mirrored {', '.join(REDUCTIONS)}"}
        text = about(schema, name not in BY_STRATEGY)
        if name in NOT_GIVEN:
            continue
        if name in REPEATED:
            option = typer.Option(REPEATED[name], help=f"{text} May be repeated.")
            yield _option(name, Annotated[list[str] | None, option])
        else:
            either = [schema, *schema.get("anyOf", ())]
            kind: Any = next(KINDS[one["type"]] for one in either if "type" in one)
            how: dict[str, Any] = {}
            if kind in NUMBERS:
                how = {"parser": partial(number, kind), "metavar": NUMBERS[kind]}
            option = typer.Option(help=text, **how)
            yield _option(name, Annotated[kind | None, option])


def number(kind: type, typed: str) -> Any:
    """What was typed, as a number; what is none goes to `RunSpec`, which says what is allowed."""
    try:
        return kind(typed)
    except ValueError:
        return typed


def _option(name: str, annotation: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=annotation)


def fields(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were typed, as the fields that `RunSpec` takes."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in REPEATED:
        if name in given and name != "faults":
            given[name] = dict(parse_item(name, item) for item in given[name])
    return given
