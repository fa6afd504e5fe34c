"""A strategy of a learner's own: a function that every worker runs, or one for each job. One that
makes its training step with the public `Step` of a framework (`course_lib.torch`,
`course_lib.tensorflow`) is a *page*: it trains the run's workload as the fields of the run say, so
it races our own strategies and is tabled and checked beside them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from course_lib import workloads
from course_lib.record.pickles import is_own
from course_lib.strategies.strategy import Facts, Measured, Strategy

Program = Callable[..., Any]
HOMES = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
"""Packages -> the framework that they belong to."""
STEP = re.compile(r"course_lib\.(?:strategies\.)?(torch|tensorflow)\b")
"""The modules in which a training step is made."""


class Promise(NamedTuple):
    """A promise of a strategy, which `lockstep check-strategy` holds it to.

    `exact`: losses and weights are those of one device, but for the order of sums. `wire`: the
    bytes that each worker sends in a step, as a formula of n workers and S bytes of parameters in
    float32, such as "2(n-1)/n S"; "" for none. `workers`: how many it is checked with, where it
    cannot do with any number.
    """

    exact: bool = False
    wire: str = ""
    workers: tuple[int, ...] = (1, 2, 3, 4)


def strategy(
    *, exact: bool = False, wire: str = "", workers: tuple[int, ...] = Promise().workers
) -> Callable[[Program], Program]:
    """Let a strategy of your own promise something, see `Promise`:

    @strategy(exact=True, wire="2(n-1)/n S")
    def averaged(task): ...
    """

    def promising(function: Program) -> Program:
        function.promise = Promise(exact, wire, workers)  # type: ignore[attr-defined]  # as any function has
        return function

    return promising


def by_job(what: object) -> dict[str, Any]:
    """Job -> the learner's function for it. One function alone is that of the workers."""
    return dict(what) if isinstance(what, Mapping) else {"worker": what}


def plain(program: Any) -> Any:
    """A function without arguments that were bound with `partial`."""
    return plain(program.func) if isinstance(program, partial) else program


def name_of(what: object) -> str:
    """The name of a strategy of one's own: that of the workers' function."""
    programs = by_job(what)
    program = plain(programs.get("worker") or next(iter(programs.values()), None))
    return f"{getattr(program, '__name__', type(program).__name__)}()"


def promise_of(what: object) -> Promise:
    """The promise of a strategy of one's own."""
    promises = (getattr(plain(program), "promise", None) for program in by_job(what).values())
    return next(filter(None, promises), Promise())


def described(name: str, jobs: Mapping[str, tuple[str, ...]] | None = None) -> Strategy:
    """A strategy of one's own, by name. It states no facts, as its runs tell them, and takes every
    field. `jobs`: by framework, those of its tasks.
    """
    unknown: dict[str, Any] = dict.fromkeys((fact.name for fact in fields(Facts)), "")
    jobs, measured = jobs or {}, Measured("real processes, which run a function of your own")
    return Strategy(
        **unknown,
        name=name,
        jobs=jobs,
        measured=dict.fromkeys(jobs, measured),
        takes_schedule=True,
        memory=lambda spec, model, examples: {},
    )


def named(text: str) -> str | Program:
    """A strategy as the command line names it: one of ours, or a function in a file, or several by
    job, given as `file.py:name`. Raises `SpecError` if the file cannot be run, or has none.
    """
    if ".py" not in (text[-3:], text.rpartition(":")[0][-3:]):
        return text
    function: Program = workloads.from_file(
        "strategy", text, FunctionType | partial | dict, "function"
    )
    return function


def framework_of(programs: Mapping[str, Any]) -> tuple[str, bool]:
    """The framework that a learner's functions use, as far as their code tells ("python" for none),
    and whether they are a page. What the learner's functions that they call use counts as well.
    """
    modules = {name for program in programs.values() for name in _modules(plain(program))}
    steps = {match[1] for match in map(STEP.match, modules) if match}
    used = {HOMES[home] for name in modules if (home := name.partition(".")[0]) in HOMES}
    return min(steps or used or {"python"}), bool(steps)


def _written_by_learner(function: FunctionType, program: Any) -> bool:
    folder = Path(function.__code__.co_filename).parent
    return function.__module__ == program.__module__ or is_own(folder)


def _modules(program: Any) -> Iterator[str]:
    """The modules that a function imports, and those of what its global names stand for."""
    waiting, seen = [program], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType) and _written_by_learner(value, program):
            codes = [value.__code__]
            for code in codes:
                codes += [each for each in code.co_consts if isinstance(each, CodeType)]
            names = {name for code in codes for name in code.co_names}
            yield from names  # of modules, where it imports them
            waiting += [v for name, v in value.__globals__.items() if name in names]
            waiting += [cell.cell_contents for cell in value.__closure__ or ()]
        elif isinstance(value, partial):
            waiting.append(value.func)
        else:
            module = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
            yield str(getattr(value, "__module__", module))
