"""The facts of tensor_parallel."""

from __future__ import annotations

from course_lib import workloads
from course_lib.errors import SpecError
from course_lib.hardware import Machine, Reason
from course_lib.spec import RunSpec
from course_lib.strategies.strategy import (
    REAL_PROCESSES,
    Facts,
    Strategy,
    by_framework,
    measured,
    programs,
)
from course_lib.workloads.digits import CLASSES, PER_UNIT
from course_lib.workloads.model import Dense


def check(spec: RunSpec, machine: Machine) -> None:
    """Only pairs of dense layers can be cut, into at most as many pieces as they have hidden units;
    TensorFlow's DTensor needs pieces of equal size.
    """
    layers = workloads.load(spec).layers
    dense = [layer for layer in layers if isinstance(layer, Dense)]
    if len(dense) < len(layers) or len(dense) % 2:
        text = "cuts dense layers, two at a time: digits, digits_deep and wide have them"
        raise SpecError("workload", spec.workload, f"tensor_parallel {text}")
    even = spec.framework == "tensorflow"
    field, shards = ("replicas", spec.replicas) if even else ("workers", spec.workers)
    for units in (layer.units for layer in dense[::2]):
        if shards > units:
            text = f"at most {units}, one for each hidden unit of {spec.workload}"
            raise SpecError(field, shards, text)
        if even and units % shards:
            cure = "such as 2, 4 or 8"
            if "parameters" in workloads.fields(spec.workload):
                cure = f"or parameters={units // shards * shards * PER_UNIT + CLASSES}"
            text = f"must divide the {units} hidden units of {spec.workload}, {cure}"
            raise SpecError(field, shards, text)


def all_reduce(spec: RunSpec) -> Reason:
    why = "Workers add up in the middle of a step what their pieces make"
    return Reason("all-reduce", "of activations", f"{why}; gradients of parameters stay.")


TENSOR_PARALLEL = Strategy(
    "tensor_parallel",
    Facts(
        summary="Every layer is cut into pieces, one on each worker; all compute the same batch, "
        "and add up what their pieces make of it.",
        variables="a piece of every layer on each worker",
        gradients="each worker those of its own pieces, from the whole batch",
        update="each worker, to its own pieces",
        waits="every worker for all others, in each pair of layers",
        wire="activations: 2(n-1)/n A bytes sent by each worker in an all-reduce of A bytes, one "
        "forward for each pair of layers and one back for "
        "each but the first; no gradients of parameters",
        use="layers that are too large for one device; inside a machine, where the wires are fast",
        limits="it exchanges in the middle of every step, so slow wires stall it; a layer has "
        "only so many units to share out",
        source="Shoeybi et al., Megatron-LM, 2019; "
        "https://www.tensorflow.org/guide/dtensor_overview",
    ),
    programs("tensor_parallel", tensorflow=("worker",), torch=("worker",)),
    by_framework(
        tensorflow=measured(
            "one real process; DTensor on a mesh of logical CPU devices, which share its cores"
        ),
        torch=REAL_PROCESSES,
    ),
    check,
    order=60,
    default_workers=2,
    model_parallel=True,
    one_process=("tensorflow",),
    all_reduce=all_reduce,
)
