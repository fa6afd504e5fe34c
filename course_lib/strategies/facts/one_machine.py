"""Strategies for the devices of one machine."""

from course_lib.errors import Unavailable
from course_lib.hardware import Machine, Reason
from course_lib.spec.run_spec import RunSpec
from course_lib.spec.settings import NATIVE, REDUCTIONS
from course_lib.strategies.strategy import (
    PROCESSES,
    Measured,
    Memory,
    Refusals,
    Strategy,
    no_all_reduce,
    on_workers,
    share_of,
)
from course_lib.workloads.layers import Sketch

ONE_DEVICE = Strategy(
    name="one_device",
    summary="One process trains on one device: the yardstick for all others.",
    variables="on the device",
    gradients="the device, from the whole batch",
    update="the device",
    waits="nobody",
    wire="nothing",
    use="whatever fits on one device and is fast enough there; debugging",
    limits="one device's speed and memory",
    source="https://www.tensorflow.org/api_docs/python/tf/distribute/OneDeviceStrategy",
    measured=dict.fromkeys(
        ("tensorflow", "torch"),
        Measured("one real process, on the CPU", "one real process, on a GPU", at_least=1),
    ),
    default_workers=1,
    max_workers=1,
    all_reduce=no_all_reduce("One device has nobody to reduce with."),
)


def reduction(spec: RunSpec) -> str:
    """The way in which TensorFlow's replicas reduce: as the spec says, else by hierarchical copy,
    where that is right.
    """
    usual = "reduction_to_one_device" if spec.replicas % 2 else "hierarchical_copy"
    return usual if spec.all_reduce == NATIVE else spec.all_reduce


def _check_mirrored(spec: RunSpec, machine: Machine) -> Refusals:
    """NCCL needs a GPU for each replica, TensorFlow's hierarchical copy an even number of them."""
    torch = spec.framework == "torch"
    for field, usual in (("overlap", True), ("bucket_mb", None)):
        if not torch and getattr(spec, field) != usual:
            yield field, "is for replicas that are processes: take framework torch, or leave it out"
    if spec.all_reduce == "nccl":
        any_device = "Take hierarchical_copy or reduction_to_one_device: they need no GPUs."
        check_nccl(spec, machine, "Leave it out for gloo." if torch else any_device)
    if spec.all_reduce == "hierarchical_copy" and spec.replicas > 1 and spec.replicas % 2:
        lost = f"TensorFlow's would lose the gradient of one of {spec.replicas} devices"
        yield "all_reduce", f"{lost}: take an even number, or reduction_to_one_device"


def check_nccl(spec: RunSpec, machine: Machine, cure: str) -> None:
    """Raise `Unavailable` if a run cannot have NCCL on a machine; `cure`: what to take instead."""
    needed = max(2, spec.shares)
    usable = len(machine.gpus) if spec.framework in machine.cuda_frameworks else 0
    if usable < needed:
        can = f"{spec.framework} can use {usable or 'none'} on this machine"
        why = f"it joins NVIDIA GPUs, {needed} of them in this run, and {can}"
        raise Unavailable("nccl", why, cure)


def _mirrored_all_reduce(spec: RunSpec, model: Sketch) -> Reason | None:
    """TensorFlow's is inside its one process; PyTorch's is the one that the plan finds."""
    if spec.framework == "torch":
        return None
    why = f"All {spec.replicas} replicas are devices of one process."
    return Reason("all-reduce", reduction(spec), why)


MIRRORED = Strategy(
    name="mirrored",
    summary="Every device of a machine has a copy of the model; their gradients are averaged.",
    variables="a copy on every device",
    gradients="each device, from its share of the batch",
    update="every device, to its own copy, with the same average",
    waits="every device for all others, in each step",
    wire="nothing leaves the machine; the busiest device moves (n-1) S each way "
    "(reduction_to_one_device), n/2 S (hierarchical_copy) or 2(n-1)/n S (nccl)",
    use="data parallelism over the GPUs of one machine: the usual first step beyond one device",
    limits="one machine; the slowest device sets the pace; the model must fit on every device",
    source="https://www.tensorflow.org/api_docs/python/tf/distribute/MirroredStrategy",
    measured={
        "tensorflow": Measured(
            "one real process; replicas on logical CPU devices, which share its cores",
            "one real process; replicas on up to {gpus} GPUs, joined by NCCL if you ask for it",
        ),
        "torch": PROCESSES["torch"],
    },
    check=_check_mirrored,
    one_process=("tensorflow",),
    one_host="mirrored is for the devices of one machine",
    all_reduce=_mirrored_all_reduce,
    reductions={"tensorflow": REDUCTIONS, "torch": ("nccl",)},
    takes=("overlap", "bucket_mb"),
)


def _check_tpu(spec: RunSpec, machine: Machine) -> Refusals:
    """Refuse a run without a TPU, unless it is asked to emulate one."""
    if spec.framework == "torch":
        why = "PyTorch needs an extra backend for a TPU (torch_xla), which this course does not use"
        raise Unavailable("tpu with torch", why, "Use --framework tensorflow.")
    if not (machine.tpu or spec.emulate):
        how = "the same replicas, compiled by the same compiler (XLA), with logical CPU devices"
        cure = f"Use --emulate (emulate=True): {how} for cores."
        raise Unavailable("tpu", "TPUStrategy needs a TPU, and this machine has none", cure)
    if spec.precision == "float16":
        yield "precision", "a TPU multiplies in bfloat16, not in float16: take bfloat16"


def _fits_tpu(spec: RunSpec, model: Sketch) -> Refusals:
    """No exchange within what XLA compiles for a replica, which cannot be emulated."""
    if spec.emulate and model.synchronized:
        why = "BatchNormalization(synchronized=True) needs a real TPU: leave synchronized out"
        yield "workload", why


def _tpu_all_reduce(spec: RunSpec, model: Sketch) -> Reason:
    if spec.emulate:
        why = f"All {spec.replicas} replicas are devices of one process; one of them adds up."
        return Reason("all-reduce", "reduction_to_one_device", why)
    why = "XLA compiles it into the step, over the links between the TPU's cores."
    return Reason("all-reduce", "xla", why)


TPU = Strategy(
    name="tpu",
    summary="Every core of a TPU has a copy of the model, and runs it as XLA has compiled it.",
    variables="a copy on every core",
    gradients="each core, from its share of the batch, multiplying in bfloat16",
    update="every core, to its own copy, with the same average",
    waits="every core for all others, in each step",
    wire="2(n-1)/n S sent by each core over the TPU's links (emulated: (n-1) S there and back)",
    use="large dense models whose shapes never change",
    limits="all must compile with XLA: fixed shapes, no Python in a step; bfloat16 keeps 8 bits",
    source="https://www.tensorflow.org/guide/tpu",
    jobs={"tensorflow": ("worker",), "torch": ()},
    measured={"tensorflow": Measured("one real process, a replica on each core of the TPU")},
    check=_check_tpu,
    fits=_fits_tpu,
    default_precision="bfloat16",
    one_process=("tensorflow",),
    all_reduce=_tpu_all_reduce,
    takes=("emulate",),
)


def _central_memory(spec: RunSpec, model: Sketch, examples: int) -> Memory:
    """Parameters and optimizer state once, gradients and activations on each replica. In PyTorch
    each replica also has a slot in shared memory, for its loss and its gradients.
    """
    host = share_of(spec, model)
    replica = {"gradients": host.pop("gradients"), "activations": model.kept(examples)}
    memory = on_workers(spec, {"parameters": 0, "optimizer_state": 0} | replica)
    memory["worker:0"] |= host
    if spec.framework == "torch":
        memory["worker:0"]["buffers"] = spec.workers * (replica["gradients"] + 4)
    return memory


CENTRAL_STORAGE = Strategy(
    name="central_storage",
    summary="The variables live once, on the host, which applies the mean of all gradients.",
    variables="once, on the host (CPU)",
    gradients="each device, from its share of the batch",
    update="the host, once a step, with the average",
    waits="the host for all devices, and every device for the host's update, in each step",
    wire="nothing leaves the machine; n S of variables to the devices, n S of gradients back",
    use="models whose variables do not fit on a device, such as large embeddings, on one machine",
    limits="all passes through the host's memory; one machine; the slowest device sets the pace",
    source="https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/CentralStorageStrategy",
    measured={
        "tensorflow": Measured(
            "one real process; variables on one logical CPU device, replicas on others",
            "one real process; variables on the CPU, replicas on up to {gpus} GPUs",
            at_least=1,
        ),
        "torch": Measured("real processes; variables and gradients in memory that all share"),
    },
    one_process=("tensorflow",),
    one_host="the parameters of central_storage lie in memory that all its workers share",
    memory=_central_memory,
    all_reduce=no_all_reduce("Gradients meet in the host's memory, where they are averaged."),
)
