"""multi_worker_mirrored: every worker process holds a copy of the variables, and an all-reduce
keeps the copies equal.

The workers find each other through `TF_CONFIG`, an environment variable that holds the addresses of
all of them and which one this is. Each runs this same program on its share of the batch.

All-reduce: each worker brings its gradients, and all leave with the mean. Each applies that mean to
its own copy, so the copies change alike. Nobody begins the next step before the mean is there, so
all wait for the slowest. TensorFlow's own all-reduce is a ring, in which the workers pass pieces of
the gradients on from one to the next until all have the sum (between GPUs it is NCCL's); or, with
`all_reduce=`, it is a schedule of ours.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.devices import use
from course_lib.strategies.tensorflow.exchange import scheduled_mean
from course_lib.strategies.tensorflow.patience import be_patient
from course_lib.strategies.tensorflow.training import train


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch. Source: tf.distribute.MultiWorkerMirroredStrategy."""
    use(task.device)
    be_patient(task)
    collective = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=collective.NCCL if task.backend == "nccl" else collective.RING
    )
    # connects to the others, so it waits for them
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return train(task, strategy, scheduled_mean(task) if task.schedule else None)
