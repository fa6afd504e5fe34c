"""RunSpec: everything that decides a run, frozen, validated once, JSON in and out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from course_lib.errors import SpecError
from course_lib.faults import FORM, Fault, several
from course_lib.fields import (
    STRICT,
    AnyLink,
    AnyPath,
    Link,
    check_factor,
    complaints,
    field,
    flag,
    number,
    whole,
)
from course_lib.jitter import FORMS, Jitter

MAX_WORKERS = 256
MAX_REPLICAS = 64
MAX_BATCH = 4096
JOBS = ("chief", "worker", "ps")
NATIVE = "native"
CrossDeviceOps = Literal["hierarchical_copy", "reduction_to_one_device", "nccl"]
Framework = Literal["tensorflow", "torch", "python"]
FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}  # as they write their names
Count = Annotated[int, Field(strict=True)]
Planned = Annotated[
    Fault, PlainValidator(Fault.of), PlainSerializer(str), WithJsonSchema({"type": "string"})
]
ONE_HOST = "a link is between hosts, and there is one: set hosts to 2 or more"


def _name_of(workload: object) -> object:
    """A learner's own `Workload` is known by its name."""
    return getattr(workload, "name", workload)


def _by_task(jitter: object) -> object:
    """Jitter of single tasks may be written `worker:1=exponential:20ms,worker:2=lognormal:0.5`."""
    if not (isinstance(jitter, str) and "=" in jitter):
        return jitter
    pairs = (item.partition("=") for item in jitter.split(","))
    return {task.strip(): text.strip() for task, _, text in pairs}


class RunSpec(BaseModel):
    """One run of one strategy.

    A field's title says what it is, its description what is allowed; the options of the command
    line are made from both. Batches are global: `global_batch` examples a step over all workers
    together, of which each worker takes an equal share. Times are in milliseconds where a name ends
    in `_ms`, else in seconds. Raises `SpecError`, which names the field, the value and what is
    allowed.

    A field counts as set if it was given, even with its default (`model_fields_set`). What was not
    set is as the strategy usually has it. JSON holds the fields that are set: in the record of a
    run, all that the run used.

    The workers are spread over `hosts` in equal blocks of neighbours; with several hosts, each
    parameter server and the chief get one of their own besides. `placement` puts single tasks
    elsewhere. Every host has the `link`; those in `links` have another.
    """

    model_config = STRICT

    strategy: str = field(
        "multi_worker_mirrored", "the strategy", "the name of a strategy, see `lockstep strategies`"
    )
    framework: Framework = field(
        "tensorflow",
        "the framework, tensorflow where the strategy has it",
        "tensorflow, torch, or python for functions of your own that need neither",
    )
    workers: Count = whole(4, 1, MAX_WORKERS, "workers, as many as the strategy usually has")
    replicas: Count = whole(
        1, 1, MAX_REPLICAS, "devices of each worker, logical ones where there are no GPUs"
    )
    ps: Count = whole(0, 0, 32, "parameter servers, 1 where the strategy has any")
    chief: bool = flag(False, "a chief, which coordinates and does not compute")
    all_reduce: str = field(
        NATIVE,
        "how gradients are summed",
        f"{NATIVE} for the framework's own, or an algorithm of ours, "
        "see `lockstep allreduce --all`",
    )
    cross_device_ops: CrossDeviceOps | None = field(
        None,
        "how the replicas of one process reduce",
        "hierarchical_copy, reduction_to_one_device or nccl",
    )
    overlap: bool = flag(True, "exchanges hide behind computing")
    bucket_mb: float | None = number(
        None,
        10_000,
        "the size of the buckets in which gradients are exchanged; if not given, the framework's "
        "own",
        "MiB of gradients",
    )
    staleness_bound: Count = whole(
        2, 0, 1000, "steps by which a worker may be ahead of the slowest when it begins one"
    )
    backups: Count = whole(1, 0, MAX_WORKERS, "workers that are not waited for in a step")
    microbatches: Count = whole(4, 1, 256, "parts of a batch that follow each other in a pipeline")
    pipeline: Literal["gpipe", "1f1b"] = field(
        "1f1b", "the order of work in a pipeline", "gpipe or 1f1b"
    )
    emulate: bool = flag(False, "emulate a device that is not there (tpu)")
    hosts: Count = field(
        1,
        "hosts that the workers are spread over",
        "a whole number from 1 to the number of workers",
        ge=1,
        le=MAX_WORKERS,
    )
    placement: dict[str, Annotated[int, Field(strict=True, ge=0, lt=MAX_WORKERS)]] = field(
        {},
        "the host of a task, where it is not the usual one",
        f"task=host, with a host from 0 to {MAX_WORKERS - 1}, such as worker:1=1; "
        'in Python {"worker:1": 1}',
    )
    link: AnyLink | None = field(None, "the link of each host", "a Link(mbit=200, delay_ms=0.5)")
    links: dict[Annotated[int, Field(ge=0)], AnyLink] = field(
        {},
        "another link for one host",
        "host=mbit or host=mbit,delay_ms, such as 1=50; in Python {1: Link(mbit=50)}",
    )
    workload: Annotated[str, BeforeValidator(_name_of)] = field(
        "digits",
        "what is learned",
        "the name of a workload, a Workload(...) of your own, or file.py:name for one in a file",
    )
    parameters: Count = whole(1_000_000, 1_000, 50_000_000, "the size of the 'wide' model")
    layers: Count = whole(2, 1, 12, "blocks of 'tiny_gpt'")
    heads: Count = whole(4, 1, 16, "heads of attention in each block of 'tiny_gpt'")
    width: Count = whole(64, 16, 384, "numbers that stand for a character in 'tiny_gpt'")
    context: Count = whole(32, 8, 256, "characters that 'tiny_gpt' sees at a time")
    global_batch: Count | None = whole(
        None, 1, MAX_BATCH, "examples in a step over all workers, about 128 if not given"
    )
    steps: Count = whole(200, 1, 1_000_000, "steps to train")
    seed: Count = whole(0, 0, 2**31 - 1, "decides the first weights and the order of the examples")
    learning_rate: float | None = number(
        None,
        100,
        "learning rate; if not given, that of the workload, a tenth of it with momentum, "
        "0.001 with adamw",
        "a number",
    )
    accumulate: Count = whole(
        1, 1, 1024, "parts in which a share of the batch is computed, one after the other"
    )
    optimizer: Literal["sgd", "momentum", "adamw"] = field(
        "sgd", "what is made of a gradient", "sgd, momentum (of 0.9) or adamw"
    )
    weight_decay: float = number(
        0.01, 100, "adamw's pull of the parameters towards zero", "a part of them", True
    )
    clip_norm: float | None = number(
        None, 1_000_000, "gradients are scaled down to this norm over all parameters", "a number"
    )
    schedule: Literal["constant", "cosine"] = field(
        "constant", "how the learning rate goes on after the warm-up", "constant or cosine"
    )
    warmup_steps: Count = whole(0, 0, 1_000_000, "steps in which the learning rate grows")
    precision: Literal["float32", "bfloat16", "float16"] = field(
        "float32", "what layers compute in", "float32, bfloat16 (usual for tpu) or float16"
    )
    loss_scale: Literal["dynamic"] | Annotated[float, Field(gt=0, le=2**32)] = field(
        "dynamic",
        "what the loss is multiplied by in float16, so that small gradients are not rounded to 0",
        "dynamic, or a number above 0, at most 2**32",
    )
    evaluate_every: Count = whole(
        0, 0, 1_000_000, "steps between two measurements of the test accuracy, 0 for one at the end"
    )
    device_ms: float = number(
        0.0, 60_000, "emulated device time of one step, 0 for none", "milliseconds", True
    )
    slow: dict[str, float] = field(
        {},
        "a straggler",
        'task=factor, with a factor from 1 to 1000, such as worker:1=3; in Python {"worker:1": 3}',
    )
    jitter: Annotated[str | dict[str, str] | None, BeforeValidator(_by_task)] = field(
        None,
        "delays that differ from step to step",
        f"{FORMS}; for one task worker:1=one_in:100:200ms",
    )
    faults: Annotated[tuple[Planned, ...], BeforeValidator(several)] = field((), "a fault", FORM)
    sampler: Literal["global", "per_worker"] = field(
        "global",
        "how the examples are cut",
        "global: all in one order, each batch cut into shares; "
        "or per_worker: each worker has its own part of them",
    )
    record_examples: bool = flag(False, "record which examples each worker reads")
    run_dir: Path | None = field(
        None,
        "where the record of the run is written",
        "a directory that can be written and is empty or does not exist",
    )
    checkpoint_every: Count = whole(
        0, 0, 1_000_000, "steps between two checkpoints, from which a run can go on; 0 for none"
    )
    resume: AnyPath | None = field(
        None,
        "an earlier run, from whose last checkpoint this one goes on",
        "the directory of a run that had checkpoint_every",
    )
    trace: bool = flag(True, "record events")
    keep_model: bool = flag(True, "keep the trained weights, 4 bytes each, for run.model()")
    start_timeout: float = number(60.0, 600, "how long all tasks may take to start", "seconds")
    max_restarts: Count = whole(
        0, 0, 100, "how often tasks are started again when one has failed or was killed"
    )
    elastic: bool = flag(
        False, "a restart takes one worker fewer; batch and learning rate shrink with it"
    )

    def __init__(self, /, **fields: Any) -> None:
        with complaints(RunSpec):
            super().__init__(**fields)

    @model_validator(mode="after")
    def _hangs_together(self) -> RunSpec:
        shares = self.shares
        if self.global_batch is None:
            unit = shares * self.accumulate
            if unit > MAX_BATCH:
                text = f"times replicas and accumulate, {unit} examples: at most {MAX_BATCH} a step"
                raise SpecError("workers", self.workers, text)
            object.__setattr__(self, "global_batch", max(unit, 128 // unit * unit))
        elif self.global_batch % shares:
            lower = self.global_batch // shares * shares
            near = " or ".join(str(n) for n in (lower, lower + shares) if n)
            who = f"{self.workers} workers" if self.replicas == 1 else f"{shares} devices"
            text = f"must divide evenly over {who}, such as {near}"
            raise SpecError("global_batch", self.global_batch, text)
        if self.hosts > self.workers:
            raise SpecError("hosts", self.hosts, f"at most {self.workers}, one for each worker")
        if self.warmup_steps > self.steps:
            raise SpecError("warmup_steps", self.warmup_steps, f"at most the {self.steps} steps")
        for task, factor in self.slow.items():
            self.check_slow(task)
            check_factor(factor, f"slow[{task}]")
        if not isinstance(self.jitter, dict):
            self.check_jitter("worker:0", self.jitter)
        else:
            for task, text in self.jitter.items():
                self.check_jitter(task, text)
        self._check_hosts()
        for fault in self.faults:
            fault.planned(self)
        if self.elastic and not self.max_restarts:
            text = "it says how to restart, and this run does not: set max_restarts"
            raise SpecError("elastic", True, text)
        if self.elastic and self.sampler == "per_worker":
            text = "nobody would read the part of the data that a lost worker had: leave one out"
            raise SpecError("elastic", True, text)
        if self.elastic and self.all_reduce != NATIVE:
            text = f"{self.all_reduce} is made for {self.workers} workers: leave all_reduce out"
            raise SpecError("elastic", True, text)
        if self.evaluate_every and not self.trace:
            text = "the accuracy goes into the trace, and this run has none: leave one out"
            raise SpecError("evaluate_every", self.evaluate_every, text)
        if self.record_examples and not self.trace:
            text = "they go into the trace, and this run has none: leave one out"
            raise SpecError("record_examples", True, text)
        return self

    @model_serializer(mode="wrap")
    def _to_json(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {n: value for n, value in handler(self).items() if n in self.model_fields_set}

    def _check_hosts(self) -> None:
        for task in self.placement:
            self.check_task(task, "placement")
        # from here on it names all tasks, so that it means the same when it is read again
        if self.placement:
            object.__setattr__(self, "placement", self.places)
            hosts = {host for task, host in self.places.items() if task.startswith("worker:")}
            object.__setattr__(self, "hosts", len(hosts))
        if len(self.all_hosts) == 1 and (self.link or self.links):
            if self.link:
                raise SpecError("link", str(self.link), ONE_HOST)
            raise SpecError("links", next(iter(self.links)), ONE_HOST)
        for host in self.links:
            self.check_host(host, "links")

    def complete(self, unused: Iterable[str] = ()) -> RunSpec:
        """The same run with all fields set but the `unused`, so that its JSON holds them."""
        used = RunSpec.model_fields.keys() - set(unused)
        return self.model_copy(update={name: getattr(self, name) for name in used})

    @property
    def places(self) -> dict[str, int]:
        """The host of each task, counted from 0."""
        size, extra = divmod(self.workers, self.hosts)  # the first `extra` hosts have one more
        places = {
            f"worker:{i}": max(i // (size + 1), (i - extra) // size) for i in range(self.workers)
        }
        others = [task for task in self.tasks if task not in places]
        places |= {task: self.hosts + i if self.hosts > 1 else 0 for i, task in enumerate(others)}
        return {task: (places | self.placement)[task] for task in self.tasks}

    @property
    def all_hosts(self) -> tuple[int, ...]:
        """The hosts that have tasks, in order: those of workers, and those of parameter servers and
        the chief.
        """
        return tuple(sorted(set(self.places.values())))

    def link_of(self, host: int) -> Link:
        """The link of a host."""
        return self.links.get(host) or self.link or Link()

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks in TensorFlow's way, `job:index`, chief first."""
        counts = {"chief": int(self.chief), "worker": self.workers, "ps": self.ps}
        return tuple(f"{job}:{i}" for job in JOBS for i in range(counts[job]))

    @property
    def batch(self) -> int:
        """Examples in a step over all workers."""
        assert self.global_batch is not None  # filled in by the validator
        return self.global_batch

    @property
    def shares(self) -> int:
        """Replicas over all workers: each computes an equal share of the batch."""
        return self.workers * self.replicas

    @property
    def per_worker_batch(self) -> int:
        """Examples that one worker computes in a step."""
        return self.batch // self.workers

    def with_fewer(self, fewer: int) -> RunSpec:
        """The same run with so many workers less, the last ones. Each worker's share of the batch
        stays as it was, so the global batch shrinks in proportion, and the learning rate with it.
        """
        if not fewer:
            return self
        left = self.workers - fewer
        gone = {f"worker:{i}" for i in range(left, self.workers)}
        return self.model_copy(
            update={
                "workers": left,
                "global_batch": self.batch * left // self.workers,
                "learning_rate": self.learning_rate and self.learning_rate * left / self.workers,
                # the others stay where they are
                "placement": {t: host for t, host in self.places.items() if t not in gone},
            }
        )

    def check_host(self, host: int, field: str = "host") -> int:
        """Return `host` if this run has it, else raise `SpecError` naming those that it has."""
        used = self.all_hosts
        if host not in used:
            name = "hosts" if len(used) > 1 else "host"
            raise SpecError(field, host, f"this run has the {name} {', '.join(map(str, used))}")
        return host

    def check_task(self, task: str, field: str = "task") -> str:
        """Return `task` if this run has it, else raise `SpecError` naming the tasks that it has."""
        if task in self.tasks:
            return task
        jobs = {job: sum(t.startswith(job + ":") for t in self.tasks) for job in JOBS}
        have = ", ".join(
            f"{job}:0" if n == 1 else f"{job}:0 to {job}:{n - 1}" for job, n in jobs.items() if n
        )
        raise SpecError(field, task, f"this run has {have}")

    def check_slow(self, task: str, field: str = "slow") -> str:
        """Return `task` if it can be made slower, else raise `SpecError`: in a strategy only
        workers compute.
        """
        self.check_task(task, field)
        if self.strategy != "custom" and not task.startswith("worker:"):
            text = "only workers can be slowed, such as worker:0: a chief and a ps do not compute"
            raise SpecError(field, task, text)
        return task

    def check_jitter(self, task: str, jitter: str | None) -> str:
        """Return the jitter, "" for none, if the task can have it, else raise `SpecError`."""
        self.check_slow(task, "jitter")
        if jitter is not None and not (isinstance(jitter, str) and jitter):
            raise SpecError("jitter", jitter, FORMS)
        if Jitter.of(jitter or "").sigma and not self.device_ms:
            text = "lognormal multiplies emulated device time, and this run has none: set device_ms"
            raise SpecError("jitter", jitter, text)
        return jitter or ""

    def jitter_of(self, task: str) -> str:
        """The jitter that a task starts with; "" for none."""
        if isinstance(self.jitter, dict):
            return self.jitter.get(task, "")
        computes = self.strategy == "custom" or task.startswith("worker:")
        return self.jitter or "" if computes else ""


def parse_item(field: str, text: str) -> tuple[Any, Any]:
    """An item of `slow`, `placement` or `links` as the command line writes it: `worker:1=3` is
    `("worker:1", 3)`, and `1=50,2.5` the link of host 1, `(1, Link(mbit=50, delay_ms=2.5))`.
    """
    number = r"\s*(-?\d*\.?\d+)\s*"
    form = rf"(\d+)\s*={number}(?:,{number})?" if field == "links" else rf"([a-z]+:\d+)\s*={number}"
    if not (match := re.fullmatch(rf"\s*{form}", text)):
        raise SpecError(field, text, str(RunSpec.model_fields[field].description))
    value = float(match[2])
    if field == "links":
        return int(match[1]), Link(mbit=value, delay_ms=float(match[3] or 0))
    # RunSpec refuses half a host
    return match[1], int(value) if field == "placement" and value.is_integer() else value
