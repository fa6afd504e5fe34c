"""The fields of `RunSpec` in the signature and documentation of functions that take `**fields`: so
`help(start)` lists them, and an editor completes them.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from course_lib.spec.run_spec import RunSpec

GROUPS = {
    "strategy": "Tasks and how they exchange",
    "hosts": "Hosts and links",
    "workload": "What is learned",
    "global_batch": "Training",
    "device_ms": "Emulated time",
    "faults": "Faults",
    "sampler": "Order of the examples",
    "run_dir": "Record",
}
"""The first field of each group of neighbours in `RunSpec` -> what the group is about."""

NOT_GIVEN = ("strategy", "chief")  # the first argument; a fact of the strategy

Function = TypeVar("Function", bound=Callable[..., Any])


def lists_fields(function: Function) -> Function:
    """Put the fields in place of `**fields` in a function's signature, and a list of them at the
    end of its documentation.
    """
    about: list[str] = []
    own = inspect.signature(function)
    parameters = [each for each in own.parameters.values() if each.kind != each.VAR_KEYWORD]
    kinds = typing.get_type_hints(RunSpec)
    for name, field in RunSpec.model_fields.items():
        about += [f"\n{GROUPS[name]}:"] if name in GROUPS else []
        if name in NOT_GIVEN:
            continue
        how = {"default": field.default, "annotation": kinds[name]}
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **how))
        about.append(f"    {name}: {field.title} ({field.description})")
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # what `help` reads
    function.__doc__ = f"{inspect.getdoc(function)}\n" + "\n".join(about)
    return function
