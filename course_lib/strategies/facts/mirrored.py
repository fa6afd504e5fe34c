"""The facts of mirrored."""

from __future__ import annotations

from course_lib.errors import SpecError, Unavailable
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

OTHERS = "Take hierarchical_copy or reduction_to_one_device: they work between any devices."


def cross_device_ops(spec: RunSpec) -> str:
    """How TensorFlow's replicas reduce: as the spec says, else by hierarchical copy, where that is
    right.
    """
    usual = "reduction_to_one_device" if spec.replicas % 2 else "hierarchical_copy"
    return spec.cross_device_ops or usual


def check(spec: RunSpec, machine: Machine) -> None:
    """NCCL needs a GPU for each replica, TensorFlow's hierarchical copy an even number of them."""
    asked = spec.cross_device_ops
    if spec.framework == "torch" and asked not in (None, "nccl"):
        text = "is TensorFlow's: leave it out, or take nccl on GPUs"
        raise SpecError("cross_device_ops", asked, text)
    if asked == "nccl":
        check_nccl(spec, machine, "Leave it out for gloo." if spec.framework == "torch" else OTHERS)
    if asked == "hierarchical_copy" and spec.replicas > 1 and spec.replicas % 2:
        lost = f"TensorFlow's would lose the gradient of one of {spec.replicas} devices"
        text = f"{lost}: take an even number, or reduction_to_one_device"
        raise SpecError("cross_device_ops", asked, text)


def check_nccl(spec: RunSpec, machine: Machine, cure: str) -> None:
    """Raise `Unavailable` if a run cannot have NCCL on a machine; `cure`: what to take instead."""
    needed = max(2, spec.shares)
    usable = len(machine.gpus) if spec.framework in machine.cuda_frameworks else 0
    if usable < needed:
        can = f"{spec.framework} can use {usable or 'none'} on this machine"
        why = f"it joins NVIDIA GPUs, {needed} of them in this run, and {can}"
        raise Unavailable("nccl", why, cure)


def all_reduce(spec: RunSpec) -> Reason | None:
    """TensorFlow's is inside its one process; PyTorch's is the one that the plan finds."""
    if spec.framework != "tensorflow":
        return None
    why = f"All {spec.replicas} replicas are devices of one process."
    return Reason("all-reduce", cross_device_ops(spec), why)


MIRRORED = Strategy(
    "mirrored",
    Facts(
        summary="Every device of one machine has a full copy of the model; their gradients are "
        "averaged in each step, so the copies stay equal.",
        variables="a copy on every device",
        gradients="each device, from its share of the batch",
        update="every device, to its own copy, with the same average",
        waits="every device for all others, in each step",
        wire="nothing leaves the machine; the busiest device moves (n-1) S each way "
        "(reduction_to_one_device), n/2 S (hierarchical_copy) "
        "or 2(n-1)/n S (nccl)",
        use="synchronous data parallelism over the GPUs of one machine: the usual first step "
        "beyond one device",
        limits="one machine; the slowest device sets the pace; the model must fit on every device",
        source="https://www.tensorflow.org/api_docs/python/tf/distribute/MirroredStrategy",
    ),
    programs("mirrored", tensorflow=("worker",), torch=("worker",)),
    by_framework(
        tensorflow=measured(
            "one real process; real replicas on logical CPU devices, which share its cores; "
            "nccl would need two GPUs",
            "one real process; replicas on up to {gpus} GPUs, joined by NCCL if you ask for it",
        ),
        torch=REAL_PROCESSES,
    ),
    check,
    order=20,
    one_process=("tensorflow",),
    one_host="mirrored is for the devices of one machine",
    all_reduce=all_reduce,
    takes=("cross_device_ops",),
)
