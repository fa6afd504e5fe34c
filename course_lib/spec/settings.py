"""The settings that decide a run: the fields of `RunSpec`, with a title and what each allows."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from course_lib.spec.faults import FORM, Fault, several
from course_lib.spec.fields import (
    FORMS,
    AnyPath,
    ByName,
    Delays,
    Links,
    Strict,
    field,
    flag,
    number,
    whole,
)

MAX_WORKERS = 256
MAX_REPLICAS = 64
MAX_BATCH = 4096
NATIVE = "native"
REDUCTIONS = ("hierarchical_copy", "reduction_to_one_device", "nccl")
Count = Annotated[int, Field(strict=True)]
Factor = Annotated[float, Field(ge=1, le=1000)]
Planned = Annotated[
    Fault, PlainValidator(Fault.of), PlainSerializer(str), WithJsonSchema({"type": "string"})
]


def _name_of(workload: object) -> object:
    """A learner's own `Workload` is known by its name."""
    return getattr(workload, "name", workload)


class Settings(Strict):
    """The fields of a `RunSpec`, which says what they mean together."""

    strategy: str = field(
        "multi_worker_mirrored", "the strategy", "the name of a strategy, see `lockstep strategies`"
    )
    framework: Literal["tensorflow", "torch", "python"] = field(
        "tensorflow",
        "the framework, tensorflow where the strategy has it",
        "tensorflow, torch, or python for functions of your own that need neither",
    )
    workers: Count = whole(4, 1, MAX_WORKERS, "workers, as many as the strategy usually has")
    replicas: Count = whole(1, 1, MAX_REPLICAS, "devices of each worker, logical ones on a CPU")
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
        None, 10_000, "MiB of gradients in a bucket; if not given, the framework's own", "MiB"
    )
    staleness_bound: Count = whole(2, 0, 1000, "steps that a worker may be ahead of the slowest")
    backups: Count = whole(1, 0, MAX_WORKERS, "workers that are not waited for in a step")
    pipeline: Literal["gpipe", "1f1b"] = field("1f1b", "the order in a pipeline", "gpipe or 1f1b")
    emulate: bool = flag(False, "emulate a device that is not there (tpu)")
    hosts: Count = whole(1, 1, MAX_WORKERS, "hosts that the workers are spread over")
    placement: Annotated[dict[str, Annotated[int, Field(ge=0, lt=MAX_WORKERS)]], ByName] = field(
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
    sizes: Annotated[dict[str, int], ByName] = field(
        {},
        "how large the model is: parameters of wide; layers, heads, width, context of tiny_gpt",
        'name=number, such as layers=6,width=128; in Python {"layers": 6, "width": 128}',
    )
    global_batch: Count | None = whole(None, 1, MAX_BATCH, "examples in a step, usually about 128")
    steps: Count = whole(200, 1, 1_000_000, "steps to train")
    seed: Count = whole(0, 0, 2**31 - 1, "decides the first weights and the order of the examples")
    learning_rate: float | None = number(
        None, 100, "learning rate; if not given, that of the workload and optimizer", "a number"
    )
    accumulate: Count = whole(1, 1, 1024, "parts of a share, one after the other; 4 in a pipeline")
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
    evaluate_every: Count = whole(0, 0, 1_000_000, "steps between two tests, 0 for one at the end")
    device_ms: float = number(0.0, 60_000, "emulated device time of a step", "milliseconds", True)
    slow: Annotated[dict[str, Factor], ByName] = field(
        {},
        "a straggler",
        'task=factor, with a factor from 1 to 1000, such as worker:1=3; in Python {"worker:1": 3}',
    )
    jitter: Annotated[Delays | dict[str, Delays] | None, ByName] = field(
        None,
        "delays that differ from step to step",
        f"{FORMS}; for one task worker:1=one_in:100:200ms",
    )
    faults: Annotated[tuple[Planned, ...], BeforeValidator(several)] = field((), "a fault", FORM)
    sampler: Literal["global", "per_worker"] = field(
        "global",
        "how the examples are cut",
        "global: each batch into shares; or per_worker: each worker has its own part of all",
    )
    record_examples: bool = flag(False, "record which examples each worker reads")
    run_dir: Path | None = field(None, "the directory of the record", "an empty or a new one")
    checkpoint_every: Count = whole(0, 0, 1_000_000, "steps between two checkpoints, 0 for none")
    resume: AnyPath | None = field(
        None, "a run whose last checkpoint this one goes on from", "a directory with checkpoints"
    )
    trace: bool = flag(True, "record events")
    max_restarts: Count = whole(0, 0, 100, "restarts of tasks that have failed or were killed")
