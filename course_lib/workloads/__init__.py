"""Workloads: the data and the model of a run, described without a framework, so that every strategy
trains exactly the same thing.

A workload is a function in a file here that is annotated to return a `Workload`, such as `digits`.
It is found without being listed. Its parameters are named after the fields of `RunSpec` that it
uses.
"""

import inspect
from collections.abc import Callable

from course_lib import lazy
from course_lib.errors import SpecError
from course_lib.spec import RunSpec
from course_lib.workloads.model import Workload

WORKLOADS: dict[str, Callable[..., Workload]] = {
    name: function
    for module in lazy.modules(__name__)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__annotations__.get("return") is Workload
}


def find(name: str) -> Callable[..., Workload]:
    """The function that makes a workload.

    Raises `SpecError` with the nearest name if there is none.
    """
    if name not in WORKLOADS:
        raise SpecError.unknown("workload", name, WORKLOADS)
    return WORKLOADS[name]


def fields(name: str) -> tuple[str, ...]:
    """The fields of `RunSpec` that this workload uses and not every workload does."""
    return tuple(inspect.signature(find(name)).parameters)


def load(spec: RunSpec) -> Workload:
    """The workload of a run. Raises `SpecError` if there is none of its name."""
    given = {field: getattr(spec, field) for field in fields(spec.workload)}
    return find(spec.workload)(**given)


__all__ = ["WORKLOADS", "Workload", "fields", "find", "load"]
