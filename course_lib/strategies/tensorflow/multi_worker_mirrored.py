"""multi_worker_mirrored: every worker process holds a copy of the variables, and an all-reduce
keeps the copies equal.

The workers find each other through `TF_CONFIG`, an environment variable that holds the addresses of
all of them and which one this is. Each runs this same program on its share of the batch.

All workers begin with the same variables, drawn from the same seed. In the all-reduce each brings
its gradients, and all leave with the mean. Each applies that mean to its own copy, so the copies
stay equal. Nobody begins the next step before the mean is there: all wait for the slowest. In a
ring all-reduce, each of w workers sends 2 (w-1)/w S bytes a step, for S bytes of gradients.

`naive_step` is that idea and nothing else: it averages the gradients one after the other. Each
message adds its own latency, and each waits until the one before has arrived.

`worker` hands all gradients to the strategy in one call, and the strategy packs them into one
message. That has one latency, but the network is idle while the workers compute. With
`bucket_mb=0.5` there is a call for each bucket of about half a MiB. The backward pass goes from the
last layer to the first, and so do the buckets: each leaves as soon as its gradients are there, and
communication hides behind computing. Only the last bucket cannot hide, as it is full when the pass
is over. With `overlap=False` all buckets wait until then. (TensorFlow cuts such buckets itself if
its `CommunicationOptions` have `bytes_per_pack`; DistributedDataParallel of PyTorch always does.)

With overlapping buckets, a third of the `device_ms` passes before the forward pass, and the rest as
the backward pass of a slower device: each bucket leaves after its share of the floating-point
operations. Without them all of the `device_ms` passes before the forward pass.
Source: tf.distribute.MultiWorkerMirroredStrategy.
"""

from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.models import first
from course_lib.strategies.tensorflow.steps import ReplicasStep, after, be_patient, use
from course_lib.strategies.tensorflow.training import MEAN, descend, gradients_of, train


def naive(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch; average the gradients one by one.

    `start(naive, framework="tensorflow", workers=2)` runs it.
    """
    return train(task, connect(task), naive_step)


def naive_step(training: ReplicasStep) -> Any:
    """A whole step as one graph: gradients, their means one by one, and the update.

    The loss is averaged like a gradient, only to be recorded. `after(tensors)` is the time when all
    of them are ready; what depends on it waits for them.
    """
    strategy, variables = training.strategy, training.variables
    gradients_of_share = gradients_of(training)

    @tf.function(autograph=False)
    def step(inputs: Any, targets: Any) -> Any:  # (batch / w, features), (batch / w,)
        loss, *gradients = strategy.run(gradients_of_share, args=(inputs, targets))
        computed = after([loss, *gradients])
        arrived: list[Any] = []
        # a mean goes to where its variable lives; for the loss, which has none, any will do
        for value, home in zip([loss, *gradients], [variables[0], *variables], strict=True):
            with tf.control_dependencies([computed, *arrived]):  # wait for the mean before this one
                arrived.append(strategy.extended.reduce_to(MEAN, value, home))
        loss, *means = arrived
        reduced = after(arrived)
        applied = after([*descend(training, loss, means), reduced])
        return training.report(first(loss), computed, reduced, applied)

    return step


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch; average the gradients in one call for each bucket,
    or with a schedule of ours.

    Where `naive_step` has a loop over gradients, `train` has one over buckets, in `averaged`. A
    bucket is one call: `strategy.extended.batch_reduce_to(MEAN, list(zip(gradients, variables)))`
    """
    return train(task, connect(task))


def connect(task: Task) -> Any:
    """The strategy that joins all workers, once all are there. Its all-reduce is a ring between
    CPUs, and NCCL's between GPUs.
    """
    use(task.device)
    be_patient(task)
    collective = tf.distribute.experimental.CommunicationImplementation
    how = collective.NCCL if task.backend == "nccl" else collective.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=how)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
