"""The facts of central_storage."""

from __future__ import annotations

from course_lib.errors import SpecError
from course_lib.hardware import Machine
from course_lib.spec import RunSpec
from course_lib.strategies.strategy import (
    Facts,
    Strategy,
    by_framework,
    measured,
    no_all_reduce,
    programs,
)


def check(spec: RunSpec, machine: Machine) -> None:
    """Refuse nccl: there is no all-reduce here that it could do."""
    if spec.cross_device_ops == "nccl":
        text = "central_storage averages on the host; mirrored has an all-reduce between devices"
        raise SpecError("cross_device_ops", "nccl", text)


CENTRAL_STORAGE = Strategy(
    "central_storage",
    Facts(
        summary="The variables live once, on the host; every device of the machine fetches them, "
        "and the host applies the average of the gradients.",
        variables="once, on the host (CPU)",
        gradients="each device, from its share of the batch",
        update="the host, once a step, with the average",
        waits="the host for all devices, and every device for the host's update, in each step",
        wire="nothing leaves the machine; n S of variables from the host to the devices, and n S "
        "of gradients back",
        use="models whose variables do not fit on every device, such as large embeddings, on one "
        "machine",
        limits="everything passes through the host's memory; one machine; the slowest device sets "
        "the pace",
        source="https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/CentralStorageStrategy",
    ),
    programs("central_storage", tensorflow=("worker",), torch=("worker",)),
    by_framework(
        tensorflow=measured(
            "one real process; variables on one logical CPU device, real replicas on others, "
            "which share its cores",
            "one real process; variables on the CPU, real replicas on up to {gpus} GPUs",
            at_least=1,
        ),
        torch=measured(
            "real processes, a replica in each; variables and gradients in memory that all of "
            "them share"
        ),
    ),
    check,
    order=50,
    one_process=("tensorflow",),
    one_host="the parameters of central_storage lie in memory that all its workers share",
    all_reduce=no_all_reduce(
        "Gradients meet in the host's memory, where they are averaged and applied once."
    ),
)
