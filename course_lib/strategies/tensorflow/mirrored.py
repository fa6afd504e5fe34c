from __future__ import annotations

from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.devices import use_several
from course_lib.strategies.tensorflow.training import train

CROSS_DEVICE_OPS = {
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduction_to_one_device": tf.distribute.ReductionToOneDevice,
    "nccl": tf.distribute.NcclAllReduce,
}


def worker(task: Task) -> dict[str, Any]:
    devices = use_several(task.device, task.spec.replicas)
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=CROSS_DEVICE_OPS[task.spec.cross_device_ops]())
    return train(task, strategy)
