from __future__ import annotations
import functools

from typing import Any

import keras
import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.devices import use_several
from course_lib.strategies.tensorflow.training import make_step, train

POLICY = "mixed_bfloat16"

def worker(task: Task) -> dict[str, Any]:
    keras.config.set_dtype_policy(POLICY)
    devices = use_several("cpu", task.spec.replicas)
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())
    return train(task, strategy, make=functools.partial(make_step, compiler=xla))

def xla(f):
    return tf.function(f, jit_compile=True, autograph=False)
