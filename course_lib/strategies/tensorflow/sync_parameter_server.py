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
from course_lib.strategies.tensorflow.models import Optimizer
from course_lib.strategies.tensorflow.parameter_server import make_step
from course_lib.strategies.tensorflow.server import Shard, connect, serve, train
from course_lib.strategies.tensorflow.steps import after, hold


def worker(task: Task) -> None:
    """Compute gradients, as the chief's graphs say."""
    serve(task)


def ps(task: Task) -> None:
    """Hold a shard of the variables and apply mean gradients to it, as the chief's graphs say."""
    serve(task)


def chief(task: Task) -> dict[str, Any]:
    """Start the loops of all ps, hand out all steps, and record what became of them."""
    step, workers = connect(task), task.spec.workers
    barriers = [Barrier(shard, workers, step.optimizer) for shard in step.shards]
    first, steps = step.number + 1, task.spec.steps

    @tf.function(autograph=False)
    def loops() -> list[Any]:
        return [barrier.loop(first, steps) for barrier in barriers]

    program = make_step(step, [barrier.push for barrier in barriers])
    threads = ThreadPoolExecutor(1, "lockstep-loops")
    step.loops = threads.submit(loops.get_concrete_function())
    return train(step, program, per_update=workers)


class Barrier:
    """The place where a ps collects gradients for its shard, and the workers wait: for
    each share of a step an accumulator for its gradients and their count, and one for the token of
    whoever pushed them, so that nobody can take another's.
    """

    def __init__(self, shard: Shard, workers: int, optimizer: Optimizer) -> None:
        self.shard, self.optimizer, size = shard, optimizer, shard.values.shape[0]
        names = [f"{shard.task}-{k}" for k in range(workers)]
        with tf.device(shard.values.device):
            self.parts = [Accumulator(f"part-{name}", tf.float32, size + 1) for name in names]
            self.tokens = [Accumulator(f"token-{name}", tf.float64, 4) for name in names]

    def push(self, step: Any, share: Any, gradients: Any, count: Any) -> Any:
        """On the ps, add the mean gradients of a share times its count, and the count; return its
        token, when there is one.
        """

        def await_token(part: Accumulator, token: Accumulator) -> Any:
            with tf.control_dependencies([part.add(step, counted)]):
                return token.take()  # [version, gradients, begun, ended]

        with tf.device(self.shard.values.device):
            counted = tf.concat([count * gradients, [count]], 0)  # (parameters / ps + 1,)
            places = zip(self.parts, self.tokens, strict=True)
            branches = [partial(await_token, *place) for place in places]
            return tf.switch_case(tf.cast(share, tf.int32), branches)

    def loop(self, first: int, steps: int) -> Any:
        """On the ps, go through the steps from the `first` on."""
        with tf.device(self.shard.values.device):
            begin, one = [tf.constant(first, tf.int64)], self.one_step
            return tf.while_loop(lambda step: step < steps, one, begin, parallel_iterations=1)

    def one_step(self, step: Any) -> Any:
        """Wait for the gradients of all shares, apply their mean, give tokens; the next step."""
        shard, optimizer = self.shard, self.optimizer
        sums = tf.add_n([part.take() for part in self.parts])  # (parameters / ps + 1,)
        begun = after(sums)
        gradients, count = sums[:-1], sums[-1]
        (mean,) = hold([gradients / tf.where(count > 0, count, 1)], begun)
        updates = optimizer.apply(shard.values, mean, shard.state, optimizer.at(step, step))
        with tf.control_dependencies(updates):  # the version counts what is in the values
            written = shard.version.assign_add(1)
        made = [tf.cast(written, tf.float64), float(len(self.parts)), begun, after(written)]
        for token in self.tokens:
            token.add(step, tf.stack(made))
        return step + 1


class Accumulator:
    """A vector of zeros on the current device, to which others add, and which nobody takes before
    it is there.

    TensorFlow's class for it, tf.compat.v1.ConditionalAccumulator, is not for here: it deletes an
    accumulator when the chief fails, and a ps that still waits in it crashes.
    """

    def __init__(self, name: str, kind: Any, size: int) -> None:
        self.kind, how = kind, {"shared_name": name, "reduction_type": "SUM"}
        make = tf.raw_ops.ResourceConditionalAccumulator
        self.handle = make(dtype=kind, shape=[size], **how)

    def add(self, step: Any, vector: Any) -> Any:
        add = tf.raw_ops.ResourceAccumulatorApplyGradient
        return add(handle=self.handle, local_step=step, gradient=vector)

    def take(self) -> Any:
        """Wait until a vector has been added, then empty the accumulator; that vector."""
        take = tf.raw_ops.ResourceAccumulatorTakeGradient
        return take(handle=self.handle, num_required=1, dtype=self.kind)
