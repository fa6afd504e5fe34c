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

Gradients become means by TensorFlow's all-reduce or one of ours, all at once or in buckets that
leave while others are still being computed. A graph has no order but that of its inputs. So an
all-reduce starts as soon as its own gradients are there, and the backward pass, which makes those
of the last layers first, goes on beside it. The all-reduces of a graph keep the order of the
program: in TensorFlow each waits for a token from the one before, so that all workers are in the
same one. One bucket travels at a time, as in PyTorch.

TensorFlow cuts buckets itself if its `CommunicationOptions` have `bytes_per_pack`. Here they are
cut before that, by the same rule, so that each can be timed, and so that an all-reduce of ours has
the same buckets.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow import models
from course_lib.strategies.tensorflow.models import backward_shares, seen
from course_lib.strategies.tensorflow.steps import ReplicasStep, after, free, hold, pack, unpack

MEAN = tf.distribute.ReduceOp.MEAN

Gradients = Callable[[Any, Any], list[Any]]
"""A replica's inputs and targets -> its loss and, after it, the gradient of each variable."""

Program = Callable[[Any, Any], Any]
"""A tf.function of inputs and targets; it returns a float64 vector [loss, computed, reduced,
applied]: the mean loss over the global batch, and the wall-clock times at which the gradients,
their means and the new variables were ready. With several buckets of gradients, each has its times
`computed` and `reduced`. In float16 what was `seen` of the gradients comes last."""


# --- the means of gradients ---


def all_at_once(training: ReplicasStep, values: list[Any], places: list[Any]) -> Any:
    """The strategy's own way: one call for all values, so that it packs them into one message. The
    mean of a gradient goes to wherever its variable lives.
    """
    pairs = list(zip(values, places, strict=True))
    return training.strategy.extended.batch_reduce_to(MEAN, pairs)


def scheduled_mean(training: ReplicasStep, values: list[Any], places: list[Any]) -> list[Any]:
    """The schedule of the run, in place of the strategy's own way.

    The values of a bucket travel as one array. The graph calls back into Python for the exchange,
    which works on the CPU.
    """
    schedule, group = training.task.schedule, training.group
    assert schedule and group

    def exchange(mine: np.ndarray) -> np.ndarray:
        try:
            shared = group.buffer(schedule, mine.size, mine.dtype)
            np.copyto(shared, mine)
            group.execute_buffer(schedule, mine.size, mine.dtype)
        except Exception as error:
            training.errors.append(error)
            raise
        return shared / np.float32(schedule.workers)

    flat = pack(values)
    means = tf.ensure_shape(tf.numpy_function(exchange, [flat], tf.float32), flat.shape)
    return unpack(means, values)


def buckets(sizes: Sequence[int], limit: float | None) -> list[list[int]]:
    """Which of a loss and the gradients travel together, by their places among `sizes`, in bytes.
    The last ones travel first, as the backward pass makes them.

    A bucket is full once it has more than `limit` MiB; None: it never is. No gradient is split, and
    the loss, which is the first, starts no bucket: a message of its own would make each step
    longer.
    """
    cut: list[list[int]] = [[]]
    for place in reversed(range(len(sizes))):
        if place and limit and sum(sizes[other] for other in cut[-1]) > limit * 2**20:
            cut.append([])
        cut[-1].insert(0, place)
    return cut


def averaged(training: ReplicasStep, values: list[Any], computed: Any) -> tuple[Any, Any]:
    """The means of `values`, which are a loss and the gradients of all variables, ready at the time
    `computed`; and two times for each bucket: when it was full, and when its means were ready.

    Where device time is emulated, a bucket is held back until the part of the backward pass that
    makes its gradients is over: by its share of the floating-point operations.
    """
    spec, variables = training.spec, training.variables
    average = scheduled_mean if training.group else all_at_once
    shares = [0.0, *backward_shares(values[0], values[1:])] if training.spread else []
    sizes = [0] + [each.shape.num_elements() * each.dtype.size for each in variables]
    places = [variables[0], *variables]
    means: dict[int, Any] = {}
    stamps = []
    for bucket in buckets(sizes, spec.bucket_mb):
        mine = [values[place] for place in bucket]
        if shares:
            computed = device_time(training, computed, sum(shares[place] for place in bucket))
            with tf.device(mine[0].device):
                mine = hold(mine, computed)
        full = after(mine) if training.overlaps else computed
        reduced = average(training, mine, [places[place] for place in bucket])
        stamps += [full, after(reduced)]
        if spec.bucket_mb:
            # Without an operation in between, Grappler, which optimizes graphs, folds the division
            # of a mean into the learning rate: the time would be that of the folded constant.
            reduced = [tf.ensure_shape(mean, mean.shape) for mean in reduced]
        means.update(zip(bucket, reduced, strict=True))
    return [means[place] for place in range(len(values))], stamps


def device_time(training: ReplicasStep, begun: Any, share: float) -> Any:
    """In the graph: sleep, from `begun` on, for a share of the time that is `kept`, and return the
    time after that.
    """

    def sleep(begun: np.ndarray) -> float:
        training.sleep(share * training.kept)
        return time.time()

    return free(tf.numpy_function(sleep, [begun], tf.float64))


# --- the step ---


def gradients_of(step: ReplicasStep) -> Gradients:
    """The function that a replica of the model computes."""
    of_part = partial(models.loss_and_gradients, step.model, step.loss_of, step.note)
    # the scale is a variable, so that a compiled graph follows it
    return partial(models.in_parts, step.spec.accumulate, partial(of_part, scale=step.scaling))


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
    every = zip(training.variables, means, training.state, strict=True)
    return [counted, *(update(variable, apply, args=(mean, *its)) for variable, mean, its in every)]


def make_step(training: ReplicasStep, compiler: Any = lambda gradients: gradients) -> Program:
    """The training step as one graph.

    `compiler` may compile the replica's part of the graph, which is `gradients_of`, in another way.
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
        (loss, *means), stamps = averaged(training, values, computed)
        # A variable is updated as soon as its own mean is there. To hold back all updates until the
        # last mean is there would take a message for every operation on another device.
        applied = after([*descend(training, loss, means), *stamps])
        return training.report(models.first(loss), *stamps, applied)

    return step


def train(task: Task, strategy: Any, make: Callable[..., Program] = make_step) -> dict[str, Any]:
    """Train the run's workload under `strategy`.

    `make` builds the program of a step. Returns the task's result (see `TrainingStep.result`); the
    digest is that of this process's first copy of the parameters.
    """
    with strategy.scope():
        step = ReplicasStep(task, strategy)
        program = make(step)
        while step.begin():
            inputs, targets = step.read(task.index, task.spec.workers)
            step.done(step.run(program, inputs, targets))
        return step.result()
