"""What the strategies in TensorFlow share: times from inside a graph, tensors packed into one
message, and the devices of a process.

A graph runs its operations as soon as their inputs are there, in any order. A time stamp means
something only if it is tied to what it should come after, which is what control dependencies do:
`after` stamps when all of some tensors are ready, and `hold` keeps the next operations from
starting before the stamp. That costs microseconds; leaving the graph between phases would cost a
dispatch for each.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

from course_lib.cluster.task import Task
from course_lib.record.events import clock
from course_lib.strategies.steps import fastest

SILENCE = 60
"""Seconds after which a worker that says nothing is given up."""

# --- times ---


def after(values: Any) -> Any:
    """The time at which all tensors and operations in `values` are ready: a float64 scalar, seconds
    of wall-clock time, to the microsecond.
    """
    with tf.control_dependencies(tf.nest.flatten(values, expand_composites=True)):
        return free(tf.timestamp())


def free(result: Any) -> Any:
    """The result of an operation, which from now on waits for its inputs only. By itself, one that
    has effects, such as reading a clock, would wait for all those before it in the program.
    """
    if order := getattr(result.graph, "experimental_acd_manager", None):
        order.run_independently(result.op)
    return result


def hold(values: list[Any], stamp: Any) -> list[Any]:
    """The same tensors, not before `stamp` was taken."""
    with tf.control_dependencies([stamp]):
        return [tf.identity(value) for value in values]


class WallClock:
    """Turns wall-clock stamps into the trace's monotonic clock, also while the wall clock is being
    adjusted.
    """

    CLOSE = 20e-6  # seconds

    def __init__(self) -> None:
        self._offset, _ = min((self._measure() for _ in range(20)), key=lambda pair: pair[1])

    def offset(self) -> float:
        """Seconds to add to a stamp taken just now.

        Measured anew, unless the process was held up in the middle of measuring.
        """
        offset, width = self._measure()
        if width < self.CLOSE:
            self._offset = offset
        return self._offset

    @staticmethod
    def _measure() -> tuple[float, float]:
        """The offset between the clocks, and within how many seconds both were read."""
        before, wall, later = clock(), time.time(), clock()
        return (before + later) / 2 - wall, later - before


# --- messages ---


def pack(tensors: Iterable[Any]) -> Any:
    """Tensors as one vector: one message instead of many."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def unpack(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    """The tensors that `pack` made this vector of; they have the shapes of `shapes`."""
    pieces = tf.split(vector, [like.shape.num_elements() for like in shapes])
    return [tf.reshape(piece, like.shape) for piece, like in zip(pieces, shapes, strict=True)]


# --- devices: TensorFlow would take all memory of every GPU it sees, in each process ---


def use(device: str) -> str:
    """Show TensorFlow only `device` (`cpu`, `gpu:1`) and return its name for it.

    To be called before the first operation.
    """
    return use_several(device, 1)[0]


def use_several(device: str, count: int, host_apart: bool = False) -> list[str]:
    """Devices for `count` replicas of this process, by TensorFlow's names, which sees no GPU but
    these. To be called before the first operation.

    They are the GPU `device` (`gpu:0`) and the ones after it, if there are enough. Otherwise they
    are logical devices: TensorFlow treats the one CPU as several, each with variables of its own.
    These share the cores and the memory of the CPU: unlike between GPUs, sending from one to the
    other costs nothing, as nothing is copied. With `host_apart`, the first, `/cpu:0`, is left to
    the host.
    """
    kind, _, index = device.partition(":")
    gpus = tf.config.list_physical_devices("GPU")[int(index) :][:count] if kind == "gpu" else []
    enough = len(gpus) == count
    tf.config.set_visible_devices(gpus if enough else [], "GPU")
    if enough:
        for gpu in gpus:  # which takes memory as it needs it
            tf.config.experimental.set_memory_growth(gpu, True)
        return [f"/gpu:{i}" for i in range(count)]
    first = int(host_apart)
    if first + count > 1:
        (cpu, *_) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * (first + count)
        tf.config.set_logical_device_configuration(cpu, parts)
    return [f"/cpu:{first + i}" for i in range(count)]


def be_patient(task: Task) -> None:
    """Give up a silent worker only after `SILENCE`: by default TensorFlow does after ten seconds,
    and a lesson may pause a worker for longer.

    To be called before the strategy is made, which would ask for the default. A worker that died is
    still noticed at once, by its broken connections. TensorFlow has this setting but no public name
    for it.
    """
    workers = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=task.spec.workers)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=SILENCE * 1000,
        coordinated_jobs=[workers],
    )


def bytes_on(tensors: Iterable[Any]) -> dict[str, int]:
    """Bytes of tensors or variables by device, as the runtime reports them."""
    found: Counter[str] = Counter()
    for tensor in tensors:
        found[tensor.device] += tensor.dtype.size * tensor.shape.num_elements()
    return dict(found)


def matmul_flops() -> float:
    """Floating-point operations that a float32 matrix product does here in a second."""
    size = 4096 if tf.config.get_visible_devices("GPU") else 512
    matrix = tf.random.uniform((size, size))
    return fastest(lambda: tf.linalg.matmul(matrix, matrix)[0, 0].numpy(), size)
