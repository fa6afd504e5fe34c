"""sync_parameter_server: the variables live on parameter servers (ps), and a ps applies the mean of all workers' gradients, once a step.

The workers push their gradients and wait. A ps adds up what comes in; when it has one gradient from every worker, it applies their mean and gives each
worker a token, with which it goes on to pull the new values. No gradient is stale, so this computes what one device computes; the price is that
all wait for the slowest.

TensorFlow 2 has no such strategy. It has the parts, which its first version's SyncReplicasOptimizer was made of: an accumulator on the ps sums
gradients up and lets itself be emptied when it holds enough of them, and a queue on the ps holds the tokens. Here the loop that empties the
one and fills the other is a graph that the chief starts once, and that goes on by itself on the ps.
Source: Chen et al., "Revisiting Distributed Synchronous SGD", 2016; tf.compat.v1.train.SyncReplicasOptimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.coordinator import (
    PATIENCE,
    Shard,
    by_step,
    connect,
    dismiss,
    hand_out,
    make_step,
    result,
    serve,
    tell_ps,
    tell_worker,
    unpack,
)
from course_lib.strategies.tensorflow.stamps import after


def worker(task: Task) -> None:
    """Compute gradients, as the chief's graphs say."""
    serve(task)


def ps(task: Task) -> None:
    """Hold a shard of the variables and apply mean gradients to it, as the chief's graphs say."""
    serve(task)


def chief(task: Task) -> dict[str, Any]:
    """Start the loop of each ps, hand out all steps, and write down what became of them."""
    spec, (coordinator, model) = task.spec, connect(task)
    barriers = {shard.task: Barrier(shard, spec.workers) for shard in model.shards}

    def push(shard: Shard, step: Any, gradients: Any) -> Any:
        return barriers[shard.task].push(step, gradients)

    step = make_step(task, model, push)
    loops = [barrier.loop(spec.steps, model.learning_rate) for barrier in barriers.values()]
    threads = ThreadPoolExecutor(len(loops), "lockstep-loop")
    running = [threads.submit(loop) for loop in loops]
    loss = float("nan")
    for loss, shares in by_step(task, hand_out(task, coordinator, model, step, running)):
        for share in shares:
            tell_worker(task, share, "reduce")
        oldest = [min(versions) for versions in zip(*(share.read for share in shares), strict=True)]
        tell_ps(task, model, shares[0].step, oldest, shares[0].applied)  # the token tells all workers the same
    for future in running:
        future.result(PATIENCE)
    outcome = result(task, model, loss)
    dismiss(task)
    return outcome


class Barrier:
    """Where a ps collects gradients for its shard, and the workers wait for what comes of them.

    A worker that goes on at once must not take the token of one that has yet to fetch its own. So tokens lie in two queues, for even and odd steps:
    nobody gets to a second step from now before everybody has left this one.
    """

    def __init__(self, shard: Shard, workers: int) -> None:
        self.shard, self.workers = shard, workers
        self.size = sum(part.shape.num_elements() for part in shard.parts)
        with tf.device(shard.device):
            self.sums = tf.raw_ops.ResourceConditionalAccumulator(
                dtype=tf.float32, shape=[self.size + 1], shared_name=f"sums-{shard.task}", reduction_type="SUM"
            )
            self.tokens = [tf.queue.FIFOQueue(workers, tf.float64, [4], shared_name=f"{turn}-{shard.task}") for turn in ("even", "odd")]

    def push(self, step: Any, gradients: Any) -> Any:
        """Add a worker's gradients, and a one to count them; its token, when there is one."""
        with tf.device(self.shard.device):
            added = tf.raw_ops.ResourceAccumulatorApplyGradient(
                handle=self.sums, local_step=step, gradient=tf.concat([gradients, [1.0]], 0)
            )
            with tf.control_dependencies([added]):
                return self._in_turn(step, lambda queue: queue.dequeue())

    def loop(self, steps: int, learning_rate: float) -> Callable[[], Any]:
        """The ps's part, to be called once: for each step wait for all gradients, apply their mean, give out tokens."""

        def one(step: Any) -> Any:
            sums = tf.raw_ops.ResourceAccumulatorTakeGradient(handle=self.sums, num_required=self.workers, dtype=tf.float32)
            begun, count = after(sums), sums[self.size]
            with tf.control_dependencies([begun]):
                means = unpack(sums[: self.size] / count, self.shard.parts)
                updates = [
                    part.assign_sub(learning_rate * mean, read_value=False) for part, mean in zip(self.shard.parts, means, strict=True)
                ]
            with tf.control_dependencies(updates):
                written = self.shard.version.assign_add(1)
            token = tf.stack([tf.cast(written, tf.float64), tf.cast(count, tf.float64), begun, after(written)])
            with tf.control_dependencies([self._in_turn(step, lambda queue: _put(queue, token, self.workers))]):
                return step + 1

        @tf.function(autograph=False)
        def all_steps() -> Any:
            with tf.device(self.shard.device):
                return tf.while_loop(lambda step: step < steps, one, [tf.constant(0, tf.int64)], parallel_iterations=1)

        return all_steps.get_concrete_function()

    def _in_turn(self, step: Any, use: Callable[[Any], Any]) -> Any:
        even, odd = self.tokens
        return tf.cond(step % 2 == 0, lambda: use(even), lambda: use(odd))


def _put(queue: Any, token: Any, times: int) -> Any:
    with tf.control_dependencies([queue.enqueue_many(tf.tile(token[None], [times, 1]))]):
        return tf.identity(token)
