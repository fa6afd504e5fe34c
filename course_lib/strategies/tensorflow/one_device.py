"""one_device: all variables and all computing on one device, the yardstick that every other
strategy is held against.
"""

from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.steps import use
from course_lib.strategies.tensorflow.training import train


def worker(task: Task) -> dict[str, Any]:
    """Train the whole batch on this task's device. Source: tf.distribute.OneDeviceStrategy."""
    strategy = tf.distribute.OneDeviceStrategy(use(task.device))
    return train(task, strategy)
