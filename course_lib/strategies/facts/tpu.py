"""The facts of tpu."""

from __future__ import annotations

from course_lib.errors import SpecError, Unavailable
from course_lib.hardware import Machine, Reason
from course_lib.spec import RunSpec
from course_lib.strategies.strategy import Facts, Standing, Strategy, programs

NO_TPU = "TPUStrategy needs a TPU, and this machine has none"
EMULATE = (
    "Use --emulate (emulate=True): the same replicas, compiled by the same compiler (XLA), "
    "with logical CPU devices for cores."
)
NO_TORCH = (
    "PyTorch reaches a TPU only through torch_xla, a package of its own that this course "
    "does not use"
)
USE_TENSORFLOW = "Use --framework tensorflow."


def standing(framework: str, machine: Machine) -> Standing:
    if framework != "tensorflow":
        return Standing("unavailable", NO_TORCH, USE_TENSORFLOW)
    if not machine.tpu:
        return Standing("unavailable", NO_TPU, EMULATE)
    return Standing("measured", "one real process, a replica on each core of the TPU")


def check(spec: RunSpec, machine: Machine) -> None:
    """Refuse a run without a TPU, unless it is asked to emulate one."""
    if spec.framework != "tensorflow":
        raise Unavailable(f"tpu with {spec.framework}", NO_TORCH, USE_TENSORFLOW)
    if not (machine.tpu or spec.emulate):
        raise Unavailable("tpu", NO_TPU, EMULATE)
    if spec.cross_device_ops == "nccl":
        text = "a TPU's cores average over links of their own; NCCL is for GPUs"
        raise SpecError("cross_device_ops", "nccl", text)


def all_reduce(spec: RunSpec) -> Reason:
    if spec.emulate:
        why = f"All {spec.replicas} replicas are devices of one process; one of them adds up."
        return Reason("all-reduce", "reduction_to_one_device", why)
    why = "XLA compiles it into the step, over the links between the TPU's cores."
    return Reason("all-reduce", "xla", why)


TPU = Strategy(
    "tpu",
    Facts(
        summary="Every core of a TPU has a full copy of the model and runs the same program, "
        "compiled by XLA; the cores average their gradients.",
        variables="a copy on every core",
        gradients="each core, from its share of the batch, multiplying in bfloat16",
        update="every core, to its own copy, with the same average",
        waits="every core for all others, in each step",
        wire="nothing leaves the process; 2(n-1)/n S sent by each core over the TPU's own links "
        "(emulated: (n-1) S to one device and back)",
        use="large dense models whose shapes never change",
        limits="everything must compile with XLA: fixed shapes, no Python inside a step; bfloat16 "
        "keeps 8 significant bits",
        source="https://www.tensorflow.org/guide/tpu",
    ),
    programs("tpu", tensorflow=("worker",), torch=()),
    standing,
    check,
    order=30,
    one_process=("tensorflow",),
    all_reduce=all_reduce,
    takes=("emulate",),
)
