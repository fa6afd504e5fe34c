"""tpu: a copy of the variables on every core of a TPU, and a program that XLA compiled for them.

A TPU runs no operation by itself, only whole compiled programs. XLA, its compiler, wants every
shape fixed before it starts, so each replica gets equally many examples in every step, and nothing
in a step may call back into Python. What is compiled here is what would be on any device: gradients
of a share, their mean over all cores, the update on every core. No core starts the next step before
all have this one.

A TPU multiplies matrices in bfloat16: float32 with 8 bits of significand left of 24, and all of its
exponents. So a run here has `precision="bfloat16"`, unless float32 is asked for: each layer
rounds its inputs and its weights before it multiplies, and passes bfloat16 on, while the variables,
their gradients, the loss and the mean stay float32.

Emulated, for want of a TPU: logical devices of the CPU play the cores; the replica's part of the
step, forward and backward pass, is compiled by XLA for each; and the inputs of a product are
rounded as there. Inside a fused program XLA may keep more digits than bfloat16 has. Not emulated
are the TPU's speed and its links: the cores' mean is formed outside of XLA.

Sources: tensorflow.org/guide/tpu; tensorflow.org/guide/mixed_precision; openxla.org/xla.
"""

from functools import partial
from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.tensorflow.models import first
from course_lib.strategies.tensorflow.steps import ReplicasStep, after, use_several
from course_lib.strategies.tensorflow.training import (
    all_at_once,
    descend,
    gradients_of,
    make_step,
    train,
)


def worker(task: Task) -> dict[str, Any]:
    """Train all replicas, on a TPU's cores or on what plays them."""
    if task.spec.emulate:
        return train(task, emulated(task.spec.replicas), partial(make_step, compiler=xla))
    return train(task, on_tpu(task.spec.replicas), one_program)


def emulated(replicas: int) -> Any:
    """A strategy whose devices play the cores of a TPU."""
    devices = use_several("cpu", replicas)
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def xla(gradients: Any) -> Any:
    """The same function, compiled as a whole by XLA; TensorFlow raises an error if it cannot be."""
    return tf.function(gradients, jit_compile=True, autograph=False)


def on_tpu(replicas: int) -> Any:
    """The strategy for the TPU of this machine, on as many of its cores as there are replicas."""
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    cores = tf.tpu.experimental.DeviceAssignment.build(topology, num_replicas=replicas)
    return tf.distribute.TPUStrategy(resolver, experimental_device_assignment=cores)


def one_program(training: ReplicasStep) -> Any:
    """The step of `make_step` as one program on every core, as a TPU needs it.

    A program on a TPU cannot look at a clock, so there is one time for all that it did: the trace
    shows the whole step as `compute`. The tests run it on logical devices only; no TPU
    has seen it yet.
    """
    strategy, variables = training.strategy, training.variables
    gradients_in = gradients_of(training)

    def together(strategy: Any, values: list[Any]) -> Any:
        """The mean of what all replicas computed, and the update."""
        loss, *means = all_at_once(training, values, [variables[0], *variables])
        descend(training, loss, means)
        return loss

    def replica(inputs: Any, targets: Any) -> Any:
        gradients = gradients_in(inputs, targets)
        return tf.distribute.get_replica_context().merge_call(together, args=(gradients,))

    @tf.function(autograph=False)
    def step(inputs: Any, targets: Any) -> Any:
        loss = first(strategy.run(replica, args=(inputs, targets)))
        done = after([loss])
        return training.report(loss, done, done, done)

    return step
