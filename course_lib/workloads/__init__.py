"""Workloads: the data and the model of a run, described without a framework, so that every strategy
trains exactly the same thing.

A new workload is a function `RunSpec -> Workload` and one line in `WORKLOADS`.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.errors import SpecError
from course_lib.spec import RunSpec
from course_lib.workloads.digits import digits, digits_cnn, digits_deep, wide
from course_lib.workloads.model import Workload

WORKLOADS: dict[str, Callable[[RunSpec], Workload]] = {
    "digits": digits,
    "digits_cnn": digits_cnn,
    "digits_deep": digits_deep,
    "wide": wide,
}


def find(name: str) -> Callable[[RunSpec], Workload]:
    """The function that makes a workload.

    Raises `SpecError` with the nearest name if there is none.
    """
    if name not in WORKLOADS:
        raise SpecError.unknown("workload", name, WORKLOADS)
    return WORKLOADS[name]


def load(spec: RunSpec) -> Workload:
    """The workload of a run. Raises `SpecError` if there is none of its name."""
    return find(spec.workload)(spec)


__all__ = ["WORKLOADS", "Workload", "find", "load"]
