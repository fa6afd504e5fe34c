"""parameter_server: the variables live on parameter servers (ps). Workers pull them, compute
gradients and push those back, each at its own pace.

The chief runs the program and computes no gradient. It builds a step as one graph, and hands that
out once for each share of a batch, to whichever worker is free. TensorFlow cuts the graph at the
borders between worker and ps and runs each part there. Values travel directly between the two:

    pull       ps -> worker    versions and values of the variables
    compute    worker          gradients of a share of a batch
    push       worker -> ps    to each ps the gradients of its variables
    apply      ps              values -= learning_rate * gradients, or what the run's optimizer
                               makes of them, whose state is here too; and one more version

No worker waits for another: a ps applies every gradient as soon as it is there. So while a worker
computes, others change the variables that it has read, and its own gradient is stale when it
arrives. Staleness counts these changes: with w workers of equal speed about w - 1, if computing is
nearly all of a step. A step is w updates here, each from 1/w of the batch with the full learning
rate: the model moves w times for a batch. A slow worker gets fewer shares and holds up no one.

When a worker is lost, the coordinator gives its share to another one, and sends it the graphs again
when it is back (`max_restarts`). It may have pushed its gradients before it could say so; a ps
knows the shares whose gradients it has (`Applier`). When a ps is lost, its shard is gone, and
all tasks start again from the last checkpoint. While a worker is paused or cut off, no connection
breaks: the others take all other shares, and the one that it has waits for it.

Source: tf.distribute.ParameterServerStrategy, tf.distribute.coordinator.ClusterCoordinator; Dean et
al., "Large Scale Distributed Deep Networks", NIPS 2012.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.tensorflow import models, server
from course_lib.strategies.tensorflow.models import Optimizer, gradient
from course_lib.strategies.tensorflow.server import ServersStep, Shard, connect, serve
from course_lib.strategies.tensorflow.steps import after, hold

DRAWS = 1000
"""So many random numbers of a layer are told apart in a step."""

Push = Callable[[Any, Any, Any, Any], Any]
"""In the graph, `push(number, share, gradients, count)` sends a ps its piece of the mean gradients
of a share of step `number`, one vector, and what they are the mean over. Returns float64 [version,
count, begun, ended]: the version that the update made, how many workers' gradients went into it,
and when it began and ended."""


def worker(task: Task) -> None:
    """Wait for graphs from the chief, and run them: gradients of a share of a batch."""
    serve(task)


def ps(task: Task) -> None:
    """Hold a shard of the variables; run the parts of the chief's graphs that apply gradients."""
    serve(task)


def chief(task: Task) -> dict[str, Any]:
    """Hand out all steps, and record what became of them."""
    step = connect(task)
    appliers = [Applier(shard, task.spec, step.optimizer) for shard in step.shards]
    return server.train(step, make_step(step, [each.push for each in appliers]))


def make_step(step: ServersStep, pushes: Sequence[Push]) -> Any:
    """The program of a step for one share: `program([step, share, examples read ahead])`, which
    returns a `report`. `pushes`: one for each ps.

    `after(tensors)` is the time when all of them are ready; `hold(tensors, time)` are the tensors,
    not to be used before that time. So each phase starts when the one before it has ended.
    """
    own_data = step.spec.sampler == "per_worker"  # a worker's share is that with its own number

    @tf.function(autograph=False)  # no loops or conditions on tensors need translating
    def program(work: Any) -> Any:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        number, share, ahead = tf.unstack(work)
        share = tf.cast(worker, tf.int64) if own_data else share

        begun = tf.timestamp()
        batch = server.examples(step.spec, tf.stack([number, share, ahead]))  # (examples, ...) each
        versions, values = pull(step)
        others = pull_others(step, number, share)
        pulled = after([begun, batch, *values, *others])

        loss, gradients, changed = compute(step, hold(values, pulled), others, batch)
        computed = server.device_time(number, pulled, after([loss, *gradients]))

        with tf.control_dependencies(push_others(step, share, others, changed)):
            gradients = hold(gradients, computed)
        total, count = tf.unstack(loss)
        pieces = zip(pushes, step.cut(gradients), strict=True)  # for each ps (parameters / ps,)
        updates = [push(number, share, piece, count) for push, piece in pieces]

        times = [begun, pulled, computed, after(updates)]
        return server.report([number, share, worker, total, count, *times, *versions], updates)

    return program.get_concrete_function(tf.TensorSpec([3], tf.int64))


def pull(step: ServersStep) -> tuple[list[Any], list[Any]]:
    """The version of each shard, and the values of the model's variables.

    The version is read first. So staleness may count an update too many, one that was made in
    between and is in the values already, but never one too few.
    """
    versions, pieces = [], []
    for shard in step.shards:
        versions.append(shard.version.read_value())
        with tf.device(shard.values.device), tf.control_dependencies(versions[-1:]):
            pieces.append(shard.values.read_value())
    return versions, step.together(pieces)


def compute(step: ServersStep, values: list[Any], others: list[Any], batch: Any) -> Any:
    """The loss of a batch as a sum and a count, the gradients of its mean, and the new `others`:
    computed with these `values` in place of the model's variables, and these others in place of
    those that are not trained.
    """

    def compute_part(inputs: Any, targets: Any) -> list[Any]:
        nonlocal others  # each part goes on from those of the part before
        with tf.GradientTape() as tape:
            tape.watch(values)
            how = models.mode(step.model, training=True)
            outputs, others, own_losses = step.model.stateless_call(
                values, others, inputs, return_losses=True, **how
            )
            loss = models.total(step.loss_of, outputs, targets, own_losses)
        return [loss, *gradient(tape, loss, values, step.of_worker.update)]

    loss, *gradients = models.in_parts(step.spec.accumulate, compute_part, *batch)
    count = models.count_of(loss)
    return models.pair(loss), gradients if count is None else [g / count for g in gradients], others


def pull_others(step: ServersStep, number: Any, share: Any) -> list[Any]:
    """The values of the variables that are not trained.

    Those of random numbers, such as dropout's, lie nowhere: they follow from the run's seed, the
    step and the share, so that they do not depend on who computes it.
    """
    values = []
    for i, variable in enumerate(step.model.non_trainable_variables):
        if i in step.others:
            values.append(step.others[i].read_value())
        else:
            with tf.init_scope():  # its value is read now, not in the graph
                seed = models.seed_of(variable.numpy(), step.spec.seed)
            count = (number * step.spec.workers + share) * DRAWS
            values.append(tf.stack([tf.constant(seed, tf.int64), count]))
    return values


def push_others(step: ServersStep, share: Any, before: list[Any], changed: list[Any]) -> list[Any]:
    """Store what the first share of a step made of the variables that are not trained, such as the
    moving means of batch normalisation; what the other shares made of them is dropped. It is done
    before the gradients are sent, so that no later step begins without it where all wait for them.
    """
    its = step.others.items()
    stores = [(each, changed[i]) for i, each in its if changed[i] is not before[i]]  # not frozen

    def store() -> Any:
        with tf.control_dependencies([variable.assign(new) for variable, new in stores]):
            return tf.constant(True)

    return [tf.cond(share == 0, store, lambda: tf.constant(False))] if stores else []


# --- on a ps ---


class Applier:
    """Updates the shard of a ps by gradients as they come. `applied` has, for each share of each
    step, the version that its gradients made; 0: none yet.
    """

    def __init__(self, shard: Shard, spec: RunSpec, optimizer: Optimizer) -> None:
        self.shard, self.spec, self.optimizer = shard, spec, optimizer
        with tf.device(shard.values.device):
            self.applied = tf.Variable(tf.zeros([spec.steps * spec.workers], tf.int64))

    def push(self, number: Any, share: Any, gradients: Any, count: Any) -> Any:
        """On the ps, as soon as the gradients are there: update the values; then count the version
        up, and note it in `applied`. The step decides the learning rate, and nothing else. If a
        version is noted for this share, a worker pushed these gradients and was lost before it
        could say so, and another has computed them again: nothing is left to do.

        TensorFlow locks a variable while it changes, so no gradient is lost. The counting is one
        operation that also reads, so every update has its own version.
        """
        shard, which = self.shard, number * self.spec.workers + share
        noted, counter = self.applied.handle, shard.version.handle

        def apply() -> Any:
            now = self.optimizer.at(number, shard.version)
            updates = self.optimizer.apply(shard.values, gradients, shard.state, now)
            with tf.control_dependencies(updates):
                made = 1 + tf.raw_ops.ResourceCountUpTo(resource=counter, limit=2**62, T=tf.int64)
            note = tf.raw_ops.ResourceScatterUpdate(resource=noted, indices=which, updates=made)
            with tf.control_dependencies([note]):
                return tf.identity(made)

        with tf.device(shard.values.device):
            begun = after(gradients)
            with tf.control_dependencies([begun]):
                before = tf.raw_ops.ResourceGather(resource=noted, indices=which, dtype=tf.int64)
            version = tf.cond(before > 0, lambda: tf.identity(before), apply)
            return tf.stack([tf.cast(version, tf.float64), 1.0, begun, after(version)])
