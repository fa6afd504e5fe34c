"""parameter_server: the variables live on parameter servers (ps). Workers pull them, compute
gradients and push those back, each at its own pace.

The chief runs the program and computes no gradient. It builds a step as one graph, and hands that
out once for each share of a batch, to whichever worker is free. TensorFlow cuts the graph at the
borders between worker and ps and runs each part there. Values travel directly between the two, so
no variable and no gradient passes through the chief during a step.

    pull       ps -> worker    versions and values of the variables
    compute    worker          gradients of a share of a batch
    push       worker -> ps    to each ps the gradients of its variables
    apply      ps              values -= learning_rate * gradients, and one more version

No worker waits for another: a ps applies every gradient as soon as it is there. So while a worker
computes, others change the variables that it has read, and its own gradient is stale when it
arrives. Staleness counts these changes. With w workers of equal speed it is close to w - 1 if
computing is nearly all of a step, and less otherwise; a slower worker's is higher.

A step is w updates here, each from 1/w of the batch with the full learning rate. A slow worker is
given fewer shares and holds up no one. TensorFlow would give the share of a lost worker to another;
here the run ends instead, with an error that names the worker. It ends in the same way when a ps is
lost: its shard of the variables is gone, unless there is a checkpoint. Source:
tf.distribute.ParameterServerStrategy; Dean et al., "Large Scale Distributed Deep Networks", NIPS
2012.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.coordinator import report, train
from course_lib.strategies.tensorflow.server import Model, Shard, connect, device_time, serve
from course_lib.strategies.tensorflow.steps import after, hold, loss_of

Push = Callable[[Shard, Any, Any], Any]
"""In the graph, `push(shard, number, gradients)` sends a ps its piece of the gradients of step
`number`, one vector. Returns float64 [version, count, begun, ended]: the version that the update
made, how many workers' gradients went into it, and when it began and ended."""


def worker(task: Task) -> None:
    """Wait for graphs from the chief, and run them: gradients of a share of a batch."""
    serve(task)


def ps(task: Task) -> None:
    """Hold a shard of the variables; run the parts of the chief's graphs that apply gradients."""
    serve(task)


def chief(task: Task) -> dict[str, Any]:
    """Hand out all steps, and record what became of them."""
    coordinator, model = connect(task)

    def push(shard: Shard, number: Any, gradients: Any) -> Any:
        return apply_at_once(shard, gradients, model.learning_rate)  # whatever step they are of

    return train(task, coordinator, model, make_step(task, model, push))


def make_step(task: Task, model: Model, push: Push) -> Any:
    """The program of a step for one share: `step(work)`, where `work` is [number of the step,
    indices of the examples]. It returns a `report`.

    `after(tensors)` is the time when all of them are ready; `hold(tensors, time)` are the tensors,
    not to be used before that time. So each phase starts when the one before it has ended.
    """
    workload = workloads.load(task.spec)

    @tf.function(autograph=False)  # no loops or conditions on tensors need translating
    def step(work: Any) -> Any:
        number, indices = work[0], work[1:]
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        begun = tf.timestamp()
        images, labels = tf.gather(workload.x_train, indices), tf.gather(workload.y_train, indices)
        versions, values = pull(model)
        pulled = after([begun, images, labels, *values])
        loss, gradients = compute(model, hold(values, pulled), images, labels)
        # an emulated device sleeps here
        computed = device_time(task, worker, pulled, after([loss, *gradients]))
        gradients = hold(gradients, computed)
        updates = [
            push(shard, number, piece)
            for shard, piece in zip(model.shards, model.cut(gradients), strict=True)
        ]
        pushed = after(updates)
        return report(worker, loss, [begun, pulled, computed, pushed], versions, updates)

    return step.get_concrete_function(tf.TensorSpec([1 + task.spec.per_worker_batch], tf.int64))


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


def compute(model: Model, values: list[Any], images: Any, labels: Any) -> tuple[Any, list[Any]]:
    """The loss, and its gradients, of the model with these values in place of its variables."""
    with tf.GradientTape() as tape:
        tape.watch(values)
        logits, _ = model.keras.stateless_call(values, [], images, training=True)
        loss = loss_of(logits, labels)
    return loss, tape.gradient(loss, values)


def apply_at_once(shard: Shard, gradients: Any, learning_rate: float) -> Any:
    """On the ps, as soon as the gradients are there: values -= learning_rate * gradients. Then the
    version is counted up.

    TensorFlow locks a variable while it changes, so no gradient is lost. The counting is one
    operation that also reads, so every update has its own version.
    """
    with tf.device(shard.device):
        begun = after(gradients)
        with tf.control_dependencies([begun]):
            update = shard.values.assign_sub(learning_rate * gradients, read_value=False)
        with tf.control_dependencies([update]):
            before = tf.raw_ops.ResourceCountUpTo(
                resource=shard.version.handle, limit=2**62, T=tf.int64
            )
        return tf.stack([tf.cast(before + 1, tf.float64), 1.0, begun, after(before)])
