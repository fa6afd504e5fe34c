"""central_storage: the variables live once, in the memory of the host; the devices of one process
compute with them.

In each step every device fetches the variables from the host, computes the gradients of its share
of the batch, and sends them back. The host (`/cpu:0`) waits for the last of them, forms the mean,
and applies it: one update a step, in one place. So no copies have to be kept equal, and no device
needs room for variables between steps; but all of them, there and back, pass through the host in
every step.

This is a parameter server without a network: one that lives in the process of its only client.
Source: tf.distribute.experimental.CentralStorageStrategy.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.steps import use_several
from course_lib.strategies.tensorflow.training import train

HOST = "/cpu:0"


def worker(task: Task) -> dict[str, Any]:
    """Train all replicas: on GPUs if there is one for each, else on logical devices of the CPU
    other than the one that stands for the host.
    """
    devices = use_several(task.device, task.spec.replicas, host_apart=True)
    # Its own choice for a single device would be to keep the variables there, so it is told.
    strategy = tf.distribute.experimental.CentralStorageStrategy(devices, HOST)
    with strategy.scope(), tf.variable_creator_scope(first_replica_writes):
        return train(task, strategy)


def first_replica_writes(create: Callable[..., Any], **options: Any) -> Any:
    """Make a variable; of those that are not trained, the first replica writes the one copy.

    Moving means of batch normalisation are such, and the state of dropout's random numbers, so all
    replicas drop the same units.
    """
    if not options.get("trainable", True):
        options["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return create(**options)
