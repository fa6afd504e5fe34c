"""How the gradients of all replicas become their means: by TensorFlow's all-reduce or one of ours,
all at once or in buckets that leave while others are still being computed.

A graph has no order but that of its inputs. So an all-reduce starts as soon as its own gradients
are there, and the backward pass, which makes those of the last layers first, goes on beside it.
The all-reduces of a graph keep the order of the program: in TensorFlow each waits for a token from
the one before, so that all workers are in the same one. One bucket travels at a time, as in
PyTorch.

TensorFlow cuts buckets itself if its `CommunicationOptions` have `bytes_per_pack`. Here they are
cut before that, by the same rule, so that each can be timed, and so that an all-reduce of ours has
the same buckets.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from course_lib.strategies.tensorflow.graphs import backward_shares
from course_lib.strategies.tensorflow.replicas import ReplicasStep
from course_lib.strategies.tensorflow.steps import after, free, hold, pack, unpack

MEAN = tf.distribute.ReduceOp.MEAN

Average = Callable[[ReplicasStep, list[Any], list[Any]], list[Any]]
"""The training step, some values that all replicas have, and the variables where each is wanted ->
the means over all replicas."""


def all_at_once(training: ReplicasStep, values: list[Any], places: list[Any]) -> list[Any]:
    """The strategy's own way: one call for all values, so that it packs them into one message. The
    mean of a gradient goes to wherever its variable lives.
    """
    pairs = list(zip(values, places, strict=True))
    means: list[Any] = training.strategy.extended.batch_reduce_to(MEAN, pairs)
    return means


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


def averaged(
    training: ReplicasStep, average: Average, values: list[Any], computed: Any
) -> tuple[list[Any], list[Any]]:
    """The means of `values`, which are a loss and the gradients of all variables, ready at the time
    `computed`; and two times for each bucket: when it was full, and when its means were ready.

    Where device time is emulated, a bucket is held back until the part of the backward pass that
    makes its gradients is over: by its share of the floating-point operations.
    """
    spec, variables = training.spec, training.variables
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
