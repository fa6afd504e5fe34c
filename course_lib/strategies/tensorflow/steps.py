"""What the strategies in TensorFlow share: times from inside a graph, tensors packed into one
message, the workload's model, and the devices of a process.

A graph runs its operations as soon as their inputs are there, in any order. A time stamp means
something only if it is tied to what it should come after, which is what control dependencies do:
`after` stamps when all of some tensors are ready, and `hold` keeps the next operations from
starting before the stamp. That costs microseconds; leaving the graph between phases would cost a
dispatch for each.
"""

import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

from course_lib.cluster.task import Task, clock
from course_lib.strategies.steps import fastest
from course_lib.strategies.tensorflow.precision import policy
from course_lib.workloads.layers import Conv, Dense, Flatten, Layer
from course_lib.workloads.workload import Workload

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


# --- models ---


def build(workload: Workload, seed: int, precision: str = "float32") -> keras.Model:
    """The model, with the weights that every run of this seed starts from; its layers compute in
    this precision.

    Call it in a strategy's scope, which places its variables.
    """
    with policy(precision):
        return _build(workload, seed)


def _build(workload: Workload, seed: int) -> keras.Model:
    if not workload.layers:
        return with_variables(from_builder(workload, seed), workload)
    weights = iter(workload.initial_weights(seed))
    return keras.Sequential(
        [keras.Input(workload.input_shape), *(_layer(layer, weights) for layer in workload.layers)]
    )


def from_builder(workload: Workload, seed: int) -> Any:
    """What a learner's own builder returns. Keras draws the seeds of initial weights and of dropout
    from the random numbers that are seeded here.
    """
    keras.utils.set_random_seed(seed)
    return workload.built("tensorflow", seed)


def with_variables(model: keras.Model, workload: Workload) -> keras.Model:
    """The model with all its variables: some only make them at their first call."""
    if not model.built:
        model(workload.train.take(slice(2))[0], **mode(model, training=False))
    return model


def mode(model: keras.Model, training: bool) -> dict[str, bool]:
    """What a call is told of training or not: nothing, as in Keras' `fit`, if the model's `call`
    has no such argument.
    """
    takes = "training" in inspect.signature(model.call).parameters
    return {"training": training} if takes else {}


def _layer(layer: Layer, weights: Any) -> Any:
    if isinstance(layer, Flatten):
        return keras.layers.Flatten()
    options = {
        "activation": "relu" if layer.relu else None,
        "kernel_initializer": _given(next(weights)),
        "bias_initializer": _given(next(weights)),
    }
    match layer:
        case Dense(units):
            return keras.layers.Dense(units, **options)
        case Conv(filters, size):
            return keras.layers.Conv2D(filters, size, **options)


def _given(values: np.ndarray) -> Callable[..., Any]:
    """An initializer that returns these values.

    A variable that starts right need not be filled with random numbers first.
    """
    return lambda shape, dtype=None: tf.constant(values)


def variables_of(model: keras.Model) -> list[Any]:
    """The model's trained `tf.Variable`s, as the strategy made them: not those of layers with
    `trainable=False`. One that two layers share is there once.
    """
    return [variable.value for variable in model.trainable_variables]


def copies_of(variable: Any) -> tuple[Any, ...]:
    """The copies of a variable that this process holds."""
    copies: tuple[Any, ...] = tf.distribute.get_strategy().experimental_local_results(variable)
    return copies


def weights_of(model: keras.Model) -> list[np.ndarray]:
    """This process's own copy of the trained weights."""
    return [copies_of(variable)[0].numpy() for variable in variables_of(model)]


def named_weights_of(model: keras.Model) -> dict[str, np.ndarray]:
    """This process's own copy of all weights but the states of random numbers. A name is a number
    and a path, as two weights may have the same path.
    """
    values = ((v.path, copies_of(v.value)[0].numpy()) for v in model.weights)
    return {f"{number} {path}": value for number, (path, value) in enumerate(values)}


def is_seed(variable: keras.Variable) -> bool:
    """Whether it is the state of a `keras.random.SeedGenerator`, such as dropout has: [seed,
    count]. In each draw the count goes up by one.
    """
    return str(variable.name) == "seed_generator_state"


def seed_of(state: np.ndarray, seed: int, share: int = 0) -> int:
    """The seed with which a share of the batch draws, in place of the one in this state."""
    return int(np.random.SeedSequence([seed, int(state[0]), share]).generate_state(1)[0])


def bytes_on(tensors: Iterable[Any]) -> dict[str, int]:
    """Bytes of tensors or variables by device, as the runtime reports them."""
    found: Counter[str] = Counter()
    for tensor in tensors:
        found[tensor.device] += tensor.dtype.size * tensor.shape.num_elements()
    return dict(found)


def outputs_of(model: keras.Model, inputs: np.ndarray) -> np.ndarray:
    """What this process's first copy of a model makes of inputs when it is not being trained."""
    trained, others = (
        [copies_of(variable.value)[0] for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    told = mode(model, training=False)
    outputs, _ = model.stateless_call(trained, others, tf.constant(inputs), **told)
    values: np.ndarray = tf.cast(outputs, tf.float32).numpy()
    return values


def matmul_flops() -> float:
    """Floating-point operations that a float32 matrix product does here in a second."""
    size = 4096 if tf.config.get_visible_devices("GPU") else 512
    matrix = tf.random.uniform((size, size))
    return fastest(lambda: tf.linalg.matmul(matrix, matrix)[0, 0].numpy(), size)


# --- losses and their gradients ---


def cross_entropy(logits: Any, classes: Any) -> Any:
    """The mean softmax cross entropy of logits (..., classes) and classes (...)."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=logits)
    )


def mean_squared_error(outputs: Any, targets: Any) -> Any:
    """The mean of the squared differences of outputs and targets of the same shape."""
    if outputs.shape != targets.shape:  # TensorFlow would compare each with each
        raise ValueError("outputs and targets must have the same shape")
    return tf.reduce_mean(tf.math.squared_difference(outputs, tf.cast(targets, outputs.dtype)))


LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": cross_entropy,
    "mean_squared_error": mean_squared_error,
    "next_token": cross_entropy,  # over all places of (batch, length)
}


def loss_of(workload: Workload) -> Callable[..., Any]:
    """The workload's loss: of outputs and targets, the mean over the batch. Those of Keras are
    given the targets first.
    """
    given = workload.loss
    if isinstance(given, keras.losses.Loss):
        return lambda outputs, targets: given(targets, outputs)
    return given if callable(given) else LOSSES[given]


def total(loss_of: Callable[..., Any], outputs: Any, targets: Any, own: Sequence[Any]) -> Any:
    """The sum of the loss of outputs and of the model's `own` losses, such as those of
    regularizers; in float32, whatever the model computes in.
    """
    loss = loss_of(tf.cast(outputs, tf.float32), targets)
    return tf.add_n([loss, *(tf.cast(each, tf.float32) for each in own)]) if own else loss


def in_parts(count: int, compute: Callable[..., list[Any]], inputs: Any, targets: Any) -> list[Any]:
    """The mean of what `compute` returns for `count` equal parts of a batch.

    One part is computed after the other, so that the activations of one are kept at a time. As the
    parts are equal, the mean of their means is that of all examples.
    """
    if count == 1:
        return compute(inputs, targets)
    sums: list[Any] = []
    for part in zip(tf.split(inputs, count), tf.split(targets, count), strict=True):
        with tf.control_dependencies(sums):
            found = compute(*part)
        sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
    return [each / count for each in sums]


# --- devices: TensorFlow would take all memory of every GPU it sees, in each process ---


def use(device: str) -> str:
    """Show TensorFlow only `device` (`cpu`, `gpu:1`) and return its name for it.

    To be called before the first operation.
    """
    _show(_gpus(device, 1))
    return f"/{device.partition(':')[0]}:0"


def use_several(device: str, count: int, host_apart: bool = False) -> list[str]:
    """Devices for `count` replicas of this process, by TensorFlow's names. To be called before the
    first operation.

    They are the GPU `device` (`gpu:0`) and the ones after it, if there are enough. Otherwise they
    are logical devices: TensorFlow treats the one CPU as several, each with variables of its own.
    These share the cores and the memory of the CPU: unlike between GPUs, sending from one to the
    other costs nothing, as nothing is copied. With `host_apart`, the first, `/cpu:0`, is left to
    the host.
    """
    gpus = _gpus(device, count)
    _show(gpus)
    if gpus:
        return [f"/gpu:{i}" for i in range(count)]
    first = int(host_apart)
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * (first + count)
    )
    return [f"/cpu:{first + i}" for i in range(count)]


def _gpus(device: str, count: int) -> list[Any]:
    """`count` of the machine's GPUs from `device` on; none if it is the CPU, or if there are too
    few.
    """
    kind, _, first = device.partition(":")
    found = tf.config.list_physical_devices("GPU")[int(first) :][:count] if kind == "gpu" else []
    return found if len(found) == count else []


def _show(gpus: list[Any]) -> None:
    """Let TensorFlow see these GPUs and no others, and take memory of them as it needs it."""
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)


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
