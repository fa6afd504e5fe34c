"""The catalogue of strategies: for each one what it does, as data. Nothing here imports a
framework.

A new strategy is a file with its facts, one with its role functions for each framework, and one
line in `STRATEGIES`. The tests hold the facts against the traces of runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from course_lib import hardware, workloads
from course_lib.collectives import ALGORITHMS, FOILS, Schedule, build, verify
from course_lib.errors import SpecError, Unavailable
from course_lib.hardware import Machine, Plan
from course_lib.spec import MAX_REPLICAS, MAX_WORKERS, NATIVE, ONLY_SOME, RunSpec
from course_lib.strategies.facts.backup_workers import BACKUP_WORKERS
from course_lib.strategies.facts.central_storage import CENTRAL_STORAGE
from course_lib.strategies.facts.fully_sharded import FULLY_SHARDED
from course_lib.strategies.facts.mirrored import MIRRORED
from course_lib.strategies.facts.multi_worker_mirrored import MULTI_WORKER_MIRRORED
from course_lib.strategies.facts.one_device import ONE_DEVICE
from course_lib.strategies.facts.parameter_server import PARAMETER_SERVER
from course_lib.strategies.facts.pipeline_parallel import PIPELINE_PARALLEL
from course_lib.strategies.facts.stale_synchronous import STALE_SYNCHRONOUS
from course_lib.strategies.facts.sync_parameter_server import SYNC_PARAMETER_SERVER
from course_lib.strategies.facts.tensor_parallel import TENSOR_PARALLEL
from course_lib.strategies.facts.tpu import TPU
from course_lib.strategies.strategy import Standing, Strategy

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        ONE_DEVICE,
        MIRRORED,
        TPU,
        MULTI_WORKER_MIRRORED,
        CENTRAL_STORAGE,
        TENSOR_PARALLEL,
        PIPELINE_PARALLEL,
        FULLY_SHARDED,
        PARAMETER_SERVER,
        SYNC_PARAMETER_SERVER,
        STALE_SYNCHRONOUS,
        BACKUP_WORKERS,
    )
}


def find(name: str) -> Strategy:
    """A strategy by name. Raises `SpecError` with the nearest name if there is none."""
    if name not in STRATEGIES:
        raise SpecError.unknown("strategy", name, STRATEGIES)
    return STRATEGIES[name]


def spec_for(name: str, **fields: Any) -> RunSpec:
    """The `RunSpec` of a run of strategy `name`; `fields` are those of `RunSpec`, None for those
    not given.

    Without `framework` it is the usual one, or the only one that the strategy has. Without
    `workers` it has as many as the strategy usually has, and likewise parameter servers and a
    chief. Where all replicas live in one process, that process has so many `replicas`. Raises
    `SpecError`, which names the field, the value and what is allowed.
    """
    strategy = find(name)
    given = {field: value for field, value in fields.items() if value is not None}
    usual = RunSpec.model_fields["framework"].default
    framework = given.setdefault(
        "framework", usual if usual in strategy.programs else next(iter(strategy.programs))
    )
    _check_framework(strategy, framework)
    _check_one_host(strategy, framework, given)
    one_process = framework in strategy.one_process
    workers = given.setdefault(
        "workers", 1 if one_process and "replicas" in given else strategy.default_workers
    )
    devices = one_process and "replicas" not in given  # workers are the devices of one process
    # else RunSpec will say what a number of workers is
    if isinstance(workers, int) and 1 <= workers <= MAX_WORKERS:
        _check_workers(strategy, workers)
        if devices:
            _check_one_process(strategy, framework, workers, given.get("slow", {}))
            given.update(workers=1, replicas=workers)
    given.setdefault("ps", strategy.default_ps)
    given.setdefault("chief", framework in strategy.chief)
    spec = RunSpec(strategy=name, **given)
    if strategy.default_batch and "global_batch" not in given:
        spec = RunSpec(strategy=name, **given, global_batch=strategy.default_batch(spec))
    try:
        return checked(spec)
    except SpecError as error:
        if devices and error.field == "replicas":  # what was asked for is called workers
            raise SpecError("workers", error.value, error.allowed) from None
        raise


def checked(spec: RunSpec) -> RunSpec:
    """Return `spec` if its strategy can be run as it says, else raise `SpecError`, or `Unavailable`
    if this machine cannot.

    What it has a use for is set in what is returned, so that the record of a run says it.
    """
    strategy = find(spec.strategy)
    _check_framework(strategy, spec.framework)
    _check_one_host(strategy, spec.framework, dict(spec))
    _check_workers(strategy, spec.workers)
    jobs = strategy.programs[spec.framework]
    for job, count in (("ps", spec.ps), ("chief", spec.chief)):
        if count and job not in jobs:
            raise SpecError(job, count, f"{strategy.name} has none: leave it out")
        if job in jobs and not count:
            raise SpecError(job, count, f"{strategy.name} with {spec.framework} needs at least one")
    if spec.framework in strategy.one_process and spec.workers > 1:
        raise SpecError(
            "workers",
            spec.workers,
            f"{strategy.name} with {spec.framework} is one process: set replicas",
        )
    if spec.replicas > 1 and spec.framework not in strategy.one_process:
        raise SpecError(
            "replicas",
            spec.replicas,
            f"{strategy.name} with {spec.framework} has one for each worker: set workers",
        )
    workloads.find(spec.workload)
    if not _installed(spec.framework):
        raise Unavailable(spec.framework, "it is not installed", _cure(spec.framework))
    if spec.evaluate_every and not spec.trace:
        raise SpecError(
            "evaluate_every",
            spec.evaluate_every,
            "the accuracy goes into the trace, and this run has none: leave one of the two out",
        )
    strategy.check(spec, hardware.probe())
    _check_use(spec)
    return spec.model_copy(
        update={
            field: getattr(spec, field)
            for field in ONLY_SOME
            if _user(spec, field) in _users(field)
        }
    )


def plan(spec: RunSpec, machine: Machine, warm: bool = False) -> Plan:
    """`hardware.plan` of a run, with the all-reduce that its strategy has."""
    own = find(spec.strategy).all_reduce(spec) if spec.strategy in STRATEGIES else None
    return hardware.plan(spec, machine, warm, own)


def programs(spec: RunSpec) -> dict[str, str]:
    """Job -> `module:function` of the role functions of a run."""
    return dict(find(spec.strategy).programs[spec.framework])


def schedule(spec: RunSpec, algorithm: Callable[..., Schedule] | None = None) -> Schedule | None:
    """The all-reduce of a run: that of `algorithm`, or of the one that the spec names; None for the
    framework's own.

    Raises `SpecError` if it is none that is right: what a learner wrote is proved before any
    process starts.
    """
    if spec.all_reduce == NATIVE:
        return None
    if spec.strategy in STRATEGIES and not find(spec.strategy).takes_schedule:
        raise SpecError("all_reduce", spec.all_reduce, _keeps_its_own(spec))
    if algorithm is None and spec.all_reduce not in ALGORITHMS | FOILS:
        raise SpecError.unknown("all_reduce", spec.all_reduce, [NATIVE, *ALGORITHMS, *FOILS])
    servers = (
        {"colocated": True} if spec.all_reduce == "parameter_server" and algorithm is None else {}
    )  # a worker is the server
    hosts = (
        [spec.places[task] for task in spec.tasks if task.startswith("worker:")]
        if spec.placement
        else spec.hosts
    )
    found = build(algorithm or spec.all_reduce, spec.workers, hosts=hosts, **servers)
    if found.kind != "all_reduce" or found.servers:
        what = (
            f"a {found.kind}" if found.kind != "all_reduce" else "one that needs servers of its own"
        )
        raise SpecError(
            "all_reduce", spec.all_reduce, f"{what}; a run needs an all-reduce between its workers"
        )
    if algorithm is not None and not (proof := verify(found)):
        raise SpecError("all_reduce", spec.all_reduce, f"it is not right yet.\n{proof}")
    return found


def rows(machine: Machine) -> list[dict[str, str]]:
    """A row for each strategy and framework: names, facts, and what its `reality` is on this
    machine, `why`, and the `cure` if there is one.
    """
    return [
        {
            "strategy": name,
            "framework": framework,
            **_reality(name, framework, machine),
            **asdict(strategy.facts),
        }
        for name, strategy in STRATEGIES.items()
        for framework in strategy.programs
    ]


def _check_framework(strategy: Strategy, framework: str) -> None:
    if framework in strategy.programs:
        return
    if any(framework in other.programs for other in STRATEGIES.values()):
        raise SpecError(
            "framework",
            framework,
            f"{strategy.name} is built in {' and '.join(strategy.programs)} only: leave it out",
        )
    raise SpecError.unknown("framework", framework, strategy.programs)


def _check_workers(strategy: Strategy, workers: int) -> None:
    if workers > strategy.max_workers:
        raise SpecError(
            "workers",
            workers,
            f"{strategy.name} has exactly {strategy.max_workers}; multi_worker_mirrored takes more",
        )


def _check_one_process(
    strategy: Strategy, framework: str, workers: int, slow: Mapping[str, float]
) -> None:
    """Refuse in a learner's words what holds for workers, where those will be the devices of one
    process.
    """
    is_one = f"{strategy.name} with {framework} is one process"
    if workers > MAX_REPLICAS:
        raise SpecError("workers", workers, f"{is_one}, which takes at most {MAX_REPLICAS} devices")
    for task in slow:
        if task in RunSpec(workers=workers).tasks[1:]:
            other = next(
                (
                    f"; --framework {name} has one for each"
                    for name, jobs in strategy.programs.items()
                    if jobs and name != framework
                ),
                "",
            )
            raise SpecError("slow", task, f"{is_one}, whose devices cannot be slowed singly{other}")


def _check_one_host(strategy: Strategy, framework: str, given: Mapping[str, Any]) -> None:
    """Refuse hosts, and links between them, where all workers have to be on one host."""
    if not (why := _one_host(strategy, framework)):
        return
    other = next(
        (
            name
            for name, jobs in strategy.programs.items()
            if jobs and not _one_host(strategy, name)
        ),
        None,
    )
    cure = (
        f"--framework {other} can be on several"
        if other
        else "multi_worker_mirrored can be on several"
    )
    for field in ("hosts", "placement", "link", "links"):
        if (value := given.get(field)) and (
            field != "hosts" or (isinstance(value, int) and value > 1)
        ):
            raise SpecError(
                field,
                str(value) if field == "link" else value,
                f"{why}, so on one host: leave it out ({cure})",
            )


def _one_host(strategy: Strategy, framework: str) -> str:
    """Why all workers of a strategy have to be on one host; "" if they need not be."""
    if framework in strategy.one_process or strategy.max_workers == 1:
        return f"{strategy.name} with {framework} is one process"
    return strategy.one_host


def _keeps_its_own(spec: RunSpec) -> str:
    """Why a run cannot have another all-reduce, and what can."""
    takers = ", ".join(name for name, strategy in STRATEGIES.items() if strategy.takes_schedule)
    own = find(spec.strategy).all_reduce(spec)
    if own and own.choice == "none":
        return f"{spec.strategy} has no all-reduce to replace; {takers} has"
    return f"{spec.strategy} keeps the framework's own; {takers} {'takes' if own else 'is the same program and takes'} yours"


def _check_use(spec: RunSpec) -> None:
    """Refuse what was set and would change nothing, whatever its value: a learner is to know that."""
    for field in ONLY_SOME:
        if field in spec.model_fields_set and (user := _user(spec, field)) not in _users(field):
            text = f"{user} has no use for it: leave it out (it is for {', '.join(_users(field))})"
            raise SpecError(field, getattr(spec, field), text)


def _users(field: str) -> tuple[str, ...]:
    """The strategies, or the workloads, that have a use for a field of `ONLY_SOME`."""
    return (
        ("wide",)
        if field == "parameters"
        else tuple(name for name, strategy in STRATEGIES.items() if field in strategy.takes)
    )


def _user(spec: RunSpec, field: str) -> str:
    """The strategy of a run, or its workload, that a field of `ONLY_SOME` is for."""
    return spec.workload if field == "parameters" else spec.strategy


def _reality(name: str, framework: str, machine: Machine) -> dict[str, str]:
    if not _installed(framework):
        return Standing("unavailable", f"{framework} is not installed", _cure(framework))._asdict()
    return find(name).standing(framework, machine)._asdict()


def _installed(framework: str) -> bool:
    return importlib.util.find_spec(framework) is not None


def _cure(framework: str) -> str:
    return f"Install it: pip install {framework}."
