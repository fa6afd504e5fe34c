"""The synchronous training step in TensorFlow, the same for every strategy that averages gradients.

A step has three parts, and the strategies differ only in the devices and processes in which each of
them happens:

    strategy.run                gradients of a share of the batch, on each replica
    extended.batch_reduce_to    their mean, wherever the variables live
    extended.update             variable -= learning_rate * mean, or what the run's optimizer makes
                                of the mean, wherever the variables live

All three are one TensorFlow graph; stamps in it tell the trace when each part was over. A process
may hold one replica or several, on a device each; the batch is cut into as many shares as there are
replicas in all processes together. Source:
tensorflow.org/tutorials/distribute/multi_worker_with_ctl.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.steps import TrainingStep
from course_lib.strategies.tensorflow import checkpoints, models
from course_lib.strategies.tensorflow.exchange import (
    BACKWARD,
    Average,
    all_at_once,
    averaged,
    errors,
    overlaps,
)
from course_lib.strategies.tensorflow.memory import bytes_of, gradient
from course_lib.strategies.tensorflow.optimizer import Optimizer
from course_lib.strategies.tensorflow.precision import seen
from course_lib.strategies.tensorflow.steps import WallClock, after, bytes_on, hold, matmul_flops
from course_lib.workloads.trees import mapped

Gradients = Callable[[Any, Any], list[Any]]
"""A replica's inputs and targets -> its loss and, after it, the gradient of each variable."""

Program = Callable[[Any, Any], Any]
"""A tf.function of inputs and targets; it returns a float64 vector [loss, computed, reduced,
applied]: the mean loss over the global batch, and the wall-clock times at which the gradients,
their means and the new variables were ready. With several buckets of gradients, each has its times
`computed` and `reduced`. In float16 what was `seen` of the gradients comes last."""


def gradients_of(step: ReplicasStep) -> Gradients:
    """The function that a replica of the model computes."""
    model = step.model
    scale = step.scaling  # a variable, so that a compiled graph follows it

    def gradients_of_part(inputs: Any, targets: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            outputs = model(inputs, **models.mode(model, training=True))
            loss = models.total(step.loss_of, outputs, targets, model.losses)
        return [loss, *gradient(tape, loss, step.variables, step.note, scale)]

    return partial(models.in_parts, step.spec.accumulate, gradients_of_part)


def descend(training: ReplicasStep, loss: Any, means: list[Any]) -> list[Any]:
    """Update each variable by its mean gradient, on every device that holds a copy of it, as the
    run's optimizer does: variable -= rate * mean, if that is sgd. If the `loss` of the global batch
    is a sum and a count, the means are divided by the count. In float16 they are divided by the
    loss scale; if one is infinite or NaN, nothing changes.
    """
    update, optimizer = training.strategy.extended.update, training.optimizer
    count = training.count
    # counted in a variable beside the others, so that nothing has to be given to the graph
    updates = models.first(count).read_value() if count is not None else 0
    now = optimizer.at(updates, updates)
    mine = [models.first(mean) for mean in means]
    divisor, finite = models.count_of(models.first(loss)), None
    if training.scaling is not None:
        training.seen, scale = [seen(mine)], models.first(training.scaling).read_value()
        divisor = scale if divisor is None else scale * divisor
        finite = tf.math.is_finite(training.seen[0][0])
    factor = optimizer.factor(mine, divisor)

    def apply(variable: Any, mean: Any, *state: Any) -> Any:
        mean = mean if factor is None else factor * mean
        return optimizer.apply(variable, mean, state, now, finite)

    done = [
        update(variable, apply, args=(mean, *state))
        for variable, mean, state in zip(training.variables, means, training.state, strict=True)
    ]
    if count is not None:
        more = 1 if finite is None else tf.cast(finite, tf.int64)
        done.append(update(count, lambda mine: mine.assign_add(more, read_value=False)))
    return done


def make_step(
    training: ReplicasStep,
    average: Average = all_at_once,
    compiler: Callable[[Gradients], Gradients] = lambda gradients: gradients,
) -> Program:
    """The training step as one graph.

    `average` forms the means over all replicas; `compiler` may compile the replica's part of the
    graph, which is `gradients_of`, in another way.
    """
    strategy = training.strategy
    gradients_in = compiler(gradients_of(training))

    def compute(inputs: Any, targets: Any) -> tuple[Any, list[Any]]:
        values = gradients_in(inputs, targets)
        computed = after(values)
        return computed, values if overlaps(training.spec) else hold(values, computed)

    # No loops or conditions on tensors need translating, and without a search for them (autograph)
    # it is compiled in half the time.
    @tf.function(autograph=False)
    def step(inputs: Any, targets: Any) -> Any:
        computed, values = strategy.run(compute, args=(inputs, targets))
        # by the last replica of this process
        computed = tf.reduce_max(models.copies_of(computed))
        (loss, *means), stamps = averaged(training, average, values, computed)
        # A variable is updated as soon as its own mean is there. To hold back all updates until the
        # last mean is there would take a message for every operation on another device.
        applied = after([*descend(training, loss, means), *stamps])
        return training.told(models.first(loss), *stamps, applied)

    return step


def train(
    task: Task, strategy: Any, make: Callable[[ReplicasStep], Program] = make_step
) -> dict[str, Any]:
    """Train the run's workload under `strategy`.

    `make` builds the program of a step. Returns the task's result (see `outcome`); the digest is
    that of this process's first copy of the parameters.
    """
    with strategy.scope():
        step = ReplicasStep(task, strategy)
        program = make(step)
        while step.begin():
            inputs, targets = step.read(task.index, task.spec.workers)
            step.done(step.run(program, inputs, targets))
        return step.result()


class ReplicasStep(TrainingStep):
    """A training step of the replicas that this process has under a strategy of tf.distribute.

    `loss_of` is the workload's loss, see `models.loss_of`. `variables` are those of the model that
    are trained, `state` holds the optimizer's variables for each of them; `count` counts the steps
    done, if an update depends on that. In float16, `scaling` holds the loss scale.
    """

    def __init__(self, task: Task, strategy: Any) -> None:
        self.strategy = strategy
        self.model = models.build(workloads.load(task.spec), task.spec.seed, task.spec.precision)
        self.variables = models.variables_of(self.model)
        self._wall = WallClock()
        self._compiled: Any = None
        super().__init__(task, [("all", device) for device in self.variables_on()])
        # The part of the device time that passes in the graph, while buckets travel: that of the
        # backward pass, or of the last one if a batch is computed in parts.
        in_graph = overlaps(self.spec) and self.spec.device_ms > 0
        self.spread = BACKWARD / self.spec.accumulate if in_graph else 0.0
        self.kept = 0.0  # seconds of this step's device time that pass in the graph
        self.loss_of = models.loss_of(self.workload)
        self.optimizer = Optimizer(self.spec)
        self.state = [self.optimizer.state_of(each) for each in self.variables]
        counts = self.optimizer.counts
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False) if counts else None
        self.scaling = tf.Variable(self.scale.value, trainable=False) if self.scale.on else None
        self.seen: list[Any] = []  # in the graph: what was seen of the mean gradients
        if self.model.non_trainable_variables:
            self.writers = [f"worker:{k}" for k in range(self.spec.workers)]
        self._draw_apart()

    def _draw_apart(self) -> None:
        """Give the replicas of all tasks seeds of their own, for dropout and the like.

        All are built with the same ones. A state counts its draws, so each step has other random
        numbers, and a run that is repeated has the same.
        """
        for variable in filter(models.is_seed, self.model.non_trainable_variables):
            for replica, state in enumerate(models.copies_of(variable.value)):
                share = self.task.index * self.spec.replicas + replica
                state.assign([models.seed_of(state.numpy(), self.spec.seed, share), 0])

    def variables_on(self) -> dict[str, int]:
        return bytes_on(models.every_copy(variable.value for variable in self.model.weights))

    def state_on(self) -> dict[str, int]:
        return bytes_on(models.every_copy(itertools.chain.from_iterable(self.state)))

    def note(self, **of_a_replica: int) -> None:
        """Note bytes of memory, by kind, that each replica of this process holds."""
        self.census.note(**{kind: self.spec.replicas * n for kind, n in of_a_replica.items()})

    def held(self) -> dict[str, int]:
        """Variables that are not trained count as buffers, frozen weights too."""
        held, others = super().held(), self.model.non_trainable_weights
        untrained = bytes_of(models.every_copy(variable.value for variable in others))
        held["parameters"] -= untrained
        held["buffers"] += untrained
        return held

    save_state, load_state = checkpoints.save, checkpoints.load

    def weights(self) -> list[np.ndarray]:
        return models.weights_of(self.model)

    def named_weights(self) -> dict[str, np.ndarray]:
        return models.named_weights_of(self.model)

    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        """Where the process has several replicas, each gets an equal part of the examples."""

        def tensors(part: np.ndarray) -> tuple[Any, Any]:
            inputs, targets = self.workload.train.take(part)
            return mapped(tf.constant, inputs), mapped(tf.constant, targets)

        if self.spec.replicas == 1:
            return tensors(indices)
        parts = np.split(indices, self.spec.replicas)
        values: tuple[Any, Any] = self.strategy.experimental_distribute_values_from_function(
            lambda context: tensors(parts[context.replica_id_in_sync_group])
        )
        return values

    def outputs(self, inputs: Any) -> Any:
        return models.outputs_of(self.model, inputs)

    def matmul_flops(self) -> float:
        return matmul_flops()

    @contextmanager
    def emulating(self) -> Iterator[None]:
        """Let the device time pass before the graph, except for what is `kept` for the graph."""
        self.kept = self.spread * self._owed
        self.sleep(self._owed - self.kept)
        yield

    def told(self, loss: Any, *stamps: Any) -> Any:
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
                loss, *found = self._compiled(inputs, targets).numpy().tolist()
            except tf.errors.OpError as error:
                raise errors[0] if errors else error from None
            offset = self._wall.offset()
            count = len(found) - 2 * self.scale.on
            *stamps, applied = (stamp + offset for stamp in found[:count])
            computed, reduced = stamps[::2], stamps[1::2]
            self._computed = computed[-1]
            if self.strategy.num_replicas_in_sync > 1:
                self._beside = list(zip(computed, reduced, strict=True))
        self._record("apply", reduced[-1], applied)
        if self.scale.on:
            self.finite(*found[count:])
            for scaling in models.copies_of(self.scaling):
                scaling.assign(self.scale.value)
        self.updated()
        return float(loss)
