"""The catalogue of strategies: what there is, and what of it is real on a machine. Nothing here
imports a framework.

A strategy is a file in `facts/`, which is found by itself, and a page for each framework. The tests
hold the facts against the traces of runs.
"""

import importlib.util
from typing import Literal, get_args

from course_lib.errors import SpecError
from course_lib.hardware import Machine
from course_lib.notebook import lazy
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.pages import described
from course_lib.strategies.strategy import Standing, Strategy

StrategyName = Literal[
    "one_device",
    "mirrored",
    "tpu",
    "multi_worker_mirrored",
    "central_storage",
    "tensor_parallel",
    "pipeline_parallel",
    "fully_sharded",
    "parameter_server",
    "sync_parameter_server",
    "stale_synchronous",
    "backup_workers",
]
"""The names of all strategies as a type, which editors complete and type checkers know. A test
holds it against the catalogue.
"""


_DEFINED = [
    value
    for module in lazy.modules("course_lib.strategies.facts")
    for value in vars(module).values()
    if isinstance(value, Strategy)
]
_NAMES = [*get_args(StrategyName), *sorted(each.name for each in _DEFINED)]
STRATEGIES = {each.name: each for each in sorted(_DEFINED, key=lambda s: _NAMES.index(s.name))}


def find(name: str) -> Strategy:
    """A strategy by name. Raises `SpecError` with the nearest name if there is none."""
    if name not in STRATEGIES:
        raise SpecError.unknown("strategy", name, STRATEGIES)
    return STRATEGIES[name]


def of(spec: RunSpec) -> Strategy:
    """The strategy of a run, which may be a learner's own."""
    return described(spec.strategy) if spec.own else find(spec.strategy)


def carries_over(name: str) -> bool:
    """Return whether the checkpoints of a strategy hold the whole state by name, as those of one
    device: every other such strategy can go on from them.
    """
    strategy = STRATEGIES.get(name)
    return bool(strategy and strategy.recovers == "together" and not strategy.model_parallel)


def rows(machine: Machine) -> list[dict[str, str]]:
    """A row for each strategy and framework: names, facts, how real it is on this machine
    (`reality`), `why`, and the `cure` if it is unavailable.
    """
    return [
        {
            "strategy": name,
            "framework": framework,
            **_standing(strategy, framework, machine)._asdict(),
            **strategy.facts,
        }
        for name, strategy in STRATEGIES.items()
        for framework in strategy.programs
    ]


def _standing(strategy: Strategy, framework: str, machine: Machine) -> Standing:
    if cure := missing(framework):
        return Standing("unavailable", f"{framework} is not installed", cure)
    return strategy.standing(framework, machine)


def missing(framework: str) -> str:
    """Say how to install a framework; "" if it is there."""
    there = framework == "python" or importlib.util.find_spec(framework)
    return "" if there else f"Install it: pip install {framework}."
