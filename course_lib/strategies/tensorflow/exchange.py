"""An all-reduce of ours inside a TensorFlow step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from course_lib.cluster.task import Task

_errors: list[Exception] = []


@contextlib.contextmanager
def own_error() -> Iterator[None]:
    """Raise the error of an exchange that fails in a graph, not what TensorFlow makes of it."""
    try:
        yield
    except tf.errors.OpError:
        if _errors:
            raise _errors[0] from None
        raise


def scheduled_mean(task: Task) -> Callable[[Any, list[Any], list[Any]], list[Any]]:
    """An `Average` by the schedule of the run.

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

    def mean(strategy: Any, values: list[Any], variables: list[Any]) -> list[Any]:
        flat = tf.concat([tf.reshape(value, [-1]) for value in values], 0)
        summed = tf.ensure_shape(tf.numpy_function(exchange, [flat], tf.float32), flat.shape)
        parts = tf.split(summed, [math.prod(value.shape) for value in values])
        return [tf.reshape(part, value.shape) for part, value in zip(parts, values, strict=True)]

    return mean
