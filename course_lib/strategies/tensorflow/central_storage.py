from __future__ import annotations

from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.devices import use_several
from course_lib.strategies.tensorflow.training import train


def worker(task: Task) -> dict[str, Any]:
    devices = use_several(task.device, task.spec.replicas, host_apart=True)
    strategy = tf.distribute.experimental.CentralStorageStrategy(compute_devices=devices, parameter_device="/cpu:0")
    return train(task, strategy)
