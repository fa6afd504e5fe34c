"""The training steps of a Keras model: what all of them share, and the step of the replicas that a
process has under a strategy of tf.distribute (what happens in its graph is in `training.py`); the
files of a checkpoint; and what the strategies in TensorFlow share: times from inside a graph,
tensors packed into one message, and the devices of a process.

A graph runs its operations as soon as their inputs are there, in any order. A time stamp means
something only if it is tied to what it should come after, which is what control dependencies do:
`after` stamps when all of some tensors are ready, and `hold` keeps the next operations from
starting before the stamp. That costs microseconds; leaving the graph between phases would cost a
dispatch for each.

A checkpoint is written with `tf.train.Checkpoint`, each variable under a name of its own, whole,
whoever holds it. So all synchronous strategies go on from each other's:

    variable 3 slot 0     a variable of the model that is trained, whose copies are equal
    variable 3 slot 2     the second variable of the optimizer's state for it
    other 5 of 2          one that is not trained, as replica 2 has it
    seed 6 of 2           that of a replica's random numbers, such as those of dropout

Random numbers and statistics, such as those of batch normalisation, differ from replica to replica,
so every copy of them is written. A replica that was not there takes the statistics of the first,
and has random numbers of its own. On parameter servers (ps), the chief writes all.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.record.events import clock
from course_lib.strategies.steps import TrainingStep, fastest
from course_lib.strategies.tensorflow import models
from course_lib.strategies.tensorflow.models import Optimizer, bytes_of, copies_of, first
from course_lib.workloads.examples import mapped

SILENCE = 60
"""Seconds after which a worker that says nothing is given up."""

BACKWARD = 2 / 3  # of a step's device time: that pass computes twice as much as the forward pass
ALIKE, OWN = "alike", "own"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""What TensorFlow's name of a variable in a file ends with."""

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


def clock_offset() -> float:
    """Seconds to add to a wall-clock stamp taken just now, for the trace's monotonic clock: as
    measured when least time passed between readings of both.
    """
    readings = [(clock(), time.time(), clock()) for _ in range(5)]
    before, wall, later = min(readings, key=lambda each: each[2] - each[0])
    return (before + later) / 2 - wall


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
    leader = "/job:worker/replica:0/task:0"
    how = {"service_leader": leader, "heartbeat_timeout_in_ms": SILENCE * 1000}
    configure = context.context().configure_coordination_service
    configure(service_type="standalone", coordinated_jobs=[workers], **how)


def bytes_on(tensors: Iterable[Any]) -> dict[str, int]:
    """Bytes of tensors or variables by device, as the runtime reports them."""
    counts = Counter[str]()
    for tensor in tensors:
        counts[tensor.device] += bytes_of([tensor])
    return dict(counts)


def matmul_flops() -> float:
    """Floating-point operations that a float32 matrix product does here in a second."""
    size = 4096 if tf.config.get_visible_devices("GPU") else 512
    matrix = tf.random.uniform((size, size))
    return fastest(lambda: tf.linalg.matmul(matrix, matrix)[0, 0].numpy(), size)


# --- the files of a checkpoint ---


def save_variables(part: Path, name: str, variables: Mapping[str, Any]) -> None:
    """Write variables into a folder, as one checkpoint of TensorFlow's with this name."""
    every = variables.items()  # a variable that is made in a strategy's scope would be broadcast
    kept = {k: v if isinstance(v, tf.Variable) else tf.Variable(v) for k, v in every}
    tf.train.Checkpoint(**kept).write(str(part / name))


def load_variables(checkpoint: Path, part: str = "*") -> dict[str, np.ndarray]:
    """The values of all variables in a part of a checkpoint, by default in all, by name."""
    files = (str(index.with_suffix("")) for index in checkpoint.glob(f"{part}/*.index"))
    return {
        name.removesuffix(VALUE): reader.get_tensor(name)
        for reader in map(tf.train.load_checkpoint, files)
        for name in reader.get_variable_to_shape_map()
    }


def named(slots: Iterable[Iterable[Any]]) -> dict[str, Any]:
    """Variables by name. Each of the `slots` has one for each variable of the model that is
    trained: the first these themselves, the others those of the optimizer's state.
    """
    every = ((i, k, each) for k, slot in enumerate(slots) for i, each in enumerate(slot))
    return {f"variable {i} slot {k}": each for i, k, each in every}


# --- training steps ---


class KerasStep(TrainingStep):
    """A training step of the workload's Keras model, whose variables lie where the scope of the
    current strategy places them.

    `variables` are those that are trained; `loss_of` is the workload's loss (`models.loss_of`).
    """

    matmul_flops = staticmethod(matmul_flops)

    def __init__(self, task: Task) -> None:
        spec, workload = task.spec, workloads.load(task.spec)
        self.model = models.build(workload, spec.seed, spec.precision)
        self.variables = [each.value for each in self.model.trainable_variables]
        self.loss_of, self.optimizer = models.loss_of(workload), Optimizer(spec)
        super().__init__(task, [("all", device) for device in KerasStep.variables_on(self)])

    def variables_on(self) -> dict[str, int]:
        return bytes_on(models.every_copy(weight.value for weight in self.model.weights))

    def tensors(self, indices: np.ndarray) -> Any:
        return mapped(tf.constant, self.workload.train.take(indices))

    def outputs(self, inputs: Any) -> Any:
        return models.outputs_of(self.model, inputs)

    def weights(self) -> list[np.ndarray]:
        return models.weights_of(self.model)

    def named_weights(self) -> dict[str, np.ndarray]:
        """This process's own copy of all weights but the states of random numbers. A name is a
        number and a path, as two weights may have the same path.
        """
        every = enumerate(self.model.weights)
        return {f"{number} {each.path}": first(each.value).numpy() for number, each in every}


class ReplicasStep(KerasStep):
    """A training step of the replicas that this process has under a strategy of tf.distribute.

    `state` holds the optimizer's variables for each trained variable; `count` counts the updates;
    in float16, `scaling` holds the loss scale. All lie wherever the model does. With `overlaps` a
    bucket of gradients may leave before all are there; a single one cannot.
    """

    def __init__(self, task: Task, strategy: Any) -> None:
        super().__init__(task)
        self.strategy: Any = strategy
        self._compiled: Any = None
        self.overlaps = self.spec.overlap and self.spec.bucket_mb is not None
        # The part of the device time that passes in the graph, while buckets travel: that of the
        # backward pass, or of the last one if a batch is computed in parts.
        self.spread = BACKWARD / self.spec.accumulate * (self.overlaps and self.spec.device_ms > 0)
        self.kept = 0.0  # seconds of this step's device time that pass in the graph
        self.errors: list[Exception] = []  # of our exchange: TensorFlow makes another error of it
        self.group = task.group() if task.schedule else None
        self.state = [self.optimizer.state_of(each) for each in self.variables]
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.scaling = tf.Variable(self.scale.value, trainable=False) if self.scale.on else None
        self.seen: list[Any] = []  # in the graph: what was seen of the mean gradients
        if self.apart or self.model.non_trainable_variables:
            self.writers = [f"worker:{k}" for k in range(self.spec.workers)]
        # The replicas of all tasks, which are built alike, get seeds of their own, for dropout and
        # the like. A state counts its draws, so each step has other random numbers.
        for name, state in self._own():
            if name.startswith("seed"):
                share = int(name.split()[-1])
                state.assign([models.seed_of(state.numpy(), self.spec.seed, share), 0])

    # --- what it holds ---

    def state_on(self) -> dict[str, int]:
        return bytes_on(models.every_copy(itertools.chain.from_iterable(self.state)))

    def note(self, **of_a_replica: int) -> None:
        """Note bytes of memory, by kind, that each replica of this process holds."""
        self.census.note(**{kind: self.spec.replicas * n for kind, n in of_a_replica.items()})

    def memory(self) -> dict[str, int]:
        """Variables that are not trained count as buffers, frozen weights too."""
        kinds, others = super().memory(), self.model.non_trainable_weights
        untrained = bytes_of(models.every_copy(variable.value for variable in others))
        kinds["parameters"] -= untrained
        kinds["buffers"] += untrained
        return kinds

    def _own(self) -> Iterator[tuple[str, Any]]:
        """The copies of the variables that are not trained, by name."""
        for i, variable in enumerate(self.model.non_trainable_variables):
            what = "seed" if models.is_seed(variable) else "other"
            before = self.task.index * self.spec.replicas
            for replica, copy in enumerate(copies_of(variable.value), before):
                yield f"{what} {i} of {replica}", copy

    def save_state(self, part: Path) -> None:
        """Of several workers the first writes what all hold alike, each one what it alone holds."""
        if self.task.index == 0 or self.apart:
            slots = [self.variables, *zip(*self.state, strict=True)]
            save_variables(part, ALIKE, named([map(first, slot) for slot in slots]))
        if self.task.name in self.writers:
            save_variables(part, OWN, dict(self._own()))

    def load_state(self, part: Path) -> None:
        kept = load_variables(part.parent, part.name if self.apart else "*")
        for name, variable in named([self.variables, *zip(*self.state, strict=True)]).items():
            assign(variable, kept[name])
        assign(self.count, self.updates)
        if self.scaling is not None:
            assign(self.scaling, self.scale.value)
        for name, copy in self._own():
            # parameter servers have no seeds
            value = kept.get(name, kept.get(f"{name.partition(' of ')[0]} of 0", copy.numpy()))
            if name.startswith("seed"):
                value[0] = copy[0].numpy()  # and as many draws
            copy.assign(value)

    # --- a step ---

    def tensors(self, indices: np.ndarray) -> Any:
        """Give each replica of the process an equal part of the examples."""
        if self.spec.replicas == 1:
            return super().tensors(indices)
        parts, tensors = np.split(indices, self.spec.replicas), super().tensors
        distribute = self.strategy.experimental_distribute_values_from_function
        return distribute(lambda context: tensors(parts[context.replica_id_in_sync_group]))

    @contextmanager
    def emulating(self) -> Iterator[None]:
        """Let the device time pass before the graph, except for what is `kept` for the graph."""
        self.kept = self.spread * self._owed
        self.sleep(self._owed - self.kept)
        yield

    def report(self, loss: Any, *stamps: Any) -> Any:
        """In the graph: what a `Program` returns."""
        mean = tf.cast(models.mean_of(loss), tf.float64)
        return tf.concat([tf.stack([mean, *stamps]), *self.seen], 0)

    def run(self, program: Any, inputs: Any, targets: Any) -> float:
        """Run the graph that computes, averages and applies, and record each; the loss."""
        with self.computing():
            if self._compiled is None:  # a call of the tf.function would look for it in every step
                tf.random.set_seed(self.drawn)  # which the graph keeps
                self._compiled = program.get_concrete_function(inputs, targets)
            self.task.enter("the graph")
            try:
                loss, *rest = self._compiled(inputs, targets).numpy().tolist()
            except tf.errors.OpError as error:
                raise self.errors[0] if self.errors else error from None
            offset = clock_offset()
            count = len(rest) - 2 * self.scale.on
            *stamps, applied = (stamp + offset for stamp in rest[:count])
            computed, reduced = stamps[::2], stamps[1::2]
            self._computed = computed[-1]
            if self.strategy.num_replicas_in_sync > 1:
                self._beside = list(zip(computed, reduced, strict=True))
        self._record("apply", reduced[-1], applied)
        self.adjust_scale(*rest[count:])
        self.updated()
        return float(loss)

    def adjust_scale(self, *of_gradients: float) -> None:
        """In float16, record what was `seen` of the gradients, and let the graph multiply the loss
        by the scale of the next step.
        """
        if self.scaling is not None:
            self.finite(*of_gradients)
            assign(self.scaling, self.scale.value)


def assign(variable: Any, value: Any) -> None:
    """Assign a value to all copies of a variable that this process holds."""
    for copy in copies_of(variable):
        copy.assign(value)
