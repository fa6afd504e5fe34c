"""RunSpec: everything that decides a run, frozen, validated once, JSON in and out."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from course_lib.errors import SpecError

MAX_WORKERS = 256
JOBS = ("chief", "worker", "ps")
NATIVE = "native"
Framework = Literal["tensorflow", "torch", "python"]
Count = Annotated[int, Field(strict=True)]


class RunSpec(BaseModel):
    """One run of one strategy.

    Batches are global: `global_batch` examples a step over all workers together, each worker takes an equal share.
    Times are in milliseconds where a name ends in `_ms`, else in seconds. Raises `SpecError`, which names the field,
    the value and what is allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategy: str = Field("multi_worker_mirrored", description="the name of a strategy, see `lockstep strategies`")
    framework: Framework = Field("tensorflow", description="'tensorflow', 'torch', or 'python' for functions of your own that need neither")
    workers: Count = Field(4, ge=1, le=MAX_WORKERS, description=f"a whole number from 1 to {MAX_WORKERS}")
    replicas: Count = Field(
        1, ge=1, le=64, description="devices of each worker, logical ones where there are no GPUs, a whole number from 1 to 64"
    )
    ps: Count = Field(0, ge=0, le=32, description="parameter servers, a whole number from 0 to 32")
    chief: bool = Field(False, description="true if the cluster has a chief that coordinates and does not compute")
    all_reduce: str = Field(
        NATIVE, description=f"'{NATIVE}' for the framework's own, or an algorithm of ours, see `lockstep allreduce --all`"
    )
    hosts: Count = Field(1, ge=1, le=MAX_WORKERS, description="a whole number from 1 to the number of workers")
    cross_device_ops: Literal["hierarchical_copy", "reduction_to_one_device", "nccl"] | None = Field(
        None, description="how the replicas of one process reduce: hierarchical_copy, reduction_to_one_device or nccl"
    )
    staleness_bound: Count = Field(2, ge=0, le=1000, description="steps by which a worker may be ahead of the slowest, from 0 to 1000")
    backups: Count = Field(1, ge=0, le=MAX_WORKERS, description="workers more than are waited for in a step, a whole number from 0 on")
    microbatches: Count = Field(4, ge=1, le=256, description="parts of a batch that follow each other in a pipeline, from 1 to 256")
    pipeline: Literal["gpipe", "1f1b"] = Field("1f1b", description="the order of work in a pipeline: gpipe or 1f1b")
    emulate: bool = Field(False, description="true to emulate a device that is not there (tpu)")
    workload: str = Field("digits", description="the name of a workload")
    parameters: Count = Field(
        1_000_000,
        ge=1_000,
        le=50_000_000,
        description="the size of the 'wide' model, a whole number from 1000 to 50000000",
    )
    global_batch: Count | None = Field(
        None, ge=1, le=4096, description="examples in a step over all workers, a whole number from 1 to 4096"
    )
    steps: Count = Field(200, ge=1, le=1_000_000, description="a whole number from 1 to 1000000")
    seed: Count = Field(0, ge=0, lt=2**31, description="a whole number from 0 to 2147483647")
    learning_rate: float | None = Field(None, gt=0, le=100, allow_inf_nan=False, description="a number above 0, at most 100")
    device_ms: float = Field(
        0.0,
        ge=0,
        le=60_000,
        allow_inf_nan=False,
        description="emulated device time of one step in milliseconds, from 0 (none) to 60000",
    )
    slow: dict[str, float] = Field(default_factory=dict, description="task=factor, with a factor from 1 to 1000")
    trace: bool = Field(True, description="true or false")
    run_dir: Path | None = Field(None, description="a directory that can be written and is empty or does not exist")
    start_timeout: float = Field(60.0, gt=0, le=600, allow_inf_nan=False, description="seconds, above 0, at most 600")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _as_spec_error(error) from None

    @model_validator(mode="after")
    def _hangs_together(self) -> RunSpec:
        shares = self.shares
        if self.global_batch is None:
            object.__setattr__(self, "global_batch", max(shares, 128 // shares * shares))
        elif self.global_batch % shares:
            lower = self.global_batch // shares * shares
            near = [str(n) for n in (lower, lower + shares) if n]
            who = f"{self.workers} workers" if self.replicas == 1 else f"{shares} replicas"
            raise SpecError("global_batch", self.global_batch, f"must divide evenly over {who}, such as {' or '.join(near)}")
        if self.hosts > self.workers:
            raise SpecError("hosts", self.hosts, f"at most {self.workers}, one for each worker")
        for task, factor in self.slow.items():
            self.check_task(task, "slow")
            check_factor(factor, f"slow[{task}]")
        return self

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

    def check_task(self, task: str, field: str = "task") -> str:
        """Return `task` if this run has it, else raise `SpecError` naming the tasks that it has."""
        if task in self.tasks:
            return task
        jobs = {job: sum(t.startswith(job + ":") for t in self.tasks) for job in JOBS}
        have = ", ".join(f"{job}:0" if n == 1 else f"{job}:0 to {job}:{n - 1}" for job, n in jobs.items() if n)
        raise SpecError(field, task, f"this run has {have}")


def check_factor(factor: float, field: str = "factor") -> float:
    """Return a slow-down factor (1: full speed) if it is one, else raise `SpecError`."""
    if not (isinstance(factor, (int, float)) and 1 <= factor <= 1000):
        raise SpecError(field, factor, "a factor from 1 (full speed) to 1000")
    return float(factor)


def parse_bytes(text: str | int, field: str = "bytes") -> int:
    """`4MiB`, `64 KiB`, `1MB`, `100` or a number as a number of bytes: KiB is 1024 bytes, KB 1000."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kmg])(i)?)?b?\s*", str(text), re.IGNORECASE)
    if not match:
        raise SpecError(field, text, "a number of bytes, such as 4MiB, 64KiB or 1000")
    number, unit, binary = match.groups()
    size = Fraction(number) * (1024 if binary else 1000) ** " kmg".index((unit or " ").lower())
    if size.denominator != 1 or size >= 2**63:
        raise SpecError(field, text, "a whole number of bytes, less than 2**63")
    return int(size)


def parse_slow(text: str) -> tuple[str, float]:
    """`worker:1=3` as `("worker:1", 3.0)`, the way the command line writes a straggler."""
    match = re.fullmatch(r"\s*([a-z]+:\d+)\s*=\s*([0-9.]+)\s*", text)
    try:
        if not match:
            raise ValueError
        return match[1], float(match[2])
    except ValueError:
        raise SpecError("slow", text, "task=factor, such as worker:1=3") from None


def _as_spec_error(error: ValidationError) -> SpecError:
    """The first of pydantic's complaints, in our one-line form."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return cause
    name = str(first["loc"][0]) if first["loc"] else "spec"
    if first["type"] == "extra_forbidden":
        return SpecError.unknown("field", name, RunSpec.model_fields)
    info = RunSpec.model_fields[name]
    return SpecError(name, first["input"], f"allowed: {info.description}")
