"""sync_parameter_server: the variables live on parameter servers (ps), and a ps applies the mean of
all workers' gradients, once a step.

The workers push their gradients and wait. When a ps has the gradients of all shares, it adds them
up, applies their mean and gives each worker a token: a small message that says that the update is
made, so that it may go on and pull the new values. No gradient is stale, so this computes what one
device computes; the price is that all wait for the slowest.

TensorFlow 2 has no such strategy, but it still has what TensorFlow 1 built SyncReplicasOptimizer
from: accumulators, which lie on a ps, keep what comes in and let nobody take it before it is there.
There is one for each share: one for all would sum as they come, and another order of the sum would
change the last bits from one run to the next.
The loop that takes gradients and gives tokens is a graph that the chief starts once, and that then
goes on by itself on the ps. The chief hands out the step of `parameter_server.py` with another
push. Source: Chen et al., "Revisiting Distributed Synchronous SGD", 2016;
tf.compat.v1.train.SyncReplicasOptimizer.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.coordinator import train
from course_lib.strategies.tensorflow.optimizer import Optimizer
from course_lib.strategies.tensorflow.parameter_server import make_step
from course_lib.strategies.tensorflow.server import Shard, connect, serve
from course_lib.strategies.tensorflow.steps import after


def worker(task: Task) -> None:
    """Compute gradients, as the chief's graphs say."""
    serve(task)


def ps(task: Task) -> None:
    """Hold a shard of the variables and apply mean gradients to it, as the chief's graphs say."""
    serve(task)


def chief(task: Task) -> dict[str, Any]:
    """Start the loops of all ps, hand out all steps, and record what became of them."""
    spec, model = task.spec, connect(task)
    barriers = {shard.task: Barrier(shard, spec.workers) for shard in model.shards}

    def push(shard: Shard, number: Any, share: Any, gradients: Any, count: Any) -> Any:
        return barriers[shard.task].push(number, share, gradients, count)

    @tf.function(autograph=False)
    def loops() -> list[Any]:
        steps = model.steps_done, spec.steps
        return [barrier.loop(*steps, model.optimizer) for barrier in barriers.values()]

    program = make_step(task, model, push)
    threads = ThreadPoolExecutor(1, "lockstep-loops")
    model.loops = threads.submit(loops.get_concrete_function())
    return train(task, model, program, per_update=spec.workers)


class Barrier:
    """Where a ps collects gradients for its shard, and the workers wait for what comes of them: for
    each share of a step an accumulator for its gradients, and one for the token of whoever pushed
    them, so that nobody can take another's.
    """

    def __init__(self, shard: Shard, workers: int) -> None:
        self.shard, self.size = shard, shard.values.shape[0]
        with tf.device(shard.device):
            self.parts, self.tokens = (
                [_accumulator(f"{what}-{shard.task}-{k}", kind, size) for k in range(workers)]
                for what, kind, size in (
                    ("part", tf.float32, self.size + 1),
                    ("token", tf.float64, 4),
                )
            )

    def push(self, step: Any, share: Any, gradients: Any, count: Any) -> Any:
        """Add the mean gradients of a share times its count, and the count; its token, when there
        is one.
        """

        def await_token(part: Any, token: Any) -> Any:
            with tf.control_dependencies([_add(part, step, counted)]):
                return _take(token, tf.float64)

        with tf.device(self.shard.device):
            counted = tf.concat([count * gradients, [count]], 0)
            places = zip(self.parts, self.tokens, strict=True)
            branches = [partial(await_token, *place) for place in places]
            return tf.switch_case(tf.cast(share, tf.int32), branches)

    def loop(self, first: int, steps: int, optimizer: Optimizer) -> Any:
        """The part of the ps: in each step, from the `first` on, wait for all gradients, apply the
        mean, give tokens.
        """

        def one(step: Any) -> Any:
            sums = tf.add_n([_take(part, tf.float32) for part in self.parts])
            begun, count = after(sums), sums[self.size]
            count = tf.where(count > 0, count, 1)
            with tf.control_dependencies([begun]):
                (mean,) = optimizer.clipped([sums[: self.size] / count])
                now = optimizer.at(step, step)
                updates = optimizer.apply(self.shard.values, mean, self.shard.state, now)
            with tf.control_dependencies(updates):
                written = self.shard.version.assign_add(1)
            made = tf.cast(written, tf.float64), float(len(self.parts)), begun, after(written)
            token = tf.stack(made)
            told = [_add(accumulator, step, token) for accumulator in self.tokens]
            with tf.control_dependencies(told):
                return step + 1

        with tf.device(self.shard.device):
            begin = [tf.constant(first, tf.int64)]
            return tf.while_loop(lambda step: step < steps, one, begin, parallel_iterations=1)


def _accumulator(name: str, kind: Any, size: int) -> Any:
    """A vector of zeros on the current device.

    TensorFlow's class for it, tf.compat.v1.ConditionalAccumulator, is not for here: it deletes an
    accumulator when the chief fails, and a ps that still waits in it crashes.
    """
    return tf.raw_ops.ResourceConditionalAccumulator(
        dtype=kind, shape=[size], shared_name=name, reduction_type="SUM"
    )


def _add(accumulator: Any, step: Any, vector: Any) -> Any:
    return tf.raw_ops.ResourceAccumulatorApplyGradient(
        handle=accumulator, local_step=step, gradient=vector
    )


def _take(accumulator: Any, kind: Any) -> Any:
    """Wait until a vector has been added, then empty the accumulator; that vector."""
    return tf.raw_ops.ResourceAccumulatorTakeGradient(
        handle=accumulator, num_required=1, dtype=kind
    )
