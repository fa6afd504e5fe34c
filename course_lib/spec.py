"""RunSpec: everything that decides a run, frozen, validated once, JSON in and out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from course_lib.errors import SpecError

MAX_WORKERS = 256
MAX_REPLICAS = 64
JOBS = ("chief", "worker", "ps")
NATIVE = "native"
Framework = Literal["tensorflow", "torch", "python"]
Count = Annotated[int, Field(strict=True)]
ONLY_SOME = (
    "cross_device_ops",
    "staleness_bound",
    "backups",
    "microbatches",
    "pipeline",
    "emulate",
    "parameters",
)
"""Fields that only some strategies have a use for, or only some workloads: whoever sets one for
another is told so.
"""


_CHECKED = ConfigDict(frozen=True, extra="forbid")


class Link(BaseModel):
    """What lies between a host and the switch that joins all hosts. `mbit`: megabits a second, in
    each direction; None: as fast as it goes.

    `delay_ms`: for how many milliseconds what leaves the host is on its way besides. To predict
    with it, make the link of a topology from it: `collectives.AlphaBeta.of(link.bytes_per_second,
    link.delay)`.
    """

    model_config = _CHECKED

    mbit: float | None = Field(
        default=None,
        gt=0,
        le=100_000,
        allow_inf_nan=False,
        description="megabits a second, above 0, at most 100000; leave it out for no limit",
    )
    delay_ms: float = Field(
        default=0.0,
        ge=0,
        le=10_000,
        allow_inf_nan=False,
        description="milliseconds, from 0 to 10000",
    )

    def __init__(self, **fields: Any) -> None:
        with _complaints(Link):
            super().__init__(**fields)

    @property
    def bytes_per_second(self) -> float:
        """Bandwidth; infinity where there is no limit."""
        return float("inf") if self.mbit is None else self.mbit * 125_000

    @property
    def delay(self) -> float:
        """Seconds."""
        return self.delay_ms / 1000

    def __str__(self) -> str:
        return f"{'any number of' if self.mbit is None else f'{self.mbit:g}'} Mbit/s, {self.delay_ms:g} ms"


class RunSpec(BaseModel):
    """One run of one strategy.

    Batches are global: `global_batch` examples a step over all workers together, each worker takes
    an equal share. Times are in milliseconds where a name ends in `_ms`, else in seconds. Raises
    `SpecError`, which names the field, the value and what is allowed.

    What was set counts as set even if it is the default (`model_fields_set`). JSON has all fields
    but those of `ONLY_SOME` that were not set, so it means the same when it is read again.

    `hosts` tells over how many hosts the workers are spread, in equal blocks of neighbours; if
    there are several, each parameter server and the chief has one of its own besides. `placement`
    says otherwise for some tasks or all. Every host has a `link`; those in `links` have another.
    """

    model_config = _CHECKED

    strategy: str = Field(
        "multi_worker_mirrored", description="the name of a strategy, see `lockstep strategies`"
    )
    framework: Framework = Field(
        "tensorflow",
        description="'tensorflow', 'torch', or 'python' for functions of your own that need neither",
    )
    workers: Count = Field(
        4, ge=1, le=MAX_WORKERS, description=f"a whole number from 1 to {MAX_WORKERS}"
    )
    replicas: Count = Field(
        1,
        ge=1,
        le=MAX_REPLICAS,
        description=f"devices of each worker, logical ones where there are no GPUs, a whole number from 1 to {MAX_REPLICAS}",
    )
    ps: Count = Field(0, ge=0, le=32, description="parameter servers, a whole number from 0 to 32")
    chief: bool = Field(
        False, description="true if the cluster has a chief that coordinates and does not compute"
    )
    all_reduce: str = Field(
        NATIVE,
        description=f"'{NATIVE}' for the framework's own, or an algorithm of ours, see `lockstep allreduce --all`",
    )
    hosts: Count = Field(
        1, ge=1, le=MAX_WORKERS, description="a whole number from 1 to the number of workers"
    )
    placement: dict[str, Annotated[int, Field(strict=True, ge=0, lt=MAX_WORKERS)]] = Field(
        default_factory=dict, description=f"task=host, with a host from 0 to {MAX_WORKERS - 1}"
    )
    link: Link | None = Field(None, description="a Link(mbit=200, delay_ms=0.5)")
    links: dict[Annotated[int, Field(ge=0)], Link] = Field(
        default_factory=dict,
        description="host=Link(...), for hosts that have another one than the rest",
    )
    cross_device_ops: Literal["hierarchical_copy", "reduction_to_one_device", "nccl"] | None = (
        Field(
            None,
            description="how the replicas of one process reduce: hierarchical_copy, reduction_to_one_device or nccl",
        )
    )
    staleness_bound: Count = Field(
        2,
        ge=0,
        le=1000,
        description="steps by which a worker may be ahead of the slowest when it begins one, from 0 to 1000",
    )
    backups: Count = Field(
        1,
        ge=0,
        le=MAX_WORKERS,
        description="workers more than are waited for in a step, a whole number from 0 on",
    )
    microbatches: Count = Field(
        4,
        ge=1,
        le=256,
        description="parts of a batch that follow each other in a pipeline, from 1 to 256",
    )
    pipeline: Literal["gpipe", "1f1b"] = Field(
        "1f1b", description="the order of work in a pipeline: gpipe or 1f1b"
    )
    emulate: bool = Field(False, description="true to emulate a device that is not there (tpu)")
    workload: str = Field("digits", description="the name of a workload")
    parameters: Count = Field(
        1_000_000,
        ge=1_000,
        le=50_000_000,
        description="the size of the 'wide' model, a whole number from 1000 to 50000000",
    )
    global_batch: Count | None = Field(
        None,
        ge=1,
        le=4096,
        description="examples in a step over all workers, a whole number from 1 to 4096",
    )
    steps: Count = Field(200, ge=1, le=1_000_000, description="a whole number from 1 to 1000000")
    seed: Count = Field(0, ge=0, lt=2**31, description="a whole number from 0 to 2147483647")
    evaluate_every: Count = Field(
        0,
        ge=0,
        le=1_000_000,
        description="steps from one look at the test accuracy to the next, a whole number; 0 for none before the end",
    )
    learning_rate: float | None = Field(
        None, gt=0, le=100, allow_inf_nan=False, description="a number above 0, at most 100"
    )
    device_ms: float = Field(
        0.0,
        ge=0,
        le=60_000,
        allow_inf_nan=False,
        description="emulated device time of one step in milliseconds, from 0 (none) to 60000",
    )
    slow: dict[str, float] = Field(
        default_factory=dict, description="task=factor, with a factor from 1 to 1000"
    )
    trace: bool = Field(True, description="true or false")
    run_dir: Path | None = Field(
        None, description="a directory that can be written and is empty or does not exist"
    )
    start_timeout: float = Field(
        60.0, gt=0, le=600, allow_inf_nan=False, description="seconds, above 0, at most 600"
    )

    def __init__(self, **fields: Any) -> None:
        with _complaints(RunSpec):
            super().__init__(**fields)

    @model_validator(mode="after")
    def _hangs_together(self) -> RunSpec:
        shares = self.shares
        if self.global_batch is None:
            object.__setattr__(self, "global_batch", max(shares, 128 // shares * shares))
        elif self.global_batch % shares:
            lower = self.global_batch // shares * shares
            near = [str(n) for n in (lower, lower + shares) if n]
            who = f"{self.workers} workers" if self.replicas == 1 else f"{shares} devices"
            raise SpecError(
                "global_batch",
                self.global_batch,
                f"must divide evenly over {who}, such as {' or '.join(near)}",
            )
        if self.hosts > self.workers:
            raise SpecError("hosts", self.hosts, f"at most {self.workers}, one for each worker")
        for task, factor in self.slow.items():
            self.check_slow(task)
            check_factor(factor, f"slow[{task}]")
        self._check_hosts()
        return self

    @model_serializer(mode="wrap")
    def _to_json(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {
            name: value
            for name, value in handler(self).items()
            if name in self.model_fields_set or name not in ONLY_SOME
        }

    def _check_hosts(self) -> None:
        for task in self.placement:
            self.check_task(task, "placement")
        # from here on it names all tasks, so that it means the same when it is read again
        if self.placement:
            object.__setattr__(self, "placement", self.places)
            object.__setattr__(
                self,
                "hosts",
                len({host for task, host in self.places.items() if task.startswith("worker:")}),
            )
        if len(self.all_hosts) == 1 and (self.link or self.links):
            field, value = (
                ("link", str(self.link)) if self.link else ("links", next(iter(self.links)))
            )
            raise SpecError(
                field, value, "a link is between hosts, and there is one: set hosts to 2 or more"
            )
        for host in self.links:
            self.check_host(host, "links")

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

    def check_host(self, host: int, field: str = "host") -> int:
        """Return `host` if this run has it, else raise `SpecError` naming those that it has."""
        used = self.all_hosts
        if host not in used:
            raise SpecError(
                field,
                host,
                f"this run has the {'hosts' if len(used) > 1 else 'host'} {', '.join(map(str, used))}",
            )
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

    def check_slow(self, task: str) -> str:
        """Return `task` if it can be made slower, else raise `SpecError`: in a strategy only
        workers take steps, chief and ps serve them.
        """
        if self.strategy != "custom" and not self.check_task(task, "slow").startswith("worker:"):
            raise SpecError(
                "slow",
                task,
                "only workers can be slowed, such as worker:0: a chief and a ps take no steps, they serve those of others",
            )
        return self.check_task(task, "slow")


def check_factor(factor: float, field: str = "factor") -> float:
    """Return a slow-down factor (1: full speed) if it is one, else raise `SpecError`."""
    if not (isinstance(factor, (int, float)) and 1 <= factor <= 1000):
        raise SpecError(field, factor, "a factor from 1 (full speed) to 1000")
    return float(factor)


def parse_bytes(text: str | int, field: str = "bytes") -> int:
    """`4MiB`, `64 KiB`, `1MB`, `100` or a number as a number of bytes: KiB is 1024 bytes, KB 1000."""
    match = re.fullmatch(
        r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kmg])(i)?)?b?\s*", str(text), re.IGNORECASE
    )
    if not match:
        raise SpecError(field, text, "a number of bytes, such as 4MiB, 64KiB or 1000")
    number, unit, binary = match.groups()
    size = Fraction(number) * (1024 if binary else 1000) ** " kmg".index((unit or " ").lower())
    if size.denominator != 1 or size >= 2**63:
        raise SpecError(field, text, "a whole number of bytes, less than 2**63")
    return int(size)


def parse_slow(text: str) -> tuple[str, float]:
    """`worker:1=3` as `("worker:1", 3.0)`, the way the command line writes a straggler."""
    match = re.fullmatch(r"\s*([a-z]+:\d+)\s*=\s*(-?[0-9.]+)\s*", text)
    try:
        if not match:
            raise ValueError
        return match[1], float(match[2])
    except ValueError:
        raise SpecError("slow", text, "task=factor, such as worker:1=3") from None


def parse_link(text: str) -> tuple[int, Link]:
    """`1=50` or `1=50,2.5` as host 1 with `Link(mbit=50)` or `Link(mbit=50, delay_ms=2.5)`, the way
    the command line writes a slow rack.
    """
    match = re.fullmatch(r"\s*(\d+)\s*=\s*(-?[0-9.]+)\s*(?:,\s*(-?[0-9.]+)\s*)?", text)
    try:
        if not match:
            raise ValueError
        return int(match[1]), Link(mbit=float(match[2]), delay_ms=float(match[3] or 0))
    except ValueError as error:
        raise (
            error
            if isinstance(error, SpecError)
            else SpecError("links", text, "host=mbit or host=mbit,delay_ms, such as 1=50")
        ) from None


@contextlib.contextmanager
def _complaints(model: type[BaseModel]) -> Iterator[None]:
    """The first of pydantic's complaints about the fields of a model as a `SpecError`, in our
    one-line form.
    """
    try:
        yield
    except ValidationError as error:
        raise _as_spec_error(model, error) from None


def _as_spec_error(model: type[BaseModel], error: ValidationError) -> SpecError:
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return cause
    name = str(first["loc"][0]) if first["loc"] else "spec"
    if first["type"] == "extra_forbidden":
        return SpecError.unknown("field", name, model.model_fields)
    info = model.model_fields[name]
    return SpecError(name, first["input"], f"allowed: {info.description}")
