"""multi_worker_mirrored: every worker process holds a copy of the parameters, and an all-reduce
keeps the copies equal.

Each worker computes the gradients of its own share of the batch. In the all-reduce each brings its
gradients, and all leave with the mean. Each applies that mean to its own copy, so the copies change
alike. Nobody begins the next step before the mean is there: all wait for the slowest. A worker
sends about 2 (w-1)/w S bytes in a step, with w workers and S bytes of gradients.

`naive` is that idea and nothing else: when the backward pass is over, it averages the gradients,
one after the other. Two things cost time. Each of the many small messages adds its own latency, and
the network is idle while the workers compute.

`worker` uses PyTorch's DistributedDataParallel (DDP). It collects gradients in buckets, so there
are few messages. As soon as the backward pass has filled a bucket, the bucket's all-reduce starts,
while the backward pass goes on with the layers before: communication hides behind computing. That
takes more than one bucket, and the first one is full at 1 MiB of gradients: `digits` has one
bucket, `wide` has two from about two million parameters on. DDP uses the all-reduce of gloo, or of
NCCL between GPUs; with `all_reduce=` a schedule of ours takes its place.

Two remarks on the times in the trace. Emulated device time (`device_ms`) is slept before the
forward pass, so an exchange hides only behind what is really computed. On GPUs the recorder waits
for the device at the beginning and the end of a reduction: the times are true, but the overlap that
they would show is lost. Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data
Parallel Training", VLDB 2020.
"""

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib.cluster.task import Task
from course_lib.strategies.torch.exchange import LossAmongGradients, averaging
from course_lib.strategies.torch.steps import TorchStep, descend, join, loss_of, model_of


def naive(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch; average the gradients one by one.

    `start(naive, framework="torch", workers=2)` runs it.
    """
    join(task)
    model, workers = model_of(task), task.spec.workers
    step = TorchStep(task, model)
    while step.begin():
        images, labels = step.read(task.index, workers)
        with step.computing():
            loss = loss_of(model(images), labels)
            loss.backward()
        with step.reducing():
            for tensor in [parameter.grad for parameter in model.parameters()] + [loss.data]:
                dist.all_reduce(tensor)  # waits for all workers; leaves the sum of their tensors
                tensor /= workers
        with step.applying():
            descend(model, step.rate)
        step.done(loss.item())
    return step.result()


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch; DDP averages during the backward pass."""
    join(task)
    model = model_of(task)
    replica = LossAmongGradients(model)
    averaged = DistributedDataParallel(replica, gradient_as_bucket_view=True)  # what differs
    step = TorchStep(task, model)
    averaged.register_comm_hook(None, averaging(step))  # the same all-reduce, recorded
    while step.begin():
        images, labels = step.read(task.index, task.spec.workers)
        with step.computing():
            loss = averaged(images, labels)
            loss.backward()  # when it returns, each gradient is the mean over all workers
        with step.applying():
            descend(model, step.rate)
        step.done(replica.mean_loss())
    return step.result()
