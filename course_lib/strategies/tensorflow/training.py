"""The synchronous training loop in TensorFlow, the same for every strategy that averages gradients.

A step has three parts, and in which devices and processes each of them happens is all that the
strategies differ in:

    strategy.run                gradients of a share of the batch, on each replica
    extended.batch_reduce_to    their mean, wherever the variables live
    extended.update             variable -= learning_rate * mean, wherever the variables live

All three are one TensorFlow graph; stamps in it tell the trace when each part was over. A process
may hold one replica or several, on a device each; the batch is cut into as many shares as there are
replicas in all processes together. Source:
tensorflow.org/tutorials/distribute/multi_worker_with_ctl.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.evaluation import evaluate
from course_lib.strategies.tensorflow.exchange import Reduce, run_step
from course_lib.strategies.tensorflow.stamps import WallClock, after, hold
from course_lib.workloads.model import digest
from course_lib.workloads.tensorflow import accuracy, build, loss_of, variables_of, weights_of

MEAN = tf.distribute.ReduceOp.MEAN
Step = Any  # a tf.function of images and labels
Gradients = Callable[[Any, Any], list[Any]]


def train(
    task: Task, strategy: Any, mean: Reduce | None = None, make: Callable[..., Step] | None = None
) -> dict[str, Any]:
    """Train the run's workload under `strategy`; `mean` averages tensors over all replicas in place
    of the strategy's own way.

    `make` builds the step in place of `make_step`, from the same arguments. Returns the task's
    result: final_loss (mean over the last global batch), test_accuracy, digest (of this process's
    own, or first, copy of the parameters), parameters (how many) and variables_on (bytes of
    parameters by device).
    """
    spec, workload = task.spec, workloads.load(task.spec)
    with strategy.scope():
        model = build(workload, spec.seed)
        step = (make or make_step)(
            strategy, model, spec.learning_rate or workload.learning_rate, mean
        )
        loss = _loop(task, strategy, workload, model, step)
        return {
            "final_loss": loss,
            "test_accuracy": accuracy(model, workload),
            "digest": digest(weights_of(model)),
            "parameters": workload.parameters,
            "variables_on": variables_on(strategy, model),
        }


def variables_on(strategy: Any, model: Any) -> dict[str, int]:
    """Bytes of the model's variables on each device of this process, as the runtime reports them."""
    found: Counter[str] = Counter()
    for variable in variables_of(model):
        for part in strategy.experimental_local_results(variable):
            found[part.device] += part.dtype.size * part.shape.num_elements()
    return dict(found)


def gradients_of(model: Any) -> Gradients:
    """A function of a replica's images and labels: the float32 loss, and after it the gradient of
    each variable.
    """
    variables = variables_of(model)

    def gradients(images: Any, labels: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            # they are float32, unless the model computes in bfloat16
            loss = loss_of(tf.cast(logits, tf.float32), labels)
        return [loss, *tape.gradient(loss, variables)]

    return gradients


def make_step(
    strategy: Any,
    model: Any,
    learning_rate: float,
    mean: Reduce | None = None,
    compiler: Callable[[Gradients], Gradients] | None = None,
) -> Step:
    """The training step, compiled on its first call; `compiler` may compile the replica's part of
    it, `gradients_of`, in another way.

    `step(images, labels)` gives a float64 vector [loss, computed, reduced, applied]: the mean loss
    over the global batch, and the wall-clock times at which the gradients, their mean and the new
    variables were ready: those of the last replica of this process.
    """
    variables, gradients_in = variables_of(model), gradients_of(model)
    if compiler:
        gradients_in = compiler(gradients_in)

    def compute(images: Any, labels: Any) -> tuple[Any, list[Any]]:
        values = gradients_in(images, labels)
        computed = after(values)
        return computed, hold(values, computed)

    def apply(variable: Any, gradient: Any) -> Any:
        return variable.assign_sub(learning_rate * gradient, read_value=False)

    # No loops or conditions on tensors need translating, and without a search for them (autograph)
    # it is compiled in half the time.
    @tf.function(autograph=False)
    def step(images: Any, labels: Any) -> Any:
        computed, values = strategy.run(compute, args=(images, labels))
        # The loss goes along with the gradients: one message, not two. It is sent to wherever the
        # first variable lives.
        if mean:
            loss, *gradients = mean(values)
        else:
            loss, *gradients = strategy.extended.batch_reduce_to(
                MEAN, list(zip(values, [variables[0], *variables], strict=True))
            )
        reduced = after([loss, *gradients])
        # A variable is updated as soon as its own mean is there. To hold all back until `reduced`
        # would take a message for every operation on another device.
        updates = [
            strategy.extended.update(v, apply, args=(g,))
            for v, g in zip(variables, gradients, strict=True)
        ]
        applied = after([*updates, reduced])
        # by the last replica of this process
        computed = tf.reduce_max(strategy.experimental_local_results(computed))
        loss = strategy.experimental_local_results(loss)[0]
        return tf.stack([tf.cast(loss, tf.float64), computed, reduced, applied])

    return step


def _loop(task: Task, strategy: Any, workload: workloads.Workload, model: Any, step: Step) -> float:
    """Run all steps and write them into the trace; the last loss."""
    spec, wall = task.spec, WallClock()
    devices = list(variables_on(strategy, model))  # where assignments to variables are executed
    # seconds that recent steps computed; the least of them, as a busy machine only ever adds
    busy = deque([0.0], maxlen=5)
    loss = float("nan")
    for n in range(spec.steps):
        with task.phase("read", n):
            images, labels = _read(task, strategy, workload, n)
        start = clock()
        task.pace(min(busy))
        begin = clock()
        if n == 0:
            step = step.get_concrete_function(
                images, labels
            )  # a call of the function itself would look for what it compiled, in every step
        loss, *stamps = run_step(step, images, labels)
        offset = wall.offset()
        computed, reduced, applied = (stamp + offset for stamp in stamps)
        busy.append(computed - begin)
        task.record("compute", n, start, computed)
        if strategy.num_replicas_in_sync > 1:
            task.record("reduce", n, computed, reduced)
        task.record("apply", n, reduced, applied)
        for device in devices:
            task.update(n, "all", device, read=n, written=n + 1, gradients=spec.shares)
        task.metric("loss", loss, n, (n + 1) * spec.batch)
        if task.index == 0:
            evaluate(task, n, (n + 1) * spec.batch, lambda: accuracy(model, workload))
    return loss


def _read(task: Task, strategy: Any, workload: workloads.Workload, n: int) -> tuple[Any, Any]:
    """Images and labels of step n for the replicas of this process: share k of the batch for
    replica k, as all processes count them.
    """
    spec = task.spec

    def share(k: int) -> tuple[Any, Any]:
        indices = workload.batch(n, spec.seed, spec.batch, k, spec.shares)
        return tf.constant(workload.x_train[indices]), tf.constant(workload.y_train[indices])

    if spec.replicas == 1:
        return share(task.index)
    values: tuple[Any, Any] = strategy.experimental_distribute_values_from_function(
        lambda context: share(context.replica_id_in_sync_group)
    )
    return values
