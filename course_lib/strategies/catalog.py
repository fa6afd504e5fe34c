"""The catalogue of strategies: what there is, what a run of each may be asked for, and what of it
is real on a machine. Nothing here imports a framework.

A strategy is a file in `facts/`, which is found by itself, and a page for each framework. The tests
hold the facts against the traces of runs.
"""

import importlib.util
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from course_lib import hardware, workloads
from course_lib.collectives import ALGORITHMS, FOILS, Schedule, build, verify
from course_lib.errors import SpecError, Unavailable
from course_lib.hardware import Machine
from course_lib.notebook import lazy
from course_lib.spec.run_spec import NATIVE, RunSpec
from course_lib.strategies import trial
from course_lib.strategies.optimizers import usual_rate
from course_lib.strategies.standing import Standing
from course_lib.strategies.strategy import Refusals, Strategy
from course_lib.workloads.sketch import Sketch


def _found() -> list[Strategy]:
    modules = lazy.modules("course_lib.strategies.facts")
    values = chain.from_iterable(vars(module).values() for module in modules)
    return [value for value in values if isinstance(value, Strategy)]


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in sorted(_found(), key=lambda s: (s.order, s.name))
}


def find(name: str) -> Strategy:
    """A strategy by name. Raises `SpecError` with the nearest name if there is none."""
    if name not in STRATEGIES:
        raise SpecError.unknown("strategy", name, STRATEGIES)
    return STRATEGIES[name]


def carries_over(name: str) -> bool:
    """Whether the checkpoints of a strategy hold the whole state by name, as those of one device:
    every other such strategy can go on from them.
    """
    strategy = STRATEGIES.get(name)
    return bool(strategy and strategy.recovers == "together" and not strategy.model_parallel)


def spec_for(what: str | RunSpec, /, **fields: Any) -> RunSpec:
    """The spec of a run of a strategy, complete and checked.

    `what` is the strategy's name, and `fields` are those of `RunSpec`, None for those not given; or
    a `RunSpec`, whose set fields count as given. What is not given is as the strategy usually has
    it. Where a strategy is one process, `workers` become its `replicas`. Raises `SpecError`, which
    names the field, the value and what is allowed, or `Unavailable` if this machine cannot do it.
    """
    if isinstance(what, RunSpec):
        for field, value in fields.items():
            raise SpecError(field, value, f"a RunSpec says all there is: RunSpec(..., {field}=...)")
        fields = {name: getattr(what, name) for name in what.model_fields_set - {"strategy"}}
        what = what.strategy
    strategy = find(what)
    given = {field: value for field, value in fields.items() if value is not None}
    if "workload" in given:
        given["workload"] = workloads.named(given["workload"])
    _check_examples(given.get("workload", ""), given.get("global_batch"))
    framework = given["framework"] = _framework(strategy, given)
    _check_one_host(strategy, framework, given)
    jobs, one_process = strategy.jobs[framework], framework in strategy.one_process
    devices = one_process and "replicas" not in given  # workers are the devices of one process
    workers = strategy.default_workers if devices or not one_process else 1
    given = {"workers": workers, "ps": int("ps" in jobs), "chief": "chief" in jobs, **given}
    given.setdefault("precision", strategy.default_precision)
    if devices:
        given.update(workers=1, replicas=given["workers"])
    try:
        spec = RunSpec(strategy=what, **given)
        if "global_batch" not in given:
            spec = RunSpec(strategy=what, **given, global_batch=_usual_batch(strategy, spec))
        return _checked(strategy, spec)
    except SpecError as error:
        raise _of_devices(error, strategy, framework) if devices else error from None


def _usual_batch(strategy: Strategy, spec: RunSpec) -> int:
    """The global batch of a run that is not told one: at most all examples, if they are enough."""
    usual, unit = strategy.default_batch(spec), spec.shares * spec.accumulate
    examples = len(workloads.load(spec).train)
    return examples // unit * unit if usual > examples >= unit else usual


def _of_devices(error: SpecError, strategy: Strategy, framework: str) -> SpecError:
    """The same error where the workers that were asked for are devices of one process."""
    is_one, others = strategy.why_one_host(framework), strategy.others(framework)
    if error.field == "replicas":
        return SpecError("workers", error.value, f"{error.allowed} ({is_one})")
    if error.field in ("slow", "jitter") and str(error.value).startswith("worker:"):
        cure = f"; --framework {others[0]} has one for each" if others else ""
        text = f"{is_one}, whose devices cannot be slowed singly{cure}"
        return SpecError(error.field, error.value, text)
    return error


def named(fields: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[..., Schedule] | None]:
    """The fields with a learner's own `all_reduce` replaced by its name; and that function."""
    if "strategy" in fields:
        raise SpecError("strategy", fields["strategy"], 'is given first: start("one_device", ...)')
    algorithm = fields.get("all_reduce")
    if not callable(algorithm):
        return dict(fields), None
    name = getattr(algorithm, "__name__", "algorithm")
    # a function's name decides nothing
    return {**fields, "all_reduce": "algorithm" if name == NATIVE else name}, algorithm


def schedule(spec: RunSpec, algorithm: Callable[..., Schedule] | None = None) -> Schedule | None:
    """The all-reduce of a run: that of `algorithm`, or of the one that the spec names; None for the
    framework's own.

    Raises `SpecError` if it is not a correct all-reduce between the run's workers. A learner's
    `algorithm` is proved here, before any process starts.
    """
    if spec.all_reduce == NATIVE:
        return None
    if spec.strategy in STRATEGIES and not find(spec.strategy).takes_schedule:
        raise SpecError("all_reduce", spec.all_reduce, _keeps_its_own(spec))
    if algorithm is None and spec.all_reduce not in ALGORITHMS | FOILS:
        raise SpecError.unknown("all_reduce", spec.all_reduce, [NATIVE, *ALGORITHMS, *FOILS])
    hosts = [spec.places[f"worker:{i}"] for i in range(spec.workers)]
    on = hosts if spec.placement else spec.hosts
    found = build(algorithm or spec.all_reduce, spec.workers, on, alone=True)
    if found.kind != "all_reduce" or found.servers:
        what = "one that needs servers of its own" if found.servers else f"a {found.kind}"
        text = f"{what}; a run needs an all-reduce between its workers"
        raise SpecError("all_reduce", spec.all_reduce, text)
    if algorithm is not None and not (proof := verify(found)):
        raise SpecError("all_reduce", spec.all_reduce, f"it is not right yet.\n{proof}")
    return found


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
    if cure := _missing(framework):
        return Standing("unavailable", f"{framework} is not installed", cure)
    return strategy.standing(framework, machine)


def _checked(strategy: Strategy, spec: RunSpec) -> RunSpec:
    """The spec with all fields set that its run uses. Raises `SpecError` or `Unavailable` if the
    strategy cannot run as the spec says.
    """
    unused = _unused(spec)
    for field, why in _refusals(strategy, spec, unused):
        raise SpecError(field, getattr(spec, field), why)
    if spec.elastic:  # from what it shrinks
        spec = spec.model_copy(update={"learning_rate": usual_rate(spec)})
    return spec.complete(unused)


def _refusals(strategy: Strategy, spec: RunSpec, unused: Mapping[str, str]) -> Refusals:
    """What keeps a strategy from running as a spec says, the cheapest to find out first."""
    who = f"{strategy.name} with {spec.framework}"
    if spec.workers > strategy.max_workers:
        most = f"{strategy.name} has exactly {strategy.max_workers}"
        yield "workers", f"{most}; multi_worker_mirrored takes more"
    for job in ("ps", "chief"):
        if getattr(spec, job) and job not in strategy.jobs[spec.framework]:
            yield job, f"{strategy.name} has none: leave it out"
        if job in strategy.jobs[spec.framework] and not getattr(spec, job):
            yield job, f"{who} needs at least one"
    one_process = spec.framework in strategy.one_process
    if one_process and spec.workers > 1:
        yield "workers", f"{who} is one process: set replicas"
    if spec.replicas > 1 and not one_process:
        yield "replicas", f"{who} has one for each worker: set workers"
    if strategy.model_parallel and spec.sampler == "per_worker":
        yield "sampler", f"all workers of {strategy.name} compute the same examples: leave it out"
    workload = workloads.load(spec)
    if cure := _missing(spec.framework):
        raise Unavailable(spec.framework, "it is not installed", cure)
    yield from strategy.check(spec, hardware.probe())
    if (share := strategy.share(spec)) % spec.accumulate:
        yield "accumulate", f"must divide the {share} examples that are computed at a time"
    mine = workload.name
    if not workload.ours and spec.framework not in workload.frameworks:
        made = f"Workload(..., {spec.framework}=...) makes one"
        yield "framework", f"{mine} has no model for it: {made}"
    _check_examples(mine, spec.batch)
    model = trial.sketch(spec)
    yield from strategy.fits(spec, model)
    yield from _check_pieces(strategy, spec, model)
    yield from ((field, why) for field, why in unused.items() if field in spec.model_fields_set)


def _check_pieces(strategy: Strategy, spec: RunSpec, model: Sketch) -> Refusals:
    """Refuse a batch that is cut into pieces of one example, if the model cannot be trained on one.

    All pieces have one size. Synchronized batch normalisation sees those of all replicas.
    """
    name = "microbatches" if "microbatches" in strategy.takes else "accumulate"
    share, parts = strategy.share(spec), getattr(spec, name)
    together = model.synchronized and spec.shares > 1 and not spec.ps
    if model.alone and share == parts and not together:
        cut = f"each piece is one example (shares {spec.batch // share}, {name} {parts})"
        cure = f"take {2 * spec.batch}, fewer workers, less {name}, or LayerNorm or GroupNorm"
        yield "global_batch", f"{cut}, and {model.alone}; {cure}"


def _check_examples(workload: str, batch: object) -> None:
    """Raise `SpecError` if a learner's own workload has fewer examples than are in a batch."""
    own = workloads.OWN.get(workload)
    if own and isinstance(batch, int) and batch > (examples := len(own.train)):
        text = f"at most {examples}: {workload} has no more examples to train with"
        raise SpecError("global_batch", batch, text)


def _unused(spec: RunSpec) -> dict[str, str]:
    """The fields that a run has no use for, each with why: its strategy, workload, optimizer or
    precision does not take them, and others do.
    """
    found = {}
    for mine, takes in (
        (spec.strategy, {name: strategy.takes for name, strategy in STRATEGIES.items()}),
        (spec.workload, {name: workloads.fields(name) for name in workloads.WORKLOADS}),
        (spec.optimizer, {"adamw": ("weight_decay",)}),
        (spec.precision, {"float16": ("loss_scale",)}),
    ):
        for field in dict.fromkeys(chain.from_iterable(takes.values())):
            takers = [name for name, fields in takes.items() if field in fields]
            if mine not in takers:
                text = f"{mine} has no use for it: leave it out (it is for {', '.join(takers)})"
                found[field] = text
    return found


def _framework(strategy: Strategy, given: Mapping[str, Any]) -> str:
    """The framework that is given, if the strategy is built in it. If none is given, one that the
    workload has a model for, the usual one if possible.
    """
    asked, usual = given.get("framework"), RunSpec.model_fields["framework"].default
    names = sorted(strategy.jobs, key=lambda name: name != usual)
    if asked is None:
        own = workloads.OWN.get(given.get("workload", ""))
        return next((name for name in names if own and name in own.frameworks), names[0])
    if asked in names:
        return str(asked)
    if asked in [name for other in STRATEGIES.values() for name in other.jobs]:
        only = f"is built in {' and '.join(strategy.jobs)} only: leave it out"
        raise SpecError("framework", asked, f"{strategy.name} {only}")
    raise SpecError.unknown("framework", asked, strategy.jobs)


def _check_one_host(strategy: Strategy, framework: str, given: Mapping[str, Any]) -> None:
    """Refuse hosts, and links between them, where all workers have to be on one host."""
    if not (why := strategy.why_one_host(framework)):
        return
    others = [f for f in strategy.others(framework) if not strategy.why_one_host(f)]
    can = f"--framework {others[0]}" if others else "multi_worker_mirrored"
    text = f"{why}, so on one host: leave it out ({can} can be on several)"
    for field in ("hosts", "placement", "link", "links"):
        value = given.get(field)
        if value is not None and not (isinstance(value, int | dict) and value in (0, 1, {})):
            raise SpecError(field, str(value) if field == "link" else value, text)


def _keeps_its_own(spec: RunSpec) -> str:
    """Why a run cannot have another all-reduce, and what can."""
    takers = ", ".join(name for name, strategy in STRATEGIES.items() if strategy.takes_schedule)
    own = find(spec.strategy).all_reduce(spec)
    if own and own.choice == "none":
        return f"{spec.strategy} has no all-reduce to replace; {takers} has"
    takes = "takes" if own else "is the same program and takes"
    return f"{spec.strategy} keeps the framework's own; {takers} {takes} yours"


def _missing(framework: str) -> str:
    """How to install a framework; "" if it is there."""
    there = framework == "python" or importlib.util.find_spec(framework)
    return "" if there else f"Install it: pip install {framework}."
