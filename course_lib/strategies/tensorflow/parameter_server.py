"""parameter_server: the variables live on parameter servers (ps). Workers pull them, compute
gradients and push those back, each at its own pace.

Nobody waits for anybody: a ps applies every gradient as soon as it is there. So while a worker
computes, the gradients of others change what it has read, and its own is stale when it arrives.
Staleness counts those changes: close to w - 1 for w workers that are alike if computing is nearly
all of a step, less otherwise, and more for one that is slower.

The chief runs the program and computes nothing: it builds a step as a graph and hands it out, share
by share. No variable and no gradient passes through it. That step, pull, compute and push, is
`make_step` in `coordinator.py`; what is below as `worker` and `ps` only serves.

A step is w updates here, each from 1/w of the batch with the full learning rate. A slow worker is
given fewer steps and holds up no one. Nor would a lost one: TensorFlow gives its step to another
worker. Here the run ends with an error instead, which names it. It ends so too when a ps is lost:
its part of the variables is gone, and only a checkpoint would have it. Source:
tf.distribute.ParameterServerStrategy; Dean et al., "Large Scale Distributed Deep Networks", NIPS
2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.coordinator import (
    Answer,
    by_step,
    hand_out,
    make_step,
    tell_ps,
    tell_worker,
    unpack,
)
from course_lib.strategies.tensorflow.server import Model, Shard, connect, dismiss, result, serve
from course_lib.strategies.tensorflow.stamps import after


def worker(task: Task) -> None:
    """Compute gradients, as the chief's graphs say."""
    serve(task)


def ps(task: Task) -> None:
    """Hold a shard of the variables and apply gradients to it, as the chief's graphs say."""
    serve(task)


def chief(task: Task) -> dict[str, Any]:
    """Hand out all steps, and write down what became of them."""
    coordinator, model = connect(task)

    def push(shard: Shard, step: Any, gradients: Any) -> Any:
        return apply(shard, gradients, model.learning_rate)

    answers = hand_out(task, coordinator, model, make_step(task, model, push))
    losses = {
        shares[0].step: loss for loss, shares in by_step(task, model, _told(task, model, answers))
    }
    outcome = result(task, model, losses[task.spec.steps - 1])
    dismiss(task)
    return outcome


def apply(shard: Shard, gradients: Any, learning_rate: float) -> Any:
    """On the ps, as soon as the gradients are there: variable -= learning_rate * gradient. Then the
    version is counted up.

    TensorFlow locks a variable while it changes, so no gradient is lost, but not several of them:
    gradients of two workers may go into one variable in one order and into another in the other.
    The counting is one operation that also reads, so every update has a version of its own.
    """
    with tf.device(shard.device):
        here = unpack(gradients, shard.parts)
        begun = after(here)
        with tf.control_dependencies([begun]):
            updates = [
                part.assign_sub(learning_rate * gradient, read_value=False)
                for part, gradient in zip(shard.parts, here, strict=True)
            ]
        with tf.control_dependencies(updates):
            before = tf.raw_ops.ResourceCountUpTo(
                resource=shard.version.handle, limit=2**62, T=tf.int64
            )
        return tf.stack([tf.cast(before + 1, tf.float64), 1.0, begun, after(before)])


def _told(task: Task, model: Model, answers: Iterator[Answer]) -> Iterator[Answer]:
    """The answers, once they are in the trace."""
    for answer in answers:
        tell_worker(task, answer)
        tell_ps(task, model, answer.step, answer.read, answer.applied, [answer.worker])
        yield answer
