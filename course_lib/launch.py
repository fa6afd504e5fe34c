"""`start`: admit a run, plan it and start it. A race begins its runs in the same way."""

import os
import typing
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from course_lib import engines, hardware, workloads
from course_lib.cluster import nursery
from course_lib.cluster.run import Prepared, Run
from course_lib.collectives import ALGORITHMS
from course_lib.hardware import Machine, Plan, Reason
from course_lib.notebook import shell
from course_lib.record.events import clock
from course_lib.spec.fields import texts
from course_lib.spec.run_spec import RunSpec, lists_fields
from course_lib.spec.settings import NATIVE, REDUCTIONS
from course_lib.strategies import catalog, saving, trial
from course_lib.strategies.catalog import StrategyName
from course_lib.strategies.gate import Request, admit, requested
from course_lib.strategies.pages import Program
from course_lib.strategies.summary import summarize


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
    origin, machine = clock(), hardware.probe()
    run = Run(prepare(admit(requested(what, fields), machine), machine), origin)
    run.restart = partial(start, what, **fields)
    return run


def prepare(request: Request, machine: Machine, warm: bool | None = None) -> Prepared:
    """Plan what was admitted for a machine, or a share of one; nothing is started.

    `warm`: whether the framework is loaded already, found out if not given. Raises `SpecError` if
    the tasks need more memory than is free, or if the model cannot be trained on their devices.
    """
    strategy = request.strategy
    together = bool(strategy and strategy.why_one_host(request.spec.framework))
    engine, spec = engines.find(request.spec, together)
    try:
        has = engine.machine(machine)
        warm = nursery.is_warm(spec.framework) if warm is None else warm
        plan = saving.resumed(spec, _plan(request, spec, has, warm))
        _warn_of_open_doors(plan)
        summary, recovers = (summarize, strategy.recovers) if strategy else (None, "together")
        how = request.programs or {}, request.schedule, summary, recovers
        return Prepared(spec, has, plan, *how, engine=engine)
    except BaseException:
        engine.release()
        raise


def _plan(request: Request, spec: RunSpec, machine: Machine, warm: bool) -> Plan:
    """The plan of a run, with what is known of its model and of restarts."""
    strategy, notes = request.strategy, []
    if strategy is None:
        plan = hardware.plan(spec, machine, warm)
    else:
        model = request.model
        all_reduce = strategy.all_reduce(spec, model)
        plan = hardware.plan(spec, machine, warm, all_reduce, model.parameters)
        divided = strategy.piece(spec) < spec.batch
        notes = trial.reasons(spec, model, plan.device, divided)
        if strategy.asynchronous:
            text = "Each worker's piece of a global batch is an update of its own, divided by what "
            text += "its loss counts in this piece."
            notes.append(Reason("updates", f"{spec.steps * spec.workers:,}", text))
    if spec.max_restarts:
        why = "When a task is lost, all are started again, as each step needs them all."
        if strategy and strategy.recovers == "alone":
            why = "A lost worker is started again while the others go on."
        notes.append(Reason("restarts", f"at most {spec.max_restarts}", why))
    return plan.model_copy(update={"reasons": (*plan.reasons, *notes)})


def _warn_of_open_doors(plan: Plan) -> None:
    """Warn of servers that other users could reach, unless they were asked for. Python shows a
    warning of one place once.
    """
    opens = plan.network == "loopback" and plan.backend != "none" and len(plan.devices) > 1
    if opens and os.environ.get("LOCKSTEP_NETWORK") != "loopback":
        why = next(reason.why for reason in plan.reasons if reason.what == "network")
        warnings.warn(f"This run, and others after it, use loopback. {why}", stacklevel=1)


def names_for(call: str, field: str) -> Iterable[str]:
    """The names that may stand between quotes in a call: of strategies or algorithms, or the texts
    that a field may be set to.
    """
    if not field:
        reduces = call in ("allreduce", "compare", "stage", "AllReduceStage")
        return ALGORITHMS if reduces else catalog.STRATEGIES
    listed: dict[str, Iterable[str]] = {
        "strategy": catalog.STRATEGIES,
        "all_reduce": [NATIVE, *ALGORITHMS, *REDUCTIONS],
        "workload": [*workloads.WORKLOADS, *workloads.OWN],
    }
    return listed.get(field) or texts(typing.get_type_hints(RunSpec).get(field))


shell.complete(names_for)
