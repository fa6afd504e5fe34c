"""The synchronous training step in TensorFlow, the same for every strategy that averages gradients.

A step has three parts, and the strategies differ only in the devices and processes in which each of
them happens:

    strategy.run                gradients of a share of the batch, on each replica
    extended.batch_reduce_to    their mean, wherever the variables live
    extended.update             variable -= learning_rate * mean, wherever the variables live

All three are one TensorFlow graph; stamps in it tell the trace when each part was over. A process
may hold one replica or several, on a device each; the batch is cut into as many shares as there are
replicas in all processes together. Source:
tensorflow.org/tutorials/distribute/multi_worker_with_ctl.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.steps import TrainingStep
from course_lib.strategies.tensorflow.steps import (
    WallClock,
    accuracy,
    after,
    build,
    bytes_on,
    hold,
    loss_of,
    pack,
    unpack,
    variables_of,
    weights_of,
)

MEAN = tf.distribute.ReduceOp.MEAN

Gradients = Callable[[Any, Any], list[Any]]
"""A replica's images and labels -> its loss and, after it, the gradient of each variable."""

Average = Callable[[Any, list[Any], list[Any]], list[Any]]
"""The strategy, a loss with its gradients, and the variables -> the means over all replicas."""

Program = Callable[[Any, Any], Any]
"""A tf.function of images and labels; it returns a float64 vector [loss, computed, reduced,
applied]: the mean loss over the global batch, and the wall-clock times at which the gradients,
their mean and the new variables were ready."""


def gradients_of(model: Any) -> Gradients:
    """The function that a replica of the model computes."""
    variables = variables_of(model)

    def gradients(images: Any, labels: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            # they are float32, unless the model computes in bfloat16
            loss = loss_of(tf.cast(logits, tf.float32), labels)
        return [loss, *tape.gradient(loss, variables)]

    return gradients


def descend(strategy: Any, variables: list[Any], means: list[Any], rate: float) -> list[Any]:
    """variable -= rate * mean, on every device that holds a copy of it."""

    def apply(variable: Any, mean: Any) -> Any:
        return variable.assign_sub(rate * mean, read_value=False)

    return [
        strategy.extended.update(variable, apply, args=(mean,))
        for variable, mean in zip(variables, means, strict=True)
    ]


def all_at_once(strategy: Any, values: list[Any], variables: list[Any]) -> list[Any]:
    """The strategy's own way: one call for everything, so that it may pack small tensors into one
    message. The mean of a gradient goes to wherever its variable lives.

    The loss goes along, to the first variable: a message of its own would make each step longer.
    """
    places = [variables[0], *variables]
    means: list[Any] = strategy.extended.batch_reduce_to(
        MEAN, list(zip(values, places, strict=True))
    )
    return means


def scheduled_mean(task: Task) -> Average:
    """The schedule of the run, in place of the strategy's own way.

    All tensors travel as one array. The graph calls back into Python for the exchange, which works
    on the CPU.
    """
    assert task.schedule
    schedule, group = task.schedule, task.group()

    def exchange(mine: np.ndarray) -> np.ndarray:
        try:
            shared = group.buffer(schedule, mine.size, mine.dtype)
            np.copyto(shared, mine)
            group.execute_buffer(schedule, mine.size, mine.dtype)
        except Exception as error:
            _errors.append(error)
            raise
        return shared / np.float32(schedule.workers)

    def mean(strategy: Any, values: list[Any], variables: list[Any]) -> list[Any]:
        flat = pack(values)
        means = tf.ensure_shape(tf.numpy_function(exchange, [flat], tf.float32), flat.shape)
        return unpack(means, values)

    return mean


_errors: list[Exception] = []  # what went wrong in an exchange; TensorFlow makes it another error


def make_step(
    strategy: Any,
    model: Any,
    learning_rate: float,
    average: Average = all_at_once,
    compiler: Callable[[Gradients], Gradients] = lambda gradients: gradients,
) -> Program:
    """The training step as one graph.

    `average` forms the means over all replicas; `compiler` may compile the replica's part of the
    graph, which is `gradients_of`, in another way.
    """
    variables, gradients_in = variables_of(model), compiler(gradients_of(model))

    def compute(images: Any, labels: Any) -> tuple[Any, list[Any]]:
        values = gradients_in(images, labels)
        computed = after(values)
        return computed, hold(values, computed)

    # No loops or conditions on tensors need translating, and without a search for them (autograph)
    # it is compiled in half the time.
    @tf.function(autograph=False)
    def step(images: Any, labels: Any) -> Any:
        computed, values = strategy.run(compute, args=(images, labels))
        loss, *means = average(strategy, values, variables)
        reduced = after([loss, *means])
        # A variable is updated as soon as its own mean is there. To hold all back until `reduced`
        # would take a message for every operation on another device.
        applied = after([*descend(strategy, variables, means, learning_rate), reduced])
        # by the last replica of this process
        computed = tf.reduce_max(strategy.experimental_local_results(computed))
        loss = strategy.experimental_local_results(loss)[0]
        return tf.stack([tf.cast(loss, tf.float64), computed, reduced, applied])

    return step


def train(
    task: Task, strategy: Any, make: Callable[[Any, Any, float], Program] = make_step
) -> dict[str, Any]:
    """Train the run's workload under `strategy`.

    `make` builds the step of a strategy, a model and a learning rate. Returns the task's result
    (see `outcome`); the digest is that of this process's first copy of the parameters.
    """
    with strategy.scope():
        step = ReplicasStep(task, strategy)
        program = make(strategy, step.model, step.rate)
        while step.begin():
            images, labels = step.read(task.index, task.spec.workers)
            step.done(step.run(program, images, labels))
        return step.result()


class ReplicasStep(TrainingStep):
    """A training step of the replicas that this process has under a strategy of tf.distribute."""

    def __init__(self, task: Task, strategy: Any) -> None:
        self.strategy = strategy
        self.model = build(workloads.load(task.spec), task.spec.seed)
        self._wall = WallClock()
        self._compiled: Any = None
        super().__init__(task, [("all", device) for device in self.variables_on()])

    def variables_on(self) -> dict[str, int]:
        copies = map(self.strategy.experimental_local_results, variables_of(self.model))
        return bytes_on(itertools.chain.from_iterable(copies))

    def weights(self) -> list[np.ndarray]:
        return weights_of(self.model)

    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        """Where the process has several replicas, each gets an equal part of the examples."""

        def tensors(part: np.ndarray) -> tuple[Any, Any]:
            return tf.constant(self.workload.x_train[part]), tf.constant(
                self.workload.y_train[part]
            )

        if self.spec.replicas == 1:
            return tensors(indices)
        parts = np.split(indices, self.spec.replicas)
        values: tuple[Any, Any] = self.strategy.experimental_distribute_values_from_function(
            lambda context: tensors(parts[context.replica_id_in_sync_group])
        )
        return values

    def accuracy(self) -> float:
        return accuracy(self.model, self.workload)

    def run(self, program: Any, images: Any, labels: Any) -> float:
        """Run the graph that computes, averages and applies, and record each; the loss."""
        with self.computing():
            # a call of the tf.function itself would look for what it compiled, in every step
            self._compiled = self._compiled or program.get_concrete_function(images, labels)
            try:
                loss, *stamps = self._compiled(images, labels).numpy().tolist()
            except tf.errors.OpError as error:
                raise _errors[0] if _errors else error from None
            offset = self._wall.offset()
            self._computed, reduced, applied = (stamp + offset for stamp in stamps)
        if self.strategy.num_replicas_in_sync > 1:
            self._record("reduce", self._end, reduced)
        self._record("apply", reduced, applied)
        self.updated()
        return float(loss)
