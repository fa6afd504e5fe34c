"""All algorithms by name. Each file here is about one algorithm, and is found without being listed.

The file `NAME.py` holds the all-reduce `NAME(workers) -> Schedule` and its `closed_form`. It may
list related functions in a tuple: `FOILS` (bad all-reduces, for comparison) and `COLLECTIVES`
(other ones: a reduce-scatter, an all-gather, a broadcast, an all-to-all). `ORDER` gives its place
in tables; without one it comes last.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from course_lib.collectives.cost import ClosedForm
from course_lib.collectives.schedule import Schedule
from course_lib.errors import SpecError
from course_lib.notebook import lazy
from course_lib.text import kind_of

Algorithm = Callable[..., Schedule]

ALGORITHMS: dict[str, Algorithm] = {}
FORMS: dict[str, Callable[..., ClosedForm]] = {}  # the closed form of each
FOILS: dict[str, Algorithm] = {}
COLLECTIVES: dict[str, Algorithm] = {}

for module in sorted(lazy.modules(__name__), key=lambda module: getattr(module, "ORDER", 100)):
    name = module.__name__.rpartition(".")[2]
    for needed, how in ((name, f"{name}(workers)"), ("closed_form", "closed_form(P, S)")):
        if not callable(getattr(module, needed, None)):
            raise SpecError(module.__file__ or name, name, f"the file must define {how}")
    ALGORITHMS[name], FORMS[name] = getattr(module, name), module.closed_form
    FOILS |= {function.__name__: function for function in getattr(module, "FOILS", ())}
    COLLECTIVES |= {function.__name__: function for function in getattr(module, "COLLECTIVES", ())}


def find(algorithm: str | Algorithm) -> Algorithm:
    """The function of that name. If a function is given, it is returned.

    Raises SpecError for an unknown name, and suggests the nearest one.
    """
    if callable(algorithm):
        return algorithm
    known = ALGORITHMS | FOILS | COLLECTIVES
    if algorithm not in known:
        raise SpecError.unknown("algorithm", algorithm, known)
    return known[algorithm]


def build(
    algorithm: str | Algorithm,
    workers: int,
    hosts: int | Sequence[int] = 1,
    alone: bool = False,
    **options: Any,
) -> Schedule:
    """The schedule of an algorithm for `workers` workers on `hosts`; `options` go to its function.

    If the workers are `alone`, an algorithm of the course that can put its servers on them
    (`colocated`) does; a function is taken as it is. Raises SpecError if a learner's function does
    not return a Schedule for so many workers.
    """
    function = find(algorithm)
    name = getattr(function, "__name__", "algorithm")
    takes = inspect.signature(function).parameters
    if "hosts" in takes:
        options["hosts"] = hosts
    if alone and isinstance(algorithm, str) and "colocated" in takes:
        options["colocated"] = True
    schedule = function(workers, **options)
    if not isinstance(schedule, Schedule):
        text = "and must return a Schedule(name, workers, chunks, rounds)"
        raise SpecError("", f"{name}({workers})", f"returns {kind_of(schedule)}, {text}")
    if schedule.workers != workers:
        asked = f"a schedule for {workers} workers was asked for"
        raise SpecError(f"{name}({workers}).workers", schedule.workers, asked)
    return schedule if "hosts" in takes or hosts == 1 else schedule.placed(hosts)


def closed_form(algorithm: str, workers: int, bytes: int, **options: Any) -> ClosedForm:
    """The closed form of an all-reduce of the course for a buffer of `bytes` bytes; `options` are
    those of its function.

    Raises SpecError for an unknown name.
    """
    if algorithm not in FORMS:
        raise SpecError.unknown("algorithm", algorithm, FORMS)
    return FORMS[algorithm](workers, bytes, **options)
