"""An all-reduce of ours inside a TensorFlow step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from course_lib.cluster.task import Task

Reduce = Callable[[list[Any]], list[Any]]
_errors: list[Exception] = []


def run_step(step: Callable[..., Any], *arguments: Any) -> list[float]:
    """What `step` gives; where an exchange fails in it, its own error, and not what TensorFlow
    makes of it.
    """
    try:
        found: list[float] = step(*arguments).numpy().tolist()
        return found
    except tf.errors.OpError:
        if _errors:
            raise _errors[0] from None
        raise


def scheduled_mean(task: Task) -> Reduce:
    """A function for the graph of a step: the mean of each tensor over all workers, by the schedule
    of the run.

    All tensors travel as one array. The graph calls back into Python for the exchange, which works
    on the CPU.
    """
    assert task.schedule
    schedule, group = task.schedule, task.group()

    def exchange(mine: np.ndarray) -> np.ndarray:
        try:
            shared = group.buffer(schedule, mine.size, mine.dtype)
            np.copyto(shared, mine)
            group.execute_buffer(schedule, mine.size, mine.dtype)
        except Exception as error:
            _errors.append(error)
            raise
        return shared / np.float32(schedule.workers)

    def mean(values: list[Any]) -> list[Any]:
        flat = tf.concat([tf.reshape(value, [-1]) for value in values], 0)
        summed = tf.ensure_shape(tf.numpy_function(exchange, [flat], tf.float32), flat.shape)
        parts = tf.split(summed, [math.prod(value.shape) for value in values])
        return [tf.reshape(part, value.shape) for part, value in zip(parts, values, strict=True)]

    return mean
