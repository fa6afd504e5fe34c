"""The settings that decide a run: the fields of `RunSpec`, with a title and what each allows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from course_lib.spec.faults import FORM, Fault, several
from course_lib.spec.fields import STRICT, AnyPath, Links, field, flag, number, whole
from course_lib.spec.jitter import FORMS, check_jitter

MAX_WORKERS = 256
MAX_REPLICAS = 64
MAX_BATCH = 4096
NATIVE = "native"
REDUCTIONS = ("hierarchical_copy", "reduction_to_one_device", "nccl")
Count = Annotated[int, Field(strict=True)]
Factor = Annotated[float, Field(ge=1, le=1000)]
Delays = Annotated[str, AfterValidator(check_jitter)]
Planned = Annotated[
    Fault, PlainValidator(Fault.of), PlainSerializer(str), WithJsonSchema({"type": "string"})
]


def _name_of(workload: object) -> object:
    """A learner's own `Workload` is known by its name."""
    return getattr(workload, "name", workload)


def _pairs(text: object) -> object:
    """Values by name may be written `worker:1=exponential:20ms,worker:2=lognormal:0.5`."""
    if not (isinstance(text, str) and "=" in text):
        return text
    pairs = (item.partition("=") for item in text.split(","))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _numbers(text: object) -> object:
    """Whole numbers by name, which may be written `layers=6,width=128`."""
    pairs = _pairs(text)
    if not (isinstance(text, str) and isinstance(pairs, dict)):
        return pairs
    return {name: int(value) if value.isdecimal() else value for name, value in pairs.items()}


class Settings(BaseModel):
    """The fields of a `RunSpec`, which says what they mean together."""

    model_config = STRICT

    strategy: str = field(
        "multi_worker_mirrored", "the strategy", "the name of a strategy, see `lockstep strategies`"
    )
    framework: Literal["tensorflow", "torch", "python"] = field(
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
        f"{NATIVE} for the framework's own, an algorithm of ours, see `lockstep allreduce --all`, "
        f"or for mirrored {', '.join(REDUCTIONS)}",
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
    link: Links = field(
        {},
        "the link of each host, or of one",
        "mbit,delay_ms,loss or the first of these, such as 200,0.5, and for one host 1=50; "
        'in Python Link(mbit=200, delay_ms=0.5) or {"*": Link(mbit=200), 1: Link(mbit=50)}',
    )
    engine: Literal["local", "ray"] | Annotated[str, Field(pattern="^ray:.+")] = field(
        "local",
        "what starts the tasks",
        "local for this machine, ray for the Ray cluster that it belongs to, or ray:ADDRESS for "
        "another, such as ray:10.0.0.1:6379",
    )
    workload: Annotated[str, BeforeValidator(_name_of)] = field(
        "digits",
        "what is learned",
        "the name of a workload, a Workload(...) of your own, or file.py:name for one in a file",
    )
    sizes: Annotated[dict[str, Count], BeforeValidator(_numbers)] = field(
        {},
        "how large the model is: parameters of 'wide'; layers, heads, width and context of "
        "'tiny_gpt'",
        'name=number, such as layers=6,width=128; in Python {"layers": 6, "width": 128}',
    )
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
        1,
        1,
        1024,
        "parts in which a share of the batch is computed, one after the other; the microbatches of "
        "a pipeline, 4 if not given",
    )
    optimizer: Literal["sgd", "momentum", "adamw"] = field(
        "sgd", "what is made of a gradient", "sgd, momentum (of 0.9) or adamw"
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
    slow: dict[str, Factor] = field(
        {},
        "a straggler",
        'task=factor, with a factor from 1 to 1000, such as worker:1=3; in Python {"worker:1": 3}',
    )
    jitter: Annotated[Delays | dict[str, Delays] | None, BeforeValidator(_pairs)] = field(
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
    max_restarts: Count = whole(
        0, 0, 100, "how often tasks are started again when one has failed or was killed"
    )
