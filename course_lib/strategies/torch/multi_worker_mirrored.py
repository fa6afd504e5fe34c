"""multi_worker_mirrored: every worker process holds a copy of the parameters, and an all-reduce
keeps the copies equal.

All workers begin with the same parameters, drawn from the same seed. Each computes the gradients of
its own share of the batch; shares are of equal size. In the all-reduce each brings its gradients,
and all leave with the sum, which they divide by the number of workers: the mean. Each applies that
mean to its own copy, so the copies stay equal. Nobody begins the next step before the mean is
there: all wait for the slowest. In a ring all-reduce, each of w workers sends 2 (w-1)/w S bytes a
step, for S bytes of gradients; other schedules differ.

`naive` is that idea and nothing else: when the backward pass is over, it averages the gradients,
one after the other. Two things cost time. Each of the many small messages adds its own latency, and
the network is idle while the workers compute.

`worker` uses PyTorch's DistributedDataParallel (DDP). It collects gradients in buckets, so there
are few messages. The backward pass goes from the last layer to the first. As soon as a bucket is
full, its all-reduce starts, while the pass goes on with the layers nearer to the input:
communication hides behind computing. Only the last bucket cannot hide, as it is full when the pass
is over. With `overlap=False` all buckets start only then, and each step waits for them. In the
lanes of the board, `reduce` is what a step waits for after the pass; a thin bar is communication
that is hidden.

The first bucket is full at 1 MiB of gradients and the others at 25 MiB; with `bucket_mb` all are
full at that size. A tensor is never split between buckets. In the first step one bucket has all
gradients, since DDP does not know yet in which order they come. The model of the `digits` workload
is smaller than 1 MiB: it has one bucket, and nothing overlaps. With small buckets the first leaves
early and the last, which nothing hides, is short; with large ones there are fewer messages, each of
which has its latency. The best size lies in between; it depends on the model and the network. DDP
uses the all-reduce of gloo, or of NCCL between GPUs; with `start(..., all_reduce="ring")` a
schedule of ours is used.

If a worker is lost, no other can finish the step, and the run fails. With `max_restarts` all are
started again instead and go on from the last checkpoint (`checkpoint_every`); as each holds the
whole model, worker 0 saves it for all. With `elastic` they go on from there with one worker fewer;
each computes as many examples as before, so the global batch shrinks, and the learning rate with it
(Goyal et al., "Accurate, Large Minibatch SGD", 2017).

Emulated device time (`device_ms`) is spread over the layers in proportion to their FLOPs, a third
of it forward and two thirds backward, so buckets hide behind it as they would on a device.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
2020.
"""

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib.cluster.task import Task
from course_lib.strategies.torch.exchange import LossAmongGradients, adding_up, lay_out
from course_lib.strategies.torch.steps import TorchStep, descend, join


def naive(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch; average the gradients one by one.

    `start(naive, framework="torch", workers=2)` runs it.
    """
    join(task)
    step, workers = TorchStep(task), task.spec.workers
    while step.begin():
        inputs, targets = step.read(task.index, workers)
        with step.computing():
            loss = step.backward(inputs, targets)  # forward, then backward
        with step.reducing():
            # the loss, the last of them, is averaged to be recorded, and for the count in it
            for tensor in [parameter.grad for parameter in step.parameters] + [loss]:
                dist.all_reduce(tensor)  # waits for all workers; leaves the sum of their tensors
                tensor /= workers  # in place
        with step.applying():
            descend(step, loss)  # parameter -= rate * gradient, and the gradients are reset
        step.done(loss)
    return step.result()


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch; DDP averages during the backward pass."""
    join(task)
    step = TorchStep(task)
    # The model, whose loss is multiplied by one parameter more, which is 1 / workers: sums of
    # gradients are means then, and the gradient of that parameter takes the loss along.
    replica = LossAmongGradients(step)
    # What differs from `naive`: DDP averages inside of `backward`, in buckets of `bucket_mb` MiB.
    # `gradient_as_bucket_view` saves a copy. `forward_sync_buffers=False` leaves the statistics of
    # batch normalisation to each replica, and saves a message a step.
    ddp = DistributedDataParallel(
        replica,
        bucket_cap_mb=task.spec.bucket_mb,
        gradient_as_bucket_view=True,
        forward_sync_buffers=False,
    )
    lay_out(ddp, step)  # where a run goes on from a checkpoint, in the same buckets
    ddp.register_comm_hook(None, adding_up(step))  # sums a bucket, and records when
    while step.begin():
        inputs, targets = step.read(task.index, task.spec.workers)
        with step.computing():
            # when it returns, each gradient is the sum over all workers, which is the mean here;
            # with `accumulate`, the parts before the last are computed `alone`: nothing is sent
            step.backward(inputs, targets, forward=ddp, alone=ddp.no_sync)
        loss = replica.mean_loss()
        with step.applying():
            descend(step, loss)
        step.done(loss)
    return step.result()
