"""`start`: begin a run. A race begins its runs in the same way, `Run(prepare(...), ...)`."""

import os
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from course_lib import hardware, workloads
from course_lib.cluster import engines, nursery
from course_lib.cluster.prepared import Prepared
from course_lib.cluster.run import Run
from course_lib.collectives import ALGORITHMS, Schedule
from course_lib.errors import SpecError
from course_lib.hardware import Machine, Plan, Reason
from course_lib.notebook import completion
from course_lib.record.clock import clock
from course_lib.spec.run_spec import JOBS, NATIVE, RunSpec
from course_lib.spec.signature import lists_fields
from course_lib.strategies import catalog, saving, trial
from course_lib.strategies.names import StrategyName
from course_lib.strategies.strategy import Strategy
from course_lib.strategies.summary import summarize

Program = Callable[..., Any]


@lists_fields
def start(
    what: StrategyName | RunSpec | Program | Mapping[str, Program] = "multi_worker_mirrored",
    **fields: Any,
) -> Run:
    """Start a run, on this machine or with `engine="ray"` on a Ray cluster, and return at once.

    `what` is the name of a strategy (`strategy_table()` shows all), a `RunSpec`, a function of your
    own that every worker runs (`def work(task): ...`), or such functions by job: `{"worker": work,
    "ps": serve}`. A chief and, unless `ps` says how many, one parameter server are started if they
    have a function. `fields` are those of `RunSpec`; `all_reduce` may also be a function of your
    own that returns a `Schedule`.
    Raises `SpecError` or `Unavailable` before any process starts.

        run = start("multi_worker_mirrored", workers=4, steps=200)
        run.wait().result["test_accuracy"]
    """
    origin = clock()
    fields, algorithm = catalog.named(fields)
    programs = None
    if isinstance(what, (str, RunSpec)):
        spec = catalog.spec_for(what, **fields)
    else:
        programs = _by_job(what)
        usual = {"framework": "python", "ps": int("ps" in programs), "chief": "chief" in programs}
        spec = RunSpec(strategy="custom", **{**usual, **fields})
        spec = spec.complete(unused=("steps", "global_batch"))  # the function may have others
        _check_jobs(spec, what, programs)
    schedule = catalog.schedule(spec, algorithm)
    return Run(prepare(spec, hardware.probe(), schedule, programs), origin)


def prepare(
    spec: RunSpec,
    machine: Machine,
    schedule: Schedule | None = None,
    programs: Mapping[str, Program] | None = None,
    warm: bool | None = None,
) -> Prepared:
    """Plan a run for a machine, or a share of one; nothing is started.

    `spec` is complete and checked (see `catalog.spec_for`), `programs` are the functions of a
    learner's own run. `warm`: whether the framework is loaded already, found out if not given.
    Raises `SpecError` if the tasks need more memory than is free, or if the model cannot be trained
    on their devices.
    """
    strategy = None if programs is not None else catalog.find(spec.strategy)
    together = bool(strategy and strategy.why_one_host(spec.framework))
    engine, spec = engines.found(spec, together)
    try:
        has = engine.machine(machine)
        warm = nursery.is_warm(spec.framework) if warm is None else warm
        if strategy:
            plan, recovers = _plan(spec, has, warm, strategy), strategy.recovers
        else:
            plan, recovers = hardware.plan(spec, has, warm), "together"
        plan = saving.resumed(spec, plan)
        _warn_of_open_doors(plan)
        reasons = (*plan.reasons, *_restarts(spec, recovers))
        plan = plan.model_copy(update={"reasons": reasons})
        roles = strategy.programs[spec.framework] if strategy else programs or {}
        summary = summarize if strategy else None
        return Prepared(spec, has, plan, roles, schedule, summary, recovers, engine=engine)
    except BaseException:
        engine.release()
        raise


def _plan(spec: RunSpec, machine: Machine, warm: bool, strategy: Strategy) -> Plan:
    """The plan of a strategy's run, with what is known of its model."""
    model = trial.sketch(spec)
    plan = hardware.plan(spec, machine, warm, strategy.all_reduce(spec), model.parameters)
    divided = strategy.piece(spec) < spec.batch
    notes = trial.reasons(spec, model, plan.device, servers=spec.ps > 0, divided=divided)
    if strategy.asynchronous:
        text = "A step is a global batch, and each worker's piece of it is an update of its own"
        text += ", divided by what its loss counts in this piece"
        made = f"{spec.steps * spec.workers:,}"
        notes.append(Reason("updates", made, f"{text}, so {spec.steps:,} steps make {made}."))
    return plan.model_copy(update={"reasons": (*plan.reasons, *notes)})


def _restarts(spec: RunSpec, recovers: str) -> list[Reason]:
    """What happens when a task fails or is killed, where something is to be done about it."""
    if not spec.max_restarts:
        return []
    why = "When a task is lost, all are started again, as each step needs them all"
    if recovers == "alone":
        why = "A lost worker is started again while the others go on"
    if spec.elastic:
        why += ", with one worker fewer. Each keeps its share of the batch, so global batch and "
        why += "learning rate shrink in proportion"
    return [Reason("restarts", f"at most {spec.max_restarts}", f"{why}.")]


def _warn_of_open_doors(plan: Plan) -> None:
    """Warn of servers that other users could reach, unless they were asked for. Python shows a
    warning of one place once.
    """
    opens = plan.network == "loopback" and plan.backend != "none" and len(plan.devices) > 1
    if opens and os.environ.get("LOCKSTEP_NETWORK") != "loopback":
        why = next(reason.why for reason in plan.reasons if reason.what == "network")
        warnings.warn(f"This run, and others after it, use loopback. {why}", stacklevel=1)


def _by_job(what: Program | Mapping[str, Program]) -> Mapping[str, Program]:
    """A learner's functions by job. Raises `SpecError` for anything else."""
    programs = what if isinstance(what, Mapping) else {"worker": what}
    for job, function in programs.items():
        if job not in JOBS:
            raise SpecError.unknown("job", job, JOBS)
        if not callable(function):
            allowed = "a strategy's name, a RunSpec, or a function that every worker runs"
            raise SpecError("start", function, allowed)
    return programs


def _check_jobs(spec: RunSpec, what: object, programs: Mapping[str, Program]) -> None:
    """Raise `SpecError` if the functions and the tasks of a run are not of the same jobs."""
    jobs = dict.fromkeys(task.partition(":")[0] for task in spec.tasks)
    for job in (job for job in programs if job not in jobs):
        text = f"start is given a function for the job {job!r}: leave {job} out, or the function"
        raise SpecError(job, getattr(spec, job), text)
    if missing := [job for job in jobs if job not in programs]:
        given = {job: getattr(programs.get(job), "__name__", "...") for job in jobs}
        call = ", ".join(f'"{job}": {name}' for job, name in given.items())
        names = " or ".join(map(repr, missing))
        allowed = f"there is no function for the job {names}: start({{{call}}}, ...)"
        raise SpecError("start", what, allowed)


def names_for(call: str, field: str) -> Iterable[str]:
    """The names that may stand between quotes in a call: of strategies or algorithms, or the texts
    that a field may be set to.
    """
    if not field:
        reduces = call in ("allreduce", "compare", "stage", "AllReduceStage")
        return ALGORITHMS if reduces else catalog.STRATEGIES
    listed: dict[str, Iterable[str]] = {
        "strategy": catalog.STRATEGIES,
        "all_reduce": [NATIVE, *ALGORITHMS],
        "workload": [*workloads.WORKLOADS, *workloads.OWN],
    }
    return listed.get(field) or _texts(typing.get_type_hints(RunSpec).get(field))


def _texts(kind: Any) -> Iterator[str]:
    for part in typing.get_args(kind):
        if isinstance(part, str):
            yield part
        else:
            yield from _texts(part)


completion.offer(names_for)
