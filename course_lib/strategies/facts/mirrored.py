"""mirrored."""

from __future__ import annotations

from course_lib.errors import SpecError, Unavailable
from course_lib.hardware import Machine, Reason
from course_lib.spec import RunSpec
from course_lib.strategies.strategy import Facts, Standing, Strategy, programs, real_processes

OTHERS = "Take hierarchical_copy or reduction_to_one_device: they work between any devices."


def standing(framework: str, machine: Machine) -> Standing:
    if framework != "tensorflow":
        return real_processes(framework, machine)
    if len(machine.gpus) > 1 and framework in machine.cuda_frameworks:
        return Standing(
            "measured",
            f"one real process; real replicas on up to {len(machine.gpus)} GPUs, joined by NCCL "
            "if you ask for it",
        )
    return Standing(
        "measured",
        "one real process; real replicas on logical CPU devices, which share its cores; nccl "
        "would need two GPUs",
    )


def cross_device_ops(spec: RunSpec) -> str:
    """How TensorFlow's replicas reduce: as the spec says, else by hierarchical copy, where that is
    right.
    """
    return spec.cross_device_ops or (
        "reduction_to_one_device" if spec.replicas % 2 else "hierarchical_copy"
    )


def check(spec: RunSpec, machine: Machine) -> None:
    """NCCL needs a GPU for each replica, TensorFlow's hierarchical copy an even number of them."""
    if spec.framework == "torch" and spec.cross_device_ops not in (None, "nccl"):
        raise SpecError(
            "cross_device_ops",
            spec.cross_device_ops,
            "is TensorFlow's: leave it out, or take nccl on GPUs",
        )
    if spec.cross_device_ops == "nccl":
        check_nccl(spec, machine, "Leave it out for gloo." if spec.framework == "torch" else OTHERS)
    if spec.cross_device_ops == "hierarchical_copy" and spec.replicas > 1 and spec.replicas % 2:
        text = (
            f"TensorFlow's would lose the gradient of one of {spec.replicas} devices: take an "
            "even number, or reduction_to_one_device"
        )
        raise SpecError("cross_device_ops", spec.cross_device_ops, text)


def check_nccl(spec: RunSpec, machine: Machine, cure: str) -> None:
    """Raise `Unavailable` if a run cannot have NCCL on a machine; `cure`: what to take instead."""
    needed = max(2, spec.shares)
    usable = len(machine.gpus) if spec.framework in machine.cuda_frameworks else 0
    if usable < needed:
        why = (
            f"it joins NVIDIA GPUs, {needed} of them in this run, and {spec.framework} can use "
            f"{usable or 'none'} on this machine"
        )
        raise Unavailable("nccl", why, cure)


def all_reduce(spec: RunSpec) -> Reason | None:
    """PyTorch's is between processes, as the plan says."""
    if spec.framework != "tensorflow":
        return None
    return Reason(
        "all-reduce",
        cross_device_ops(spec),
        f"All {spec.replicas} replicas are devices of one process.",
    )


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
    standing,
    check,
    order=20,
    one_process=("tensorflow",),
    one_host="mirrored is for the devices of one machine",
    all_reduce=all_reduce,
    takes=("cross_device_ops",),
)
