"""The facts of multi_worker_mirrored."""

from __future__ import annotations

from course_lib.errors import SpecError
from course_lib.hardware import Machine
from course_lib.spec import RunSpec
from course_lib.strategies.facts.mirrored import check_nccl
from course_lib.strategies.strategy import Facts, Strategy, programs


def check(spec: RunSpec, machine: Machine) -> None:
    """Refuse nccl by name: the plan takes it by itself where every worker has a GPU."""
    if "nccl" not in (spec.all_reduce, spec.cross_device_ops):
        return
    native = "gloo" if spec.framework == "torch" else "TensorFlow's ring"
    cure = f"Leave it out for {native}, or take an all_reduce of ours, such as ring."
    check_nccl(spec, machine, cure)
    field = "all_reduce" if spec.all_reduce == "nccl" else "cross_device_ops"
    text = "leave it out: where every worker has a GPU, the native all-reduce is NCCL"
    raise SpecError(field, "nccl", text)


MULTI_WORKER_MIRRORED = Strategy(
    "multi_worker_mirrored",
    Facts(
        summary="Every worker has a full copy of the model; an all-reduce averages their "
        "gradients in each step, so the copies stay equal.",
        variables="a copy on every worker",
        gradients="each worker, from its share of the batch",
        update="every worker, to its own copy, with the same average",
        waits="every worker for all others, in each step: none begins the next before the average "
        "is there",
        wire="2(n-1)/n S bytes sent by each worker (ring all-reduce)",
        use="synchronous data parallelism over several machines: the usual way to train on more "
        "than one",
        limits="the slowest worker sets the pace; the model must fit on every worker; one lost "
        "worker stops all",
        source="https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl; Li et al., "
        "PyTorch Distributed, VLDB 2020",
    ),
    programs("multi_worker_mirrored", tensorflow=("worker",), torch=("worker",)),
    order=40,
    check=check,
    takes_schedule=True,
)
