"""mirrored: one process, several devices, a copy of the variables on each; the copies get the same
update in each step.

The process runs one Python program. `strategy.run` calls it once for each replica, on that
replica's device with that replica's share of the batch; `batch_reduce_to` brings the mean of the
gradients to every device; `update` applies it to the copy that lives there. All of it is one
TensorFlow graph, so the replicas run at the same time and nobody needs an address or a port. No
replica starts the next step before all have this one.

How the mean comes about is the strategy's `all_reduce`, for n devices and S bytes of
gradients:

    reduction_to_one_device   n - 1 devices send S to the first, which adds and sends the mean back:
                              it moves (n - 1) S each way
    hierarchical_copy         the same within each half of the devices, and the two halves meet:
                              n/2 S each way at the busiest device
    nccl                      a ring between GPUs: 2 (n - 1)/n S for each

Left to itself, `MirroredStrategy()` takes none of these but TensorFlow's collective operations
(CollectiveAllReduce, in TensorFlow 2.21): NCCL where all replicas are GPUs, a ring where all are
CPUs; and reduction to one device for a mixture. Here hierarchical copy is the default, because it
works between any devices, and between the logical devices of a CPU, which share memory, it is
faster than that ring.

Hierarchical copy is made for machines whose GPUs form two halves with fast links within each.
TensorFlow's takes n // 2 devices for each half: of an odd number it leaves one out, and that
replica's gradient is lost without a word (seen in TensorFlow 2.21), so a run like that is refused.

Sources: tf.distribute.MirroredStrategy, tf.distribute.HierarchicalCopyAllReduce.
"""

from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.facts.one_machine import reduction
from course_lib.strategies.tensorflow.steps import use_several
from course_lib.strategies.tensorflow.training import train

CROSS_DEVICE_OPS = {
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduction_to_one_device": tf.distribute.ReductionToOneDevice,
    "nccl": tf.distribute.NcclAllReduce,
}


def worker(task: Task) -> dict[str, Any]:
    """Train all replicas: on GPUs if there is one for each, else on logical devices of the CPU."""
    devices = use_several(task.device, task.spec.replicas)
    average = CROSS_DEVICE_OPS[reduction(task.spec)]()
    return train(task, tf.distribute.MirroredStrategy(devices, average))
