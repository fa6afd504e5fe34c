"""Workloads: the data and the model of a run, described without a framework, so that every strategy
trains exactly the same thing.

A new workload is a function that returns a `Workload`, and one line in `WORKLOADS`. Its parameters
are named after the fields of `RunSpec` that it has a use for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from course_lib.errors import SpecError
from course_lib.spec import RunSpec
from course_lib.workloads.digits import digits, digits_cnn, digits_deep, wide
from course_lib.workloads.model import Workload

WORKLOADS: dict[str, Callable[..., Workload]] = {
    "digits": digits,
    "digits_cnn": digits_cnn,
    "digits_deep": digits_deep,
    "wide": wide,
}


def find(name: str) -> Callable[..., Workload]:
    """The function that makes a workload.

    Raises `SpecError` with the nearest name if there is none.
    """
    if name not in WORKLOADS:
        raise SpecError.unknown("workload", name, WORKLOADS)
    return WORKLOADS[name]


def fields(name: str) -> tuple[str, ...]:
    """The fields of `RunSpec` that only some workloads have a use for, and this one has."""
    return tuple(inspect.signature(find(name)).parameters)


def load(spec: RunSpec) -> Workload:
    """The workload of a run. Raises `SpecError` if there is none of its name."""
    given = {field: getattr(spec, field) for field in fields(spec.workload)}
    return find(spec.workload)(**given)


__all__ = ["WORKLOADS", "Workload", "fields", "find", "load"]
