"""The one gate before a run. `requested` reads what is asked for and fills in what is usual,
`refusals` says what keeps it from being run, and `admit` raises the first of these. What has passed
is planned and started, and not checked again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from course_lib import workloads
from course_lib.collectives import ALGORITHMS, FOILS, Schedule, build, verify
from course_lib.errors import LockstepError, SpecError, Unavailable
from course_lib.hardware import Machine
from course_lib.spec.fields import ALL
from course_lib.spec.run_spec import JOBS, RunSpec, batch_of
from course_lib.spec.settings import MAX_BATCH, MAX_REPLICAS, NATIVE
from course_lib.strategies import pages, trial
from course_lib.strategies.catalog import STRATEGIES, find, missing
from course_lib.strategies.strategy import Refusals, Strategy
from course_lib.workloads.layers import Sketch

Rule = tuple[bool, str, str]
"""Whether it is broken, by which field, and what is allowed there."""


@dataclass
class Request:
    """A request for a run. `spec`: what was not given is as usual, and does not count as set until
    the request is admitted; `strategy`: None for functions of a learner's own that are no page (see
    `pages.py`); `programs`: by job,
    `module:function` or such a function; `algorithm`: the learner's own all-reduce.
    """

    spec: RunSpec
    strategy: Strategy | None = None
    programs: Mapping[str, Any] | None = None
    algorithm: Callable[..., Schedule] | None = None

    @cached_property
    def model(self) -> Sketch:
        """The model. Raises `SpecError` if it is a learner's own and its trial fails."""
        return trial.sketch(self.spec)

    @property
    def native(self) -> bool:
        """True if the all-reduce is one of the framework's own."""
        own = self.strategy.reductions.get(self.spec.framework, ()) if self.strategy else ()
        return self.spec.all_reduce in (NATIVE, *own)

    @cached_property
    def schedule(self) -> Schedule | None:
        """The all-reduce, None for one of the framework. Raises `SpecError` if there is none of its
        name, or if the learner's own cannot be built.
        """
        spec = self.spec
        if self.native:
            return None
        if self.algorithm is None and spec.all_reduce not in ALGORITHMS | FOILS:
            raise SpecError.unknown("all_reduce", spec.all_reduce, [NATIVE, *ALGORITHMS, *FOILS])
        hosts = [spec.places[f"worker:{i}"] for i in range(spec.workers)]
        on = hosts if spec.placement else spec.hosts
        return build(self.algorithm or spec.all_reduce, spec.workers, on, alone=True)

    @property
    def workers_are_devices(self) -> bool:
        """True if the workers that were asked for are devices of one process."""
        one_process = self.strategy.one_process if self.strategy else ()
        return self.spec.framework in one_process and "replicas" not in self.spec.model_fields_set


def admit(request: Request, machine: Machine) -> Request:
    """Let a request pass, with all fields set that its run uses, or raise its first refusal:
    `SpecError`, which names the field, the value and what is allowed, or `Unavailable` if this
    machine cannot do it.
    """
    for refusal in refusals(request, machine):
        raise refusal
    # functions may have other steps and batches
    unused = unused_fields(request.spec) if request.strategy else ("steps", "global_batch")
    request.spec = request.spec.complete(unused)
    return request


# --- what is asked for ---


def requested(what: object, fields: Mapping[str, Any]) -> Request:
    """Read what is asked for, not yet judged. See `start` for `what`; `fields` are those of
    `RunSpec`, None for those not given. Raises `SpecError` for values of a wrong type and unknown
    names.
    """
    given = {field: value for field, value in fields.items() if value is not None}
    if "strategy" in given:
        raise SpecError("strategy", given["strategy"], 'is given first: start("one_device", ...)')
    if isinstance(what, RunSpec):
        for field, value in given.items():
            raise SpecError(field, value, f"a RunSpec says all there is: RunSpec(..., {field}=...)")
        return _usual(what)
    algorithm = given.get("all_reduce")
    if callable(algorithm):  # a function's name decides nothing
        name = getattr(algorithm, "__name__", "algorithm")
        given["all_reduce"] = "algorithm" if name == NATIVE else name
    if "workload" in given:
        given["workload"] = workloads.named(given["workload"])
    if isinstance(what, str):
        find(what)  # before any of its fields
        request = _usual(RunSpec(strategy=what, **given))
    else:
        request = _own(what, given)
    request.algorithm = algorithm if callable(algorithm) else None
    return request


def _usual(given: RunSpec) -> Request:
    """A strategy's request: what was not given is as it usually has it. Where a strategy is one
    process, `workers` become its `replicas`.
    """
    strategy, fields = find(given.strategy), given.model_fields_set
    framework = _framework(strategy, given)
    jobs, in_one = strategy.jobs.get(framework, ()), framework in strategy.one_process
    usual = {
        "ps": int("ps" in jobs),
        "chief": "chief" in jobs,
        "precision": strategy.default_precision,
        "sizes": workloads.sizes(given),
        "accumulate": strategy.default_parts,
        "workers": 1 if in_one and "replicas" in fields else strategy.default_workers,
    }
    set_by_hand = {name: getattr(given, name) for name in fields - {"sizes"}}
    values = {**dict(given), **usual, **set_by_hand}
    values["framework"] = framework
    if in_one and "replicas" not in fields:
        values |= {"workers": 1, "replicas": values["workers"]}
    spec = RunSpec.model_construct(fields, **values)
    if not given.global_batch:
        unit = strategy.pieces(spec)
        batch = batch_of(unit)
        examples = len(workloads.load(spec).train)
        if batch > examples >= unit:  # at most all of them, if they are enough
            batch = examples // unit * unit
        spec = RunSpec.model_construct(fields, **{**values, "global_batch": batch})
    return Request(spec, strategy, strategy.programs.get(framework, {}))


def _framework(strategy: Strategy, given: RunSpec) -> str:
    """The framework that is given; else one that the workload has a model for, the usual one if
    possible.
    """
    if "framework" in given.model_fields_set:
        return given.framework
    names = sorted(strategy.jobs, key=lambda name: name != given.framework)
    own = workloads.OWN.get(given.workload)
    return next((name for name in names if own and name in own.frameworks), names[0])


def _own(what: object, given: Mapping[str, Any]) -> Request:
    """The request for a learner's functions, each for a job; those of a page follow the spec.
    Raises `SpecError` for anything else.
    """
    programs = pages.by_job(what)
    for job, function in programs.items():
        if job not in JOBS:
            raise SpecError.unknown("job", job, JOBS)
        if not callable(function):
            allowed = "a strategy's name, a RunSpec, or a function that every worker runs"
            raise SpecError("start", function, allowed)
    name, (framework, page) = pages.name_of(programs), pages.framework_of(programs)
    usual = {"framework": framework, "ps": int("ps" in programs), "chief": "chief" in programs}
    spec = RunSpec(strategy=name, **{**usual, **given})
    jobs = dict.fromkeys(task.partition(":")[0] for task in spec.tasks)
    if jobs.keys() != programs.keys():
        names = {job: getattr(programs.get(job), "__name__", "...") for job in jobs}
        call = ", ".join(f'"{job}": {name}' for job, name in names.items())
        allowed = f"the tasks of this run are {', '.join(spec.tasks)}, and each job has a function"
        raise SpecError("start", what, f"{allowed}: start({{{call}}}, ...)")
    if not page:
        return Request(spec, programs=programs)
    spec = spec.model_copy(update={"sizes": workloads.sizes(spec)})
    return Request(spec, pages.described(name, {spec.framework: tuple(programs)}), programs)


# --- what keeps it from being run ---


def refusals(request: Request, machine: Machine | None = None) -> Iterator[LockstepError]:
    """Find what keeps a request from being run on a machine: `SpecError`s with the field, its value
    and what is allowed there, or `Unavailable` with the cure. The rules that cost little come
    first, the trial of a learner's own model last. The `machine` is not needed without a strategy.

    A rule yields a field and what is allowed, or raises, which ends it all.
    """
    spec, strategy = request.spec, request.strategy
    try:
        for field, allowed in _rules(request, machine):
            if strategy and field == "replicas" and request.workers_are_devices:
                text = f"{allowed} ({strategy.why_one_host(spec.framework)})"
                yield SpecError("workers", spec.replicas, text)
            else:
                yield SpecError(field, getattr(spec, field), allowed)
    except LockstepError as refusal:
        yield refusal


def _rules(request: Request, machine: Machine | None) -> Refusals:
    spec, strategy = request.spec, request.strategy
    if spec.sizes:
        workloads.sizes(spec)
    if strategy:
        yield from _places(request, strategy)
        yield from _broken(_of_workload(spec))
    yield from _broken(_of_spec(spec))
    _check_tasks(spec)
    if strategy and machine:
        yield from _broken(_of_strategy(spec, strategy))
        if cure := missing(spec.framework):
            raise Unavailable(spec.framework, "it is not installed", cure)
        yield from strategy.check(spec, machine)
        unused = unused_fields(spec).items()
        yield from _broken((field in spec.model_fields_set, field, why) for field, why in unused)
    yield from _schedule(request)
    if strategy:
        yield from _model(request, strategy)


def _broken(rules: Iterable[Rule]) -> Refusals:
    """The rules that are broken, as a field and what is allowed there."""
    return [(field, allowed) for broken, field, allowed in rules if broken]


def _of_spec(spec: RunSpec) -> list[Rule]:
    """Numbers and flags that do not go together."""
    shares, batch, steps = spec.shares, spec.batch, spec.steps
    lower = batch // shares * shares
    near = " or ".join(str(n) for n in (lower, lower + shares) if n)
    who = f"{spec.workers} workers" if spec.replicas == 1 else f"{shares} devices"
    many = f"times replicas and accumulate, {batch} examples: at most {MAX_BATCH} a step"
    devices = f"allowed: a whole number from 1 to {MAX_REPLICAS}"
    traced = "it goes into the trace, and this run has none: leave one out"
    return [
        (spec.replicas > MAX_REPLICAS, "replicas", devices),
        (batch > MAX_BATCH, "workers", many),
        (batch > lower, "global_batch", f"must divide evenly over {who}, such as {near}"),
        (spec.hosts > spec.workers, "hosts", f"at most {spec.workers}, one for each worker"),
        (spec.warmup_steps > steps, "warmup_steps", f"at most the {steps} steps"),
        (spec.evaluate_every > 0 and not spec.trace, "evaluate_every", traced),
        (spec.record_examples and not spec.trace, "record_examples", traced),
    ]


def _check_tasks(spec: RunSpec) -> None:
    """Raise `SpecError` for tasks and hosts that the run does not have, or that cannot be what they
    are to be.
    """
    for task in spec.slow:
        spec.check_slow(task)
    delays = spec.jitter if isinstance(spec.jitter, dict) else {"worker:0": spec.jitter}
    for task, jitter in delays.items():
        spec.check_jitter(task, jitter)
    for task in spec.placement:
        spec.check_task(task, "placement")
    for host, link in spec.link.items():
        spec.check_linked("link", str(link))
        if host != ALL:
            spec.check_host(host, "link")
    for fault in spec.faults:
        if spec.check_fault(fault).step is None and fault.seconds is None:
            raise SpecError("faults", fault.text, "and when? add 'at step 40', or 'at 2.5s'")


def _schedule(request: Request) -> Refusals:
    """An all-reduce that is none, or not proved, or that a strategy cannot have."""
    spec, strategy = request.spec, request.strategy
    if request.native:
        return
    if strategy and not strategy.takes_schedule:
        takers = ", ".join(name for name, each in STRATEGIES.items() if each.takes_schedule)
        own = strategy.all_reduce(spec, request.model)
        if own and own.choice == "none":
            yield "all_reduce", f"{spec.strategy} has no all-reduce to replace; {takers} has"
        takes = "takes" if own else "is the same program and takes"
        yield "all_reduce", f"{spec.strategy} keeps the framework's own; {takers} {takes} yours"
    made = request.schedule
    assert made
    if made.kind != "all_reduce" or made.servers:
        what = "one that needs servers of its own" if made.servers else f"a {made.kind}"
        yield "all_reduce", f"{what}; a run needs an all-reduce between its workers"
    if request.algorithm and not (proof := verify(made)):
        yield "all_reduce", f"it is not right yet.\n{proof}"


# --- with a strategy ---


def _places(request: Request, strategy: Strategy) -> Refusals:
    """A framework that a strategy is not built in; hosts, links between them and single workers,
    where all workers have to be on one host or are devices of one process.
    """
    spec = request.spec
    framework, others = spec.framework, strategy.others(spec.framework)
    if framework not in strategy.jobs:
        built, take = " and ".join(strategy.jobs), " or ".join(strategy.jobs)
        yield "framework", f"{strategy.name} is built in {built} only: take {take}"
    if not (why := strategy.why_one_host(framework)):
        return
    spread = [other for other in others if not strategy.why_one_host(other)]
    can = f"--framework {spread[0]}" if spread else "multi_worker_mirrored"
    text = f"{why}, so on one host: leave it out ({can} can be on several)"
    if spec.hosts > 1:
        yield "hosts", text
    if spec.placement:
        raise SpecError("placement", spec.placement, text)
    if spec.link:
        raise SpecError("link", ", ".join(map(str, spec.link.values())), text)
    cure = f"; --framework {others[0]} has one for each" if others else ""
    for name in ("slow", "jitter") if request.workers_are_devices else ():
        tasks = getattr(spec, name)
        for task in tasks if isinstance(tasks, dict) else ():
            if task.startswith("worker:") and task not in spec.tasks:
                raise SpecError(name, task, f"{why}, whose devices cannot be slowed singly{cure}")


def _of_workload(spec: RunSpec) -> list[Rule]:
    """Models and examples that a learner's own workload does not have."""
    if not (own := workloads.OWN.get(spec.workload)):
        return []
    made = f"{own.name} has no model for it: Workload(..., {spec.framework}=...) makes one"
    most = f"at most {len(own.train)}: {own.name} has no more examples to train with"
    return [
        (spec.framework not in own.frameworks, "framework", made),
        (spec.batch > len(own.train), "global_batch", most),
    ]


def _of_strategy(spec: RunSpec, strategy: Strategy) -> list[Rule]:
    """Tasks that a strategy must have, or has none of."""
    name, most, jobs = strategy.name, strategy.max_workers, strategy.jobs[spec.framework]
    who, in_one = f"{name} with {spec.framework}", spec.framework in strategy.one_process
    exactly = f"{name} has exactly {most}; multi_worker_mirrored takes more"
    each = f"{who} has one each: set workers"
    whole = f"all workers of {name} compute the same examples: leave it out"
    counts = [("ps", spec.ps), ("chief", int(spec.chief))]
    return [
        (spec.workers > most, "workers", exactly),
        (in_one and spec.workers > 1, "workers", f"{who} is one process: set replicas"),
        (spec.replicas > 1 and not in_one and not spec.own, "replicas", each),
        *((n > 0 and job not in jobs, job, f"{name} has none: leave it out") for job, n in counts),
        *((n == 0 and job in jobs, job, f"{who} needs at least one") for job, n in counts),
        (strategy.model_parallel and spec.sampler == "per_worker", "sampler", whole),
    ]


def unused_fields(spec: RunSpec) -> dict[str, str]:
    """The fields that a run has no use for, each with why: its strategy or precision does not take
    them, and others do.
    """
    takers: dict[str, list[str]] = defaultdict(list)
    for name, strategy in STRATEGIES.items():
        for field in strategy.takes:
            takers[field].append(name)
    why = "has no use for it: leave it out (it is for"
    unused = {
        field: f"{spec.strategy} {why} {', '.join(names)})"
        for field, names in takers.items()
        if spec.strategy not in names and not spec.own
    }
    other = {"loss_scale": f"{spec.precision} {why} float16)"}
    return unused | (other if spec.precision != "float16" else {})


def _model(request: Request, strategy: Strategy) -> Refusals:
    """A model that cannot be built, or not trained by the strategy, or not by so few examples.

    All pieces of a batch have one size. Synchronized batch normalisation sees those of all
    replicas.
    """
    spec = request.spec
    if (share := strategy.share(spec)) % spec.accumulate:
        yield "accumulate", f"must divide the {share} examples that are computed at a time"
    model = request.model
    yield from strategy.fits(spec, model)
    together = model.synchronized and spec.shares > 1 and not spec.ps
    if model.alone and share == spec.accumulate and not together:
        parts = f"shares {spec.batch // share}, accumulate {spec.accumulate}"
        cut = f"each piece is one example ({parts})"
        cure = f"take {2 * spec.batch}, fewer workers, less accumulate, or LayerNorm or GroupNorm"
        yield "global_batch", f"{cut}, and {model.alone}; {cure}"
