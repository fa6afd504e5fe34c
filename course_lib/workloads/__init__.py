"""Workloads: the data and the model of a run, ours and a learner's own, so that every strategy
trains exactly the same thing.

One of ours is a function in a file here that is annotated to return a `Workload`, such as `digits`.
It is found without being listed. Its parameters are its `sizes`, each annotated with the range of
what is allowed. One of a learner's own is a `Workload` that he or she has made.
"""

import inspect
import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from course_lib.errors import SpecError, trying
from course_lib.notebook import lazy
from course_lib.spec.run_spec import RunSpec
from course_lib.workloads.workload import OWN, WORKLOADS, Workload

for module in lazy.modules(__name__):
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__annotations__.get("return") is Workload:
            WORKLOADS[name] = function


def named(workload: Any) -> str:
    """The name of a workload that was given by its name, as a `Workload`, or as `file.py:name`.
    Raises `SpecError` as `from_file` does.
    """
    if isinstance(workload, Workload):
        return workload.name
    if isinstance(workload, str) and ".py" not in (workload[-3:], workload.rpartition(":")[0][-3:]):
        return workload
    return str(from_file("workload", workload, Workload, "Workload(...)").name)


def from_file(field: str, text: Any, kind: Any, what: str) -> Any:
    """The value of a `kind`, called a `what`, in a file of a learner's own: `file.py:name`.

    Such a file is run, as a module that is imported is, and may import its neighbours. Raises
    `SpecError` if it cannot be run, or if it has no such value of that name.
    """
    path, _, name = str(text).rpartition(":")
    if not path.endswith(".py"):
        form = f"the name of a {field}, a {what}, or the file and name of one: my.py:mine"
        raise SpecError(field, text, form)
    if not Path(path).is_file():
        raise SpecError(field, text, f"there is no file {path}")
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python file.py` does; the tasks have it from here
    with trying(f"{path} cannot be run", partial(SpecError, field, text)):
        values = runpy.run_path(path, run_name=(stem := Path(path).stem))
    if not isinstance(values.get(name), kind):
        made = (n for n, value in values.items() if isinstance(value, kind))
        there = [n for n in made if getattr(values[n], "__module__", "") in (stem, kind.__module__)]
        has = ", ".join(there) or "none"
        raise SpecError(field, text, f"{path} has no {what} called {name}; it has {has}")
    return values[name]


def find(name: str) -> Callable[..., Workload]:
    """The function that makes a workload.

    Raises `SpecError` with the nearest name if there is none.
    """
    if name in OWN:
        return lambda: OWN[name]
    if name not in WORKLOADS:
        raise SpecError.unknown("workload", name, [*WORKLOADS, *OWN])
    return WORKLOADS[name]


def sizes(spec: RunSpec) -> dict[str, int]:
    """The sizes of a run's workload; those that are not given are as usual.

    Raises `SpecError` for one that the workload does not have, or that is out of its range.
    """
    takes = inspect.signature(find(spec.workload)).parameters
    for name, value in spec.sizes.items():
        if name not in takes:
            has = f"{spec.workload} has {', '.join(takes) or 'none: leave it out'}"
            raise SpecError.unknown("sizes", name, takes, has)
        (allowed,) = takes[name].annotation.__metadata__
        if value not in allowed:
            text = f"{name} is a whole number from {allowed[0]} to {allowed[-1]}"
            raise SpecError("sizes", f"{name}={value}", f"allowed: {text}")
    return {name: size.default for name, size in takes.items()} | spec.sizes


def load(spec: RunSpec) -> Workload:
    """The workload of a run. Raises `SpecError` if there is none of its name, or none so large."""
    return find(spec.workload)(**sizes(spec))
