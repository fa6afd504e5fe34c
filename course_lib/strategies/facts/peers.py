"""Strategies whose workers exchange with each other: each has a copy of the model, or a part."""

import math
from collections import Counter

from course_lib import workloads
from course_lib.hardware import Machine, Reason
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import trial
from course_lib.strategies.strategy import (
    Measured,
    Memory,
    Refusals,
    Strategy,
    no_all_reduce,
    on_workers,
    share_of,
)
from course_lib.workloads.layers import Sketch

MULTI_WORKER_MIRRORED = Strategy(
    name="multi_worker_mirrored",
    summary="Every worker has a copy of the model; an all-reduce averages their gradients.",
    variables="a copy on every worker",
    gradients="each worker, from its share of the batch",
    update="every worker, to its own copy, with the same average",
    waits="every worker for all others, in each step: none goes on before the average is there",
    wire="2(n-1)/n S bytes sent by each worker (ring all-reduce)",
    use="synchronous data parallelism over several machines: the usual way to use more than one",
    limits="the slowest worker sets the pace; the model must fit on every worker; one lost worker "
    "stops all",
    source="https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl; Li et al., "
    "PyTorch Distributed, VLDB 2020",
    takes_schedule=True,
    takes=("overlap", "bucket_mb"),
)


def _sharded_memory(spec: RunSpec, model: Sketch, examples: int) -> Memory:
    """Each worker holds 1/n of the parameters, gradients and optimizer state, and the activations
    of its own share; layers are gathered in the run's precision, so it keeps no copies of weights.
    With `accumulate` it keeps gradients of the whole model until the last part.
    """
    shares = share_of(spec, model, spec.workers)
    if spec.accumulate > 1:
        shares["gradients"] = share_of(spec, model)["gradients"]
    return on_workers(spec, shares | {"activations": examples * model.activations})


def _fits_sharded(spec: RunSpec, model: Sketch) -> Refusals:
    """No sparse gradients: FSDP reduces dense ones only."""
    if model.sparse:
        cure = "make it with sparse=False, or take multi_worker_mirrored or parameter_server"
        yield "workload", f"fully_sharded cannot shard the sparse {model.sparse[0]}: {cure}"


FULLY_SHARDED = Strategy(
    name="fully_sharded",
    summary="Every worker keeps a part of each layer, and gathers the rest while it computes it.",
    variables="1/n of each layer on every worker",
    gradients="each worker, from its share of the batch; it then gets the mean of its own part",
    update="each worker, to its own part",
    waits="every worker for all others, in each layer, forward and back",
    wire="3(n-1)/n S bytes sent by each worker: two all-gathers and a reduce-scatter; on CPUs "
    "4(n-1)/n S, as gloo's reduce-scatter sends what an all-reduce does",
    use="data parallelism with models too large for one device: the usual way to train them",
    limits="1.5 times the bytes of an all-reduce; the two largest layers must fit on every worker",
    source="Rajbhandari et al., ZeRO, SC 2020; Zhao et al., PyTorch FSDP, VLDB 2023",
    jobs={"torch": ("worker",)},
    fits=_fits_sharded,
    default_workers=2,
    all_reduce=no_all_reduce("All-gathers and a reduce-scatter take its place."),
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
            yield field, f"must divide the {units} {what}s of {name}, such as {', '.join(fit)}"
    if not workload.ours:
        trial.tried(spec, "pieces", spec.workers)


def _tensor_all_reduce(spec: RunSpec, model: Sketch) -> Reason:
    cuts = Counter(model.units)
    made = ", ".join(f"{count} x {units} {what}s" for (units, what), count in cuts.items())
    why = f"In the middle of a step workers add up what their pieces make of {made}"
    return Reason("all-reduce", "of activations", f"{why}; gradients of parameters are not sent.")


def _tensor_memory(spec: RunSpec, model: Sketch, examples: int) -> Memory:
    """1/n of everything on each device, if every layer is cut. Activations are not foretold: only
    those within a pair of layers are cut, and how many these are depends on the model.
    """
    return on_workers(spec, share_of(spec, model, spec.shares))


TENSOR_PARALLEL = Strategy(
    name="tensor_parallel",
    summary="Layers are cut into pieces, one a worker; all compute the same batch, and add up.",
    variables="on every worker a piece of each layer that is cut, and all other layers whole",
    gradients="each worker those of its own pieces, from the whole batch",
    update="each worker, to its own pieces",
    waits="every worker for all others, in each pair of layers",
    wire="activations: 2(n-1)/n A bytes sent by each worker in an all-reduce of A bytes, one "
    "forward and one back for each pair of layers; no gradients of parameters",
    use="layers that are too large for one device; inside a machine, where the wires are fast",
    limits="slow wires stall it in the middle of a step; a layer has only so many units",
    source="Shoeybi et al., Megatron-LM, 2019; https://www.tensorflow.org/guide/dtensor_overview",
    measured={
        "tensorflow": Measured("one real process; DTensor on a mesh of logical CPU devices"),
        "torch": MULTI_WORKER_MIRRORED.measured["torch"],
    },
    fits=_fits_tensor,
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
        yield "workers", f"at most {model.parts}, one for each layer of {spec.workload}"


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
    for stage, kinds in enumerate(memory.values()):
        kept = m if spec.pipeline == "gpipe" else min(m, n - stage)
        kinds["activations"] = kept * model.kept(examples) // n
    return memory


PIPELINE_PARALLEL = Strategy(
    name="pipeline_parallel",
    summary="Each worker has some layers; microbatches flow through them, forward and back.",
    variables="each layer on one worker: its stage",
    gradients="each stage those of its own layers, microbatch by microbatch",
    update="each stage, to its own layers, once all microbatches are back",
    waits="every stage for its neighbours: (n-1)/(m+n-1) of the time, with m microbatches",
    wire="the activations between two stages forward, and as many bytes of gradients back",
    use="models too deep for one device; also across machines: it sends little, only to neighbours",
    limits="the bubble; the slowest stage sets the pace; activations of many microbatches",
    source="Huang et al., GPipe, NeurIPS 2019; Narayanan et al., PipeDream, SOSP 2019; Narayanan "
    "et al., Efficient Large-Scale Language Model Training, SC 2021",
    jobs={"torch": ("worker",)},
    check=_check_pipeline,
    fits=_fits_pipeline,
    pieces=lambda spec: math.lcm(spec.workers, spec.accumulate),
    default_workers=2,
    default_parts=4,
    model_parallel=True,
    all_reduce=no_all_reduce("Neighbours send each other activations and their gradients."),
    memory=_pipeline_memory,
    takes=("pipeline",),
)
