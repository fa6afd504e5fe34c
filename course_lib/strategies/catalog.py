"""The catalogue of strategies: for each one what it does, as data. Nothing here imports a framework.

A new strategy is a file with its role functions and one entry in `STRATEGIES`. The tests hold the facts stated here against the traces of runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from course_lib import workloads
from course_lib.collectives import ALGORITHMS, Schedule, build, verify
from course_lib.errors import SpecError, Unavailable
from course_lib.spec import MAX_WORKERS, NATIVE, RunSpec

if TYPE_CHECKING:
    from course_lib.hardware import Machine


@dataclass(frozen=True)
class Facts:
    """What a learner should be able to say about a strategy.

    Where its `variables` live; who computes `gradients`, applies the `update` and `waits` for whom; what goes over the `wire` in a step (n workers,
    S bytes of gradients); its typical `use`, its `limits` and its `source`.
    """

    summary: str
    variables: str
    gradients: str
    update: str
    waits: str
    wire: str
    use: str
    limits: str
    source: str


@dataclass(frozen=True)
class Strategy:
    """A strategy: its facts; its role functions, framework -> job -> `module:function`; how many workers it takes; whether its all-reduce
    can be one of ours.
    """

    name: str
    facts: Facts
    programs: Mapping[str, Mapping[str, str]]
    default_workers: int = 4
    takes_schedule: bool = False
    max_workers: int = MAX_WORKERS


def _programs(module: str, *jobs: str) -> dict[str, dict[str, str]]:
    """Role functions named after their jobs, in a module of the same name for each framework."""
    return {framework: {job: f"{__package__}.{framework}.{module}:{job}" for job in jobs} for framework in ("tensorflow", "torch")}


ONE_DEVICE = Strategy(
    "one_device",
    Facts(
        summary="One process trains on one device: the yardstick for all others.",
        variables="on the device",
        gradients="the device, from the whole batch",
        update="the device",
        waits="nobody",
        wire="nothing",
        use="whatever fits on one device and is fast enough there; debugging",
        limits="one device's speed and memory",
        source="https://www.tensorflow.org/api_docs/python/tf/distribute/OneDeviceStrategy",
    ),
    _programs("one_device", "worker"),
    default_workers=1,
    max_workers=1,
)

MULTI_WORKER_MIRRORED = Strategy(
    "multi_worker_mirrored",
    Facts(
        summary="Every worker has a full copy of the model; an all-reduce averages their gradients in each step, so the copies stay equal.",
        variables="a copy on every worker",
        gradients="each worker, from its share of the batch",
        update="every worker, to its own copy, with the same average",
        waits="every worker for all others, in each step",
        wire="2(n-1)/n S bytes sent by each worker (ring all-reduce)",
        use="synchronous data parallelism over several machines: the usual way to train on more than one",
        limits="the slowest worker sets the pace; the model must fit on every worker; one lost worker stops all",
        source="https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl; Li et al., PyTorch Distributed, VLDB 2020",
    ),
    _programs("multi_worker_mirrored", "worker"),
    takes_schedule=True,
)

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        ONE_DEVICE,
        MULTI_WORKER_MIRRORED,
    )
}


def find(name: str) -> Strategy:
    """A strategy by name. Raises `SpecError` with the nearest name if there is none."""
    if name not in STRATEGIES:
        raise SpecError.unknown("strategy", name, STRATEGIES)
    return STRATEGIES[name]


def spec_for(name: str, **fields: Any) -> RunSpec:
    """The `RunSpec` of a run of strategy `name`; `fields` are those of `RunSpec`, None for those not given.

    Without `workers` it has as many as the strategy usually has. Raises `SpecError`, which names the field, the value and what is allowed.
    """
    strategy = find(name)
    given = {field: value for field, value in fields.items() if value is not None}
    workers = given.setdefault("workers", strategy.default_workers)
    if isinstance(workers, int) and 1 <= workers <= MAX_WORKERS:  # else RunSpec will say what a number of workers is
        _check_workers(strategy, workers)
    _check_framework(strategy, given.get("framework", RunSpec.model_fields["framework"].default))
    return checked(RunSpec(strategy=name, **given))


def checked(spec: RunSpec) -> RunSpec:
    """Return `spec` if its strategy can be run as it says, else raise `SpecError`, or `Unavailable` if the framework is not installed."""
    strategy = find(spec.strategy)
    _check_framework(strategy, spec.framework)
    _check_workers(strategy, spec.workers)
    jobs = strategy.programs[spec.framework]
    for job, count in (("ps", spec.ps), ("chief", spec.chief)):
        if count and job not in jobs:
            raise SpecError(job, count, f"{strategy.name} has none: leave it out")
    workloads.find(spec.workload)
    if not _installed(spec.framework):
        raise Unavailable(spec.framework, "it is not installed", _cure(spec.framework))
    return spec


def programs(spec: RunSpec) -> dict[str, str]:
    """Job -> `module:function` of the role functions of a run."""
    return dict(find(spec.strategy).programs[spec.framework])


def schedule(spec: RunSpec, algorithm: Callable[..., Schedule] | None = None) -> Schedule | None:
    """The all-reduce of a run: that of `algorithm`, or of the one that the spec names; None for the framework's own.

    Raises `SpecError` if it is none that is right: what a learner wrote is proved before any process starts.
    """
    if spec.all_reduce == NATIVE:
        return None
    if spec.strategy in STRATEGIES and not find(spec.strategy).takes_schedule:
        takers = ", ".join(name for name, strategy in STRATEGIES.items() if strategy.takes_schedule)
        raise SpecError("all_reduce", spec.all_reduce, f"{spec.strategy} has no all-reduce to replace; {takers} has")
    if algorithm is None and spec.all_reduce not in ALGORITHMS:
        raise SpecError.unknown("all_reduce", spec.all_reduce, [NATIVE, *ALGORITHMS])
    servers = {"colocated": True} if spec.all_reduce == "parameter_server" and algorithm is None else {}  # a worker is the server
    found = build(algorithm or spec.all_reduce, spec.workers, hosts=spec.hosts, **servers)
    if found.kind != "all_reduce" or found.servers:
        what = f"a {found.kind}" if found.kind != "all_reduce" else "one that needs servers of its own"
        raise SpecError("all_reduce", spec.all_reduce, f"{what}; a run needs an all-reduce between its workers")
    if algorithm is not None and not (proof := verify(found)):
        raise SpecError("all_reduce", spec.all_reduce, f"it is not right yet.\n{proof}")
    return found


def rows(machine: Machine) -> list[dict[str, str]]:
    """A row for each strategy and framework: names, facts, and what its `reality` is on this machine, `why`, and the `cure` if there is one."""
    return [
        {"strategy": name, "framework": framework, **_reality(name, framework, machine), **asdict(strategy.facts)}
        for name, strategy in STRATEGIES.items()
        for framework in strategy.programs
    ]


def _check_framework(strategy: Strategy, framework: str) -> None:
    if framework not in strategy.programs:
        raise SpecError.unknown("framework", framework, strategy.programs)


def _check_workers(strategy: Strategy, workers: int) -> None:
    if workers > strategy.max_workers:
        raise SpecError("workers", workers, f"{strategy.name} has exactly {strategy.max_workers}; multi_worker_mirrored takes more")


def _reality(name: str, framework: str, machine: Machine) -> dict[str, str]:
    if not _installed(framework):
        return {"reality": "unavailable", "why": f"{framework} is not installed", "cure": _cure(framework)}
    if name == "one_device":
        why = "one real process, on a GPU" if machine.gpus and framework in machine.cuda_frameworks else "one real process, on the CPU"
        return {"reality": "measured", "why": why, "cure": ""}
    if len(machine.gpus) > 1 and framework in machine.cuda_frameworks:
        return {"reality": "measured", "why": f"real processes; NCCL for up to {len(machine.gpus)} workers, a GPU each", "cure": ""}
    native = "TensorFlow's RING" if framework == "tensorflow" else "gloo"
    return {"reality": "measured", "why": f"real processes; {native} between CPUs, as NCCL needs a GPU for each worker", "cure": ""}


def _installed(framework: str) -> bool:
    return importlib.util.find_spec(framework) is not None


def _cure(framework: str) -> str:
    return f"Install it: pip install {framework}."
