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

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow import models
from course_lib.strategies.tensorflow.exchange import Average, all_at_once, averaged
from course_lib.strategies.tensorflow.graphs import gradient
from course_lib.strategies.tensorflow.optimizer import seen
from course_lib.strategies.tensorflow.replicas import ReplicasStep
from course_lib.strategies.tensorflow.steps import after, hold

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
    # counted in a variable beside the others, so that nothing has to be given to the graph
    updates = models.first(training.count).read_value()
    now = optimizer.at(updates, updates)
    mine = [models.first(mean) for mean in means]
    divisor, finite = models.count_of(models.first(loss)), None
    if training.scaling is not None:
        training.seen, scale = [seen(mine)], models.first(training.scaling).read_value()
        divisor = scale if divisor is None else scale * divisor
        finite = tf.math.is_finite(training.seen[0][0])

    def apply(variable: Any, mean: Any, *state: Any) -> Any:
        mean = mean if divisor is None else mean / divisor
        return optimizer.apply(variable, mean, state, now, finite)

    one = 1 if finite is None else tf.cast(finite, tf.int64)
    counted = update(training.count, lambda count: count.assign_add(one, read_value=False))
    done = [
        update(variable, apply, args=(mean, *state))
        for variable, mean, state in zip(training.variables, means, training.state, strict=True)
    ]
    return [counted, *done]


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
        return computed, values if training.overlaps else hold(values, computed)

    # No loops or conditions on tensors need translating, and without a search for them (autograph)
    # it is compiled in half the time.
    @tf.function(autograph=False)
    def step(inputs: Any, targets: Any) -> Any:  # of each replica: (batch / replicas, ...)
        computed, values = strategy.run(compute, args=(inputs, targets))
        # by the last replica of this process
        computed = tf.reduce_max(models.copies_of(computed))
        # the loss () or (2,), and a mean shaped like each variable
        (loss, *means), stamps = averaged(training, average, values, computed)
        # A variable is updated as soon as its own mean is there. To hold back all updates until the
        # last mean is there would take a message for every operation on another device.
        applied = after([*descend(training, loss, means), *stamps])
        return training.report(models.first(loss), *stamps, applied)

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
