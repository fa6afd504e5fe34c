"""The one gate before a run. `requested` reads what is asked for and fills in what is usual,
`refusals` says what keeps it from being run, and `admit` raises the first of these. What has passed
is planned and started, and not checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any

from course_lib import hardware, workloads
from course_lib.collectives import ALGORITHMS, FOILS, Schedule, build, verify
from course_lib.errors import LockstepError, SpecError, Unavailable
from course_lib.hardware import Machine
from course_lib.spec.run_spec import JOBS, RunSpec
from course_lib.spec.settings import MAX_BATCH, MAX_REPLICAS, NATIVE
from course_lib.strategies import trial
from course_lib.strategies.catalog import STRATEGIES, find, missing
from course_lib.strategies.optimizers import usual_rate
from course_lib.strategies.strategy import Refusals, Strategy
from course_lib.workloads.sketch import Sketch

Program = Callable[..., Any]
NO_CLUSTER = "this is of a Ray cluster, and the run is on this machine: add engine='ray'"
OF_RAY = ("address", "task_cpus", "task_gpus", "task_memory_mb")


@dataclass
class Request:
    """What is asked for. `spec`: what was not given is as usual, and does not count as set until
    the request is admitted; `strategy`: None for functions of a learner's own; `programs`: by job,
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

    @cached_property
    def schedule(self) -> Schedule | None:
        """The all-reduce, None for the framework's own. Raises `SpecError` if there is none of its
        name, or if the learner's own cannot be built.
        """
        spec = self.spec
        if spec.all_reduce == NATIVE:
            return None
        if self.algorithm is None and spec.all_reduce not in ALGORITHMS | FOILS:
            raise SpecError.unknown("all_reduce", spec.all_reduce, [NATIVE, *ALGORITHMS, *FOILS])
        hosts = [spec.places[f"worker:{i}"] for i in range(spec.workers)]
        on = hosts if spec.placement else spec.hosts
        return build(self.algorithm or spec.all_reduce, spec.workers, on, alone=True)

    @property
    def workers_are_devices(self) -> bool:
        """Whether the workers that were asked for are devices of one process."""
        one_process = self.strategy.one_process if self.strategy else ()
        return self.spec.framework in one_process and "replicas" not in self.spec.model_fields_set


def admit(what: object, fields: Mapping[str, Any], machine: Machine) -> Request:
    """What is asked for, with all fields set that its run uses. See `start` for `what`; `fields`
    are those of `RunSpec`, None for those not given.

    Raises `SpecError`, which names the field, the value and what is allowed, or `Unavailable` if
    this machine cannot do it.
    """
    return admitted(requested(what, fields), machine)


def admitted(request: Request, machine: Machine) -> Request:
    """Let a request pass, or raise its first refusal."""
    for refusal in refusals(request, machine):
        raise refusal
    spec, unused = request.spec, dict[str, str]()
    if request.strategy is None:
        unused = dict.fromkeys(("steps", "global_batch"), "")  # the functions may have others
    else:
        unused = unused_fields(spec)
        if spec.elastic:  # from what it shrinks
            spec = spec.model_copy(update={"learning_rate": usual_rate(spec)})
    request.spec = spec.complete(unused)
    return request


def spec_for(what: object, /, **fields: Any) -> RunSpec:
    """The spec of a run on this machine, complete and admitted. Raises as `admit` does."""
    return admit(what, fields, hardware.probe()).spec


# --- what is asked for ---


def requested(what: object, fields: Mapping[str, Any]) -> Request:
    """What is asked for, not yet judged. Raises `SpecError` for what is of no type that it may be,
    and for names that do not exist.
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
        request = _by_job(what, given)
    request.algorithm = algorithm if callable(algorithm) else None
    return request


def _usual(given: RunSpec) -> Request:
    """A strategy's request: what was not given is as it usually has it. Where a strategy is one
    process, `workers` become its `replicas`.
    """
    strategy, fields = find(given.strategy), given.model_fields_set
    values = dict(given)
    framework = values["framework"] = _framework(strategy, given)
    jobs = strategy.jobs.get(framework, ())
    usual = {
        "ps": int("ps" in jobs),
        "chief": "chief" in jobs,
        "precision": strategy.default_precision,
        "workers": strategy.default_workers,
    }
    values |= {name: value for name, value in usual.items() if name not in fields}
    if framework in strategy.one_process:
        if "replicas" not in fields:
            values |= {"workers": 1, "replicas": values["workers"]}
        elif "workers" not in fields:
            values["workers"] = 1
    spec = RunSpec.model_construct(fields, **values)
    if not given.global_batch:
        usual_batch, unit = strategy.default_batch(spec), spec.shares * spec.accumulate
        examples = len(workloads.load(spec).train)
        few = usual_batch > examples >= unit  # at most all of them, if they are enough
        batch = examples // unit * unit if few else usual_batch
        spec = spec.model_copy(update={"global_batch": batch})
        spec.model_fields_set.discard("global_batch")
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


def _by_job(what: object, given: Mapping[str, Any]) -> Request:
    """The request for a learner's functions, each for a job. Raises `SpecError` for anything
    else.
    """
    programs = what if isinstance(what, Mapping) else {"worker": what}
    for job, function in programs.items():
        if job not in JOBS:
            raise SpecError.unknown("job", job, JOBS)
        if not callable(function):
            allowed = "a strategy's name, a RunSpec, or a function that every worker runs"
            raise SpecError("start", function, allowed)
    usual = {"framework": "python", "ps": int("ps" in programs), "chief": "chief" in programs}
    spec = RunSpec(strategy="custom", **{**usual, **given})
    jobs = dict.fromkeys(task.partition(":")[0] for task in spec.tasks)
    for job in (job for job in programs if job not in jobs):
        text = f"start is given a function for the job {job!r}: leave {job} out, or the function"
        raise SpecError(job, getattr(spec, job), text)
    if lacking := [job for job in jobs if job not in programs]:
        names = {job: getattr(programs.get(job), "__name__", "...") for job in jobs}
        call = ", ".join(f'"{job}": {name}' for job, name in names.items())
        allowed = f"there is no function for the job {' or '.join(map(repr, lacking))}"
        raise SpecError("start", what, f"{allowed}: start({{{call}}}, ...)")
    return Request(spec, programs=programs)


# --- what keeps it from being run ---


def refusals(request: Request, machine: Machine | None = None) -> Iterator[LockstepError]:
    """What keeps a request from being run on a machine: `SpecError`s with the field, its value and
    what is allowed there, or `Unavailable` with the cure. What is cheap to know comes first, the
    trial of a learner's own model last. The `machine` is not needed without a strategy.
    """
    spec, strategy = request.spec, request.strategy
    for refusal in _refusals(request, machine):
        if isinstance(refusal, LockstepError):
            yield refusal
            continue
        field, allowed = refusal
        value = getattr(spec, field)
        if strategy and field == "replicas" and request.workers_are_devices:
            field, allowed = "workers", f"{allowed} ({strategy.why_one_host(spec.framework)})"
        yield SpecError(field, value, allowed)


def _refusals(request: Request, machine: Machine | None) -> Refusals:
    spec, strategy = request.spec, request.strategy
    if strategy is None:
        return chain(_numbers(spec), _tasks(spec), _schedule(request))
    assert machine
    if spec.framework not in strategy.jobs:
        built = " and ".join(strategy.jobs)
        return [("framework", f"{strategy.name} is built in {built} only: leave it out")]
    return chain(
        _one_host(spec, strategy),
        _workload(spec),
        _devices(request, strategy),
        _numbers(spec),
        _tasks(spec),
        _jobs(spec, strategy),
        strategy.check(spec, machine),
        _unused(spec),
        _schedule(request),
        _model(request, strategy),
    )


def _numbers(spec: RunSpec) -> Refusals:
    """Numbers and flags that do not go together: field, whether it is refused, what is allowed."""
    shares, batch = spec.shares, spec.batch
    near = [str(n) for n in (batch // shares * shares, (batch // shares + 1) * shares) if n]
    who = f"{spec.workers} workers" if spec.replicas == 1 else f"{shares} devices"
    traced = "into the trace, and this run has none: leave one out"
    elastic, usual = spec.elastic, RunSpec.model_fields
    for field, refused, allowed in (
        (
            "replicas",
            spec.replicas > MAX_REPLICAS,
            f"allowed: {usual['replicas'].description}",
        ),
        (
            "workers",
            batch > MAX_BATCH,
            f"times replicas and accumulate, {batch} examples: at most {MAX_BATCH} a step",
        ),
        (
            "global_batch",
            batch % shares,
            f"must divide evenly over {who}, such as {' or '.join(near)}",
        ),
        ("hosts", spec.hosts > spec.workers, f"at most {spec.workers}, one for each worker"),
        ("warmup_steps", spec.warmup_steps > spec.steps, f"at most the {spec.steps} steps"),
        (
            "elastic",
            elastic and not spec.max_restarts,
            "it says how to restart, and this run does not: set max_restarts",
        ),
        (
            "elastic",
            elastic and spec.sampler == "per_worker",
            "nobody would read the part of the data that a lost worker had: leave one out",
        ),
        (
            "elastic",
            elastic and spec.all_reduce != NATIVE,
            f"{spec.all_reduce} is made for {spec.workers} workers: leave all_reduce out",
        ),
        (
            "evaluate_every",
            spec.evaluate_every and not spec.trace,
            f"the accuracy goes {traced}",
        ),
        ("record_examples", spec.record_examples and not spec.trace, f"they go {traced}"),
        *(
            (name, not spec.on_nodes and getattr(spec, name) != usual[name].default, NO_CLUSTER)
            for name in OF_RAY
        ),
    ):
        if refused:
            yield field, allowed


def _tasks(spec: RunSpec) -> Refusals:
    """Tasks and hosts that the run does not have, or that cannot be what they are to be."""
    delays = spec.jitter if isinstance(spec.jitter, dict) else {"worker:0": spec.jitter}
    checks: list[Callable[[], object]] = [
        *(partial(spec.check_slow, task) for task in spec.slow),
        *(partial(spec.check_jitter, task, jitter) for task, jitter in delays.items()),
        *(partial(spec.check_task, task, "placement") for task in spec.placement),
        *[partial(spec.check_linked, "link", str(spec.link))] * bool(spec.link),
        *(partial(spec.check_linked, "links", host) for host in spec.links),
        *(partial(spec.check_host, host, "links") for host in spec.links),
        *(partial(fault.planned, spec) for fault in spec.faults),
    ]
    for check in checks:
        try:
            check()
        except SpecError as refusal:
            yield refusal


def _schedule(request: Request) -> Refusals:
    """An all-reduce that is none, or that is not proved; or that a strategy cannot have."""
    spec, strategy = request.spec, request.strategy
    if spec.all_reduce == NATIVE:
        return
    if strategy and not strategy.takes_schedule:
        takers = ", ".join(name for name, each in STRATEGIES.items() if each.takes_schedule)
        own = strategy.all_reduce(spec, request.model)
        keeps = f"{spec.strategy} keeps the framework's own; {takers} "
        keeps += f"{'takes' if own else 'is the same program and takes'} yours"
        none = f"{spec.strategy} has no all-reduce to replace; {takers} has"
        yield "all_reduce", none if own and own.choice == "none" else keeps
    made = request.schedule
    assert made
    if made.kind != "all_reduce" or made.servers:
        what = "one that needs servers of its own" if made.servers else f"a {made.kind}"
        yield "all_reduce", f"{what}; a run needs an all-reduce between its workers"
    if request.algorithm and not (proof := verify(made)):
        yield "all_reduce", f"it is not right yet.\n{proof}"


# --- with a strategy ---


def _jobs(spec: RunSpec, strategy: Strategy) -> Refusals:
    """Tasks that a strategy must have, or has none of."""
    name, jobs = strategy.name, strategy.jobs
    who = f"{name} with {spec.framework}"
    one_process = spec.framework in strategy.one_process
    most = strategy.max_workers
    for field, refused, allowed in (
        (
            "workers",
            spec.workers > most,
            f"{name} has exactly {most}; multi_worker_mirrored takes more",
        ),
        ("workers", one_process and spec.workers > 1, f"{who} is one process: set replicas"),
        (
            "replicas",
            spec.replicas > 1 and not one_process,
            f"{who} has one for each worker: set workers",
        ),
        (
            "sampler",
            strategy.model_parallel and spec.sampler == "per_worker",
            f"all workers of {name} compute the same examples: leave it out",
        ),
    ):
        if refused:
            yield field, allowed
    for job in ("ps", "chief"):
        if getattr(spec, job) and job not in jobs[spec.framework]:
            yield job, f"{name} has none: leave it out"
        if job in jobs[spec.framework] and not getattr(spec, job):
            yield job, f"{who} needs at least one"
    if cure := missing(spec.framework):
        yield Unavailable(spec.framework, "it is not installed", cure)


def _one_host(spec: RunSpec, strategy: Strategy) -> Refusals:
    """Hosts, and links between them, where all workers have to be on one."""
    if not (why := strategy.why_one_host(spec.framework)):
        return
    others = [f for f in strategy.others(spec.framework) if not strategy.why_one_host(f)]
    can = f"--framework {others[0]}" if others else "multi_worker_mirrored"
    text = f"{why}, so on one host: leave it out ({can} can be on several)"
    if spec.hosts > 1:
        yield "hosts", text
    for field in ("placement", "link", "links"):
        if value := getattr(spec, field):
            yield SpecError(field, str(value) if field == "link" else value, text)


def _devices(request: Request, strategy: Strategy) -> Refusals:
    """Single ones of the workers that were asked for, where these are devices of one process."""
    spec = request.spec
    why, others = strategy.why_one_host(spec.framework), strategy.others(spec.framework)
    cure = f"; --framework {others[0]} has one for each" if others else ""
    for field in ("slow", "jitter") if request.workers_are_devices else ():
        tasks = getattr(spec, field)
        for task in tasks if isinstance(tasks, dict) else ():
            if task.startswith("worker:") and task not in spec.tasks:
                yield SpecError(field, task, f"{why}, whose devices cannot be slowed singly{cure}")


def _workload(spec: RunSpec) -> Refusals:
    """Models and examples that a learner's own workload does not have."""
    if not (own := workloads.OWN.get(spec.workload)):
        return
    if spec.framework not in own.frameworks:
        made = f"Workload(..., {spec.framework}=...) makes one"
        yield "framework", f"{own.name} has no model for it: {made}"
    if spec.batch > (examples := len(own.train)):
        yield "global_batch", f"at most {examples}: {own.name} has no more examples to train with"


def _unused(spec: RunSpec) -> Refusals:
    """Fields that were given, and that the run has no use for."""
    for field, why in unused_fields(spec).items():
        if field in spec.model_fields_set:
            yield field, why


def unused_fields(spec: RunSpec) -> dict[str, str]:
    """The fields that a run has no use for, each with why: its strategy, workload, optimizer or
    precision does not take them, and others do.
    """
    unused = {}
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
                unused[field] = text
    return unused


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
    name = "microbatches" if "microbatches" in strategy.takes else "accumulate"
    parts = getattr(spec, name)
    together = model.synchronized and spec.shares > 1 and not spec.ps
    if model.alone and share == parts and not together:
        cut = f"each piece is one example (shares {spec.batch // share}, {name} {parts})"
        cure = f"take {2 * spec.batch}, fewer workers, less {name}, or LayerNorm or GroupNorm"
        yield "global_batch", f"{cut}, and {model.alone}; {cure}"
