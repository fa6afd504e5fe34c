"""parameter_server: the variables live on parameter servers (ps). Workers pull them, compute
gradients and push those back, each at its own pace.

The chief runs the program and computes no gradient. It builds a step as one graph, and hands that
out once for each share of a batch, to whichever worker is free. TensorFlow cuts the graph at the
borders between worker and ps and runs each part there. Values travel directly between the two, so
no variable and no gradient passes through the chief during a step.

    pull       ps -> worker    versions and values of the variables
    compute    worker          gradients of a share of a batch
    push       worker -> ps    to each ps the gradients of its variables
    apply      ps              values -= learning_rate * gradients, or what the run's optimizer
                               makes of them, whose state is here too; and one more version

No worker waits for another: a ps applies every gradient as soon as it is there. So while a worker
computes, others change the variables that it has read, and its own gradient is stale when it
arrives. Staleness counts these changes. With w workers of equal speed it is close to w - 1 if
computing is nearly all of a step, and less otherwise; a slower worker's is higher.

A step is w updates here, each from 1/w of the batch with the full learning rate. A slow worker is
given fewer shares and holds up no one.

When a worker is lost, `ClusterCoordinator` sees its connection break. It gives its share to another
worker, and the others go on. Meanwhile it tries to reach the lost one; when that is back at its old
address, it is sent the graphs again and takes shares again. TensorFlow leaves it to others to start
it again: with `max_restarts` we do. Without, or when none are left, the run goes on with the other
workers, as long as there is one. The lost worker may have pushed its gradients before it could say
so. TensorFlow would then apply those of its share twice; here a ps knows the shares whose gradients
it has (`apply_once`).

When a ps is lost, its shard of the variables is gone, and the coordinator raises an error. With
`max_restarts` all tasks are started again, and go on from the last checkpoint, or from the
beginning if there is none. What was done since then is lost. So it is with a worker that is lost
before the first step: the chief has to connect to all of them before it can do without one.

When a worker is paused, or its host is cut off, no connection breaks, so TensorFlow waits for it
without end. The others take all shares but the one that it has. At the next checkpoint, or at the
end, the chief waits for that one, and gives up after a minute.

Source: tf.distribute.ParameterServerStrategy, tf.distribute.coordinator.ClusterCoordinator; Dean et
al., "Large Scale Distributed Deep Networks", NIPS 2012.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.tensorflow import models
from course_lib.strategies.tensorflow.coordinator import report, taken, train, work_of
from course_lib.strategies.tensorflow.examples import in_files
from course_lib.strategies.tensorflow.memory import gradient
from course_lib.strategies.tensorflow.optimizer import Optimizer
from course_lib.strategies.tensorflow.precision import seen, until_finite
from course_lib.strategies.tensorflow.server import (
    Model,
    Shard,
    connect,
    device_time,
    folders,
    serve,
)
from course_lib.strategies.tensorflow.steps import after, hold

DRAWS = 1000
"""So many random numbers of a layer are told apart in a step."""

Push = Callable[[Shard, Any, Any, Any, Any], Any]
"""In the graph, `push(shard, number, share, gradients, count)` sends a ps its piece of the mean
gradients of a share of step `number`, one vector, and what they are the mean over. Returns float64
[version, count, begun, ended]: the version that the update made, how many workers' gradients went
into it, and when it began and ended."""


def worker(task: Task) -> None:
    """Wait for graphs from the chief, and run them: gradients of a share of a batch."""
    serve(task)


def ps(task: Task) -> None:
    """Hold a shard of the variables; run the parts of the chief's graphs that apply gradients."""
    serve(task)


def chief(task: Task) -> dict[str, Any]:
    """Hand out all steps, and record what became of them."""
    model = connect(task)
    applied = {shard.task: made_by(task.spec, shard) for shard in model.shards}

    def push(shard: Shard, number: Any, share: Any, gradients: Any, count: Any) -> Any:
        # whatever step they are of: that decides the learning rate, and nothing else
        made = applied[shard.task], number * task.spec.workers + share
        return apply_once(shard, *made, number, gradients, model.optimizer)

    return train(task, model, make_step(task, model, push, model.optimizer.clipped))


def make_step(task: Task, model: Model, push: Push, before: Callable[..., Any] = list) -> Any:
    """The program of a step for one share: `step(work)`, where `work` is what `work_of` makes. It
    returns a `report`. What is done with all gradients `before` they are pushed is done while they
    are in one place.

    A step's message has only the indices of its examples, which each worker reads from files.

    `after(tensors)` is the time when all of them are ready; `hold(tensors, time)` are the tensors,
    not to be used before that time. So each phase starts when the one before it has ended.
    """
    workload = workloads.load(task.spec)
    examples, compare = in_files(folders(task), workload.train), models.loss_of(workload)

    @tf.function(autograph=False)  # no loops or conditions on tensors need translating
    def step(work: Any) -> Any:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        number, share, draws, indices = taken(task.spec, work, worker)
        begun = tf.timestamp()
        batch = examples(worker, indices)
        versions, values = pull(model)
        scale = None if model.scaling is None else model.scaling.read_value()
        others = pull_others(task, model, number, share)
        pulled = after([begun, batch, *values, *others])
        values = hold(values, pulled)
        loss, gradients, changed, told = compute(model, compare, values, others, batch, scale)
        total, count = tf.unstack(loss)
        gradients = before(gradients)
        # an emulated device sleeps here
        computed = device_time(task, worker, draws, pulled, after([loss, *gradients]))
        with tf.control_dependencies(push_others(model, share, others, changed)):
            gradients = hold(gradients, computed)
        updates = [
            push(shard, number, share, piece, count)
            for shard, piece in zip(model.shards, model.cut(gradients), strict=True)
        ]
        times = [begun, pulled, computed, after(updates)]
        return report([worker, total, count, *times, *versions], updates + told)

    length = len(work_of(task.spec, workload, 0, 0))
    return step.get_concrete_function(tf.TensorSpec([length], tf.float64))


def pull(model: Model) -> tuple[list[Any], list[Any]]:
    """The version of each shard, and the values of the model's variables.

    The version is read first. So staleness may count an update too many, one that was made in
    between and is in the values already, but never one too few.
    """
    versions, pieces = [], []
    for shard in model.shards:
        versions.append(shard.version.read_value())
        with tf.device(shard.device), tf.control_dependencies(versions[-1:]):
            pieces.append(shard.values.read_value())
    return versions, model.together(pieces)


def compute(
    model: Model, compare: Any, values: list[Any], others: list[Any], batch: Any, scale: Any
) -> tuple[Any, list[Any], list[Any], list[Any]]:
    """The loss as a sum and a count, the gradients of its mean, and the new `others`, of the model
    with these values in place of its variables and these others in place of those that are not
    trained. In float16 the gradients are computed with a loss `scale`, again with a smaller one if
    they overflow, and divided by it. The last list then has a row to report: [scale asked for,
    scale used, norm, share of zeros].
    """
    training = models.mode(model.keras, training=True)

    def passes(scale: Any = None) -> list[Any]:
        changed = others

        def compute_part(inputs: Any, targets: Any) -> list[Any]:
            nonlocal changed
            with tf.GradientTape() as tape:
                tape.watch(values)
                outputs, changed, own = model.keras.stateless_call(
                    values, changed, inputs, return_losses=True, **training
                )
                loss = models.total(compare, outputs, targets, own)
            return [loss, *gradient(tape, loss, values, model.census.note, scale)]

        found = models.in_parts(model.optimizer.spec.accumulate, compute_part, *batch)
        return [*found, *changed]

    many, told, divisor = len(values), [], None
    if scale is None:
        loss, *found = passes()
    else:
        divisor, loss, *found = until_finite(passes, scale, many, model.optimizer.spec)
        asked_and_used = tf.cast([scale, divisor], tf.float64)
        told = [tf.concat([asked_and_used, seen(found[:many])], 0)]
    gradients, count = found[:many], models.count_of(loss)
    if count is not None:
        divisor = count if divisor is None else count * divisor
    if divisor is not None:
        gradients = [each / divisor for each in gradients]
    return models.pair(loss), gradients, found[many:], told


def pull_others(task: Task, model: Model, number: Any, share: Any) -> list[Any]:
    """The values of the variables that are not trained.

    Those of random numbers, such as dropout's, lie nowhere: they follow from the run's seed, the
    step and the share, so that they do not depend on who computes it.
    """
    stored, found = iter(model.others), []
    for variable in model.keras.non_trainable_variables:
        if models.is_seed(variable):
            with tf.init_scope():  # its value is read now, not in the graph
                seed = models.seed_of(variable.numpy(), task.spec.seed)
            count = (number * task.spec.workers + share) * DRAWS
            found.append(tf.stack([tf.constant(seed, tf.int64), count]))
        else:
            found.append(next(stored).read_value())
    return found


def push_others(model: Model, share: Any, before: list[Any], changed: list[Any]) -> list[Any]:
    """Store what the first share of a step made of the variables that are not trained, such as the
    moving means of batch normalisation; what the other shares made of them is dropped. It is done
    before the gradients are sent, so that no later step begins without it where all wait for them.
    """
    every = zip(model.keras.non_trainable_variables, before, changed, strict=True)
    pairs = [(old, new) for variable, old, new in every if not models.is_seed(variable)]
    stores = [
        (variable, new)
        for variable, (old, new) in zip(model.others, pairs, strict=True)
        if new is not old  # a frozen weight
    ]

    def store() -> Any:
        with tf.control_dependencies([variable.assign(new) for variable, new in stores]):
            return tf.constant(True)

    return [tf.cond(share == 0, store, lambda: tf.constant(False))] if stores else []


def made_by(spec: RunSpec, shard: Shard) -> Any:
    """On the ps, for each share of each step the version that its gradients made; 0: none yet."""
    with tf.device(shard.device):
        return tf.Variable(tf.zeros([spec.steps * spec.workers], tf.int64))


def apply_once(
    shard: Shard, applied: Any, which: Any, number: Any, gradients: Any, optimizer: Optimizer
) -> Any:
    """On the ps, as soon as the gradients are there: update the values, with the learning rate of
    step `number`. Then the version is counted up, and noted in `applied`, where `which` is the
    place of this share. If one is noted there already, a worker pushed these gradients and was lost
    before it could say so, and another computed them again: nothing is left to do.

    TensorFlow locks a variable while it changes, so no gradient is lost. The counting is one
    operation that also reads, so every update has its own version.
    """

    def apply() -> Any:
        now = optimizer.at(number, shard.version)
        updates = optimizer.apply(shard.values, gradients, shard.state, now)
        with tf.control_dependencies(updates):
            before = tf.raw_ops.ResourceCountUpTo(
                resource=shard.version.handle, limit=2**62, T=tf.int64
            )
        noted = tf.raw_ops.ResourceScatterUpdate(
            resource=applied.handle, indices=which, updates=before + 1
        )
        with tf.control_dependencies([noted]):
            return tf.identity(before + 1)

    with tf.device(shard.device):
        begun = after(gradients)
        with tf.control_dependencies([begun]):
            found = tf.raw_ops.ResourceGather(
                resource=applied.handle, indices=which, dtype=tf.int64
            )
        version = tf.cond(found > 0, lambda: tf.identity(found), apply)
        return tf.stack([tf.cast(version, tf.float64), 1.0, begun, after(version)])
