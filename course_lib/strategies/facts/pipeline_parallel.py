"""The facts of pipeline_parallel."""

from __future__ import annotations

from course_lib import workloads
from course_lib.errors import SpecError
from course_lib.hardware import Machine
from course_lib.spec import RunSpec
from course_lib.strategies.strategy import Facts, Strategy, batch_of, no_all_reduce, programs
from course_lib.workloads.model import shapes


def check(spec: RunSpec, machine: Machine) -> None:
    """Every stage needs a layer with weights, all microbatches are equally large, and 1F1B needs a
    microbatch for each stage to fill the pipeline.
    """
    workload, stages, parts = workloads.load(spec), spec.workers, spec.microbatches
    layers = sum(len(shape) > 1 for shape in shapes(workload.layers, workload.input_shape))
    if stages > layers:
        text = f"{spec.workload} has {layers} layers with weights, so at most {layers} stages"
        raise SpecError("workers", stages, text)
    if spec.batch % parts:
        divisors = [n for n in range(stages, spec.batch + 1) if spec.batch % n == 0]
        near = min(divisors, key=lambda n: abs(n - parts))
        text = f"must divide the batch of {spec.batch}, such as {near}"
        raise SpecError("microbatches", parts, text)
    if spec.pipeline == "1f1b" and parts < stages:
        text = f"1f1b needs one for each of the {stages} stages at least; gpipe takes fewer"
        raise SpecError("microbatches", parts, text)


PIPELINE_PARALLEL = Strategy(
    "pipeline_parallel",
    Facts(
        summary="The layers are cut into stages, one on each worker; the batch flows through them "
        "in microbatches, forward and back.",
        variables="each layer on one worker: its stage",
        gradients="each stage those of its own layers, microbatch by microbatch",
        update="each stage, to its own layers, once all microbatches are back",
        waits="every stage for its neighbours; for (n-1)/(m+n-1) of the time, with m "
        "microbatches, while the pipeline fills and drains",
        wire="the activations between two stages forward, and as many bytes of their gradients "
        "back; no parameters and no gradients of them",
        use="models too deep for one device, across machines too: it sends little, and only to "
        "neighbours",
        limits="the bubble; the slowest stage sets the pace; activations of many microbatches at "
        "a time (gpipe: m, 1f1b: at most n)",
        source="Huang et al., GPipe, NeurIPS 2019; Narayanan et al., PipeDream, SOSP 2019; "
        "Narayanan et al., Efficient Large-Scale Language Model "
        "Training, SC 2021",
    ),
    programs("pipeline_parallel", torch=("worker",)),
    order=70,
    check=check,
    default_batch=lambda spec: batch_of(spec.workers, spec.microbatches),
    default_workers=2,
    model_parallel=True,
    all_reduce=no_all_reduce(
        "Neighbours send each other activations and their gradients; nobody all-reduces."
    ),
    takes=("microbatches", "pipeline"),
)
