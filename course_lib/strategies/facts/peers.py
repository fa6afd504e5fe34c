"""Strategies whose workers exchange with each other: each has a copy of the model, or a part."""

from collections import Counter

from course_lib import workloads
from course_lib.hardware import Machine, Reason
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import trial
from course_lib.strategies.facts.one_machine import check_nccl
from course_lib.strategies.memory import Memory, on_workers, share_of
from course_lib.strategies.strategy import Measured, Refusals, Strategy, batch_of, no_all_reduce
from course_lib.workloads.digits import CLASSES, PER_UNIT
from course_lib.workloads.layers import Sketch


def _check_native(spec: RunSpec, machine: Machine) -> Refusals:
    """Refuse nccl by name: the plan takes it by itself where every worker has a GPU."""
    if spec.all_reduce == "nccl":
        native = "gloo" if spec.framework == "torch" else "TensorFlow's ring"
        cure = f"Leave it out for {native}, or take an all_reduce of ours, such as ring."
        check_nccl(spec, machine, cure)
        why = "leave it out: where every worker has a GPU, the native all-reduce is NCCL"
        yield "all_reduce", why


MULTI_WORKER_MIRRORED = Strategy(
    name="multi_worker_mirrored",
    summary="Every worker has a full copy of the model; an all-reduce averages their gradients in "
    "each step, so the copies stay equal.",
    variables="a copy on every worker",
    gradients="each worker, from its share of the batch",
    update="every worker, to its own copy, with the same average",
    waits="every worker for all others, in each step: none goes on before the average is there",
    wire="2(n-1)/n S bytes sent by each worker (ring all-reduce)",
    use="synchronous data parallelism over several machines: the usual way to use more than one",
    limits="the slowest worker sets the pace; the model must fit on every worker; one lost worker "
    "sends all back to the last checkpoint",
    source="https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl; Li et al., "
    "PyTorch Distributed, VLDB 2020",
    order=40,
    check=_check_native,
    takes_schedule=True,
    takes=("overlap", "bucket_mb"),
)


def _sharded_memory(spec: RunSpec, model: Sketch, examples: int) -> Memory:
    """Each worker holds 1/n of the parameters, gradients and optimizer state, and the activations
    of its own share; layers are gathered in the run's precision, so it keeps no copies of weights.
    With `accumulate` it keeps gradients of the whole model until the last part.
    """
    held = share_of(spec, model, spec.workers)
    if spec.accumulate > 1:
        held["gradients"] = share_of(spec, model)["gradients"]
    return on_workers(spec, held | {"activations": examples * model.activations})


def _fits_sharded(spec: RunSpec, model: Sketch) -> Refusals:
    """No sparse gradients: FSDP reduces dense ones only."""
    if model.sparse:
        cure = "make it with sparse=False, or take multi_worker_mirrored or parameter_server"
        yield "workload", f"fully_sharded cannot shard the sparse {model.sparse[0]}: {cure}"


FULLY_SHARDED = Strategy(
    name="fully_sharded",
    summary="Every worker keeps a part of each layer's parameters, and gathers the rest from the "
    "others only while it computes that layer.",
    variables="1/n of each layer on every worker",
    gradients="each worker, from its share of the batch; a reduce-scatter leaves it with the mean "
    "of its part",
    update="each worker, to its own part",
    waits="every worker for all others, in each layer, forward and back",
    wire="3(n-1)/n S bytes sent by each worker: two all-gathers of the parameters and a "
    "reduce-scatter of the gradients",
    use="data parallelism with models too large for one device: the usual way to train them",
    limits="half as much again over the wire as an all-reduce; the largest layers, two at a time, "
    "must fit on every worker",
    source="Rajbhandari et al., ZeRO, SC 2020; Zhao et al., PyTorch FSDP, VLDB 2023",
    jobs={"torch": ("worker",)},
    fits=_fits_sharded,
    order=80,
    default_workers=2,
    all_reduce=no_all_reduce(
        "All-gathers of parameters and a reduce-scatter of gradients take its place."
    ),
    memory=_sharded_memory,
    takes=("overlap",),
)


def _fits_tensor(spec: RunSpec, model: Sketch) -> Refusals:
    """The model has layers to cut, each with at least one hidden unit or head for each worker.

    Pieces may differ by a unit only in our own dense layers in PyTorch. TensorFlow's DTensor, whose
    shards are the `replicas` of one process, divides only evenly. Models from builders have to be
    divided evenly too: their random layers must draw equally many numbers on each worker.
    """
    workload, name = workloads.load(spec), spec.workload
    in_one = spec.framework == "tensorflow"
    if in_one and not workload.layers:
        only = "tensor_parallel in TensorFlow cuts digits, digits_deep and wide only"
        yield "workload", f'{only}; framework="torch" cuts others too'
    if isinstance(model.units, str):
        yield "workload", f"tensor_parallel cannot cut it into pieces: {model.units}"
        return
    if not model.units:
        cuts = "tensor_parallel cuts dense layers, two at a time, and attention"
        yield "workload", f"{cuts}: digits, digits_deep, wide and tiny_gpt have them"
    field = "replicas" if in_one else "workers"
    for units, what in sorted(model.units):
        if spec.shares > units:
            yield field, f"at most {units}, one for each {what} of {name}"
        if (in_one or not workload.layers) and units % spec.shares:
            fit = [str(n) for n in range(2, units + 1) if units % n == 0][:3]
            cure = f"such as {' or '.join(filter(None, (', '.join(fit[:-1]), fit[-1])))}"
            if "parameters" in spec.sizes:
                even = units // spec.shares * spec.shares
                cure = f"or sizes={{'parameters': {even * PER_UNIT + CLASSES}}}"
            yield field, f"must divide the {units} {what}s of {name}, {cure}"
    if not workload.ours:
        trial.pieces(spec)


def _tensor_all_reduce(spec: RunSpec, model: Sketch) -> Reason:
    cuts = Counter(model.units)
    made = ", ".join(f"{count} x {units} {what}s" for (units, what), count in cuts.items())
    why = f"In the middle of a step workers add up what their pieces make of {made}"
    return Reason("all-reduce", "of activations", f"{why}; gradients of parameters are not sent.")


def _tensor_memory(spec: RunSpec, model: Sketch, examples: int) -> Memory:
    """1/n of everything on each device, if every layer is cut. Activations are not foretold: only
    those within a pair of layers are cut, and how many these are depends on the model.
    """
    held = share_of(spec, model, spec.shares)
    return on_workers(spec, {kind: spec.replicas * n for kind, n in held.items()})


TENSOR_PARALLEL = Strategy(
    name="tensor_parallel",
    summary="Layers are cut into pieces, one on each worker; all compute the same batch, and add "
    "up what their pieces make of it.",
    variables="on every worker a piece of each layer that is cut, and all other layers whole",
    gradients="each worker those of its own pieces, from the whole batch",
    update="each worker, to its own pieces",
    waits="every worker for all others, in each pair of layers",
    wire="activations: 2(n-1)/n A bytes sent by each worker in an all-reduce of A bytes, one "
    "forward for each pair of layers or attention, and one back where something is trained before "
    "it; no gradients of parameters",
    use="layers that are too large for one device; inside a machine, where the wires are fast",
    limits="it exchanges in the middle of every step, so slow wires stall it; a layer has only so "
    "many units to share out",
    source="Shoeybi et al., Megatron-LM, 2019; https://www.tensorflow.org/guide/dtensor_overview",
    measured={
        "tensorflow": Measured(
            "one real process; DTensor on a mesh of logical CPU devices, which share its cores"
        ),
        "torch": MULTI_WORKER_MIRRORED.measured["torch"],
    },
    fits=_fits_tensor,
    order=60,
    default_workers=2,
    model_parallel=True,
    one_process=("tensorflow",),
    all_reduce=_tensor_all_reduce,
    memory=_tensor_memory,
)


def _fits_pipeline(spec: RunSpec, model: Sketch) -> Refusals:
    """At least one layer with weights for each stage."""
    if isinstance(model.parts, str):
        yield "workload", f"pipeline_parallel cannot cut it into stages: {model.parts}"
    elif spec.workers > model.parts:
        has = f"{spec.workload} has {model.parts} layer{'s' * (model.parts > 1)} with weights"
        yield "workers", f"{has}, so at most {model.parts} stage{'s' * (model.parts > 1)}"


def _check_pipeline(spec: RunSpec, machine: Machine) -> Refusals:
    """Enough microbatches."""
    if spec.pipeline == "1f1b" and spec.accumulate < spec.workers:
        why = "1f1b needs a microbatch for each stage, "
        yield "accumulate", f"{why}{spec.workers} at least; gpipe takes fewer"


def _pipeline_memory(spec: RunSpec, model: Sketch, examples: int) -> Memory:
    """1/n of everything on each of n stages, if they are of equal size, and the activations of the
    microbatches that a stage keeps at a time: m with gpipe; with 1f1b n on the first stage and 1 on
    the last.
    """
    n, m = spec.workers, spec.accumulate
    memory = on_workers(spec, share_of(spec, model, n))
    for stage, held in enumerate(memory.values()):
        kept = m if spec.pipeline == "gpipe" else min(m, n - stage)
        held["activations"] = kept * model.kept(examples) // n
    return memory


PIPELINE_PARALLEL = Strategy(
    name="pipeline_parallel",
    summary="The layers are cut into stages, one on each worker; the batch flows through them in "
    "microbatches, forward and back.",
    variables="each layer on one worker: its stage",
    gradients="each stage those of its own layers, microbatch by microbatch",
    update="each stage, to its own layers, once all microbatches are back",
    waits="every stage for its neighbours; for (n-1)/(m+n-1) of the time, with m microbatches, "
    "while the pipeline fills and drains",
    wire="the activations between two stages forward, and as many bytes of their gradients back; "
    "no parameters and no gradients of them",
    use="models too deep for one device; also across machines: it sends little, only to neighbours",
    limits="the bubble; the slowest stage sets the pace; activations of many microbatches at a "
    "time (gpipe: m, 1f1b: at most n)",
    source="Huang et al., GPipe, NeurIPS 2019; Narayanan et al., PipeDream, SOSP 2019; Narayanan "
    "et al., Efficient Large-Scale Language Model Training, SC 2021",
    jobs={"torch": ("worker",)},
    order=70,
    check=_check_pipeline,
    fits=_fits_pipeline,
    default_batch=lambda spec: batch_of(spec.workers, spec.accumulate),
    default_workers=2,
    default_parts=4,
    model_parallel=True,
    all_reduce=no_all_reduce(
        "Neighbours send each other activations and their gradients; nobody all-reduces."
    ),
    memory=_pipeline_memory,
    takes=("pipeline",),
)
