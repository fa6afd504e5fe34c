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

`worker` uses PyTorch's DistributedDataParallel (DDP). It collects gradients in buckets of
`bucket_mb` MiB (default: 25, and 1 for the first), so there are few messages. The backward pass
goes from the last layer to the first. As soon as a bucket is full, its all-reduce starts, while the
pass goes on with the layers nearer to the input: communication hides behind computing. Only the
last bucket cannot hide. With `overlap=False` all buckets start when the pass is over. A model below
the size of a bucket, such as that of `digits`, has one, and nothing overlaps; many small buckets
are many messages, each of which has its latency.

If a worker is lost, no other can finish the step, and the run fails. With `max_restarts` all go
back to the last checkpoint, which worker 0 saves for all.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
2020; Goyal et al., "Accurate, Large Minibatch SGD", 2017, for the learning rate.
"""

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib.cluster.task import Task
from course_lib.strategies.torch.exchange import LossAmongGradients, adding_up, lay_out
from course_lib.strategies.torch.steps import TorchStep, join


def naive(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch; average the gradients one by one.

    `start(naive, framework="torch", workers=2)` runs it.
    """
    join(task)
    step, workers = TorchStep(task), task.spec.workers
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, features), (...,)
        with step.computing():
            loss = step.backward(inputs, targets)  # forward, then backward: (), and the gradients
        with step.reducing():
            # the loss, the last of them, is averaged to be recorded, and for the count in it
            for tensor in [parameter.grad for parameter in step.parameters] + [loss]:
                dist.all_reduce(tensor)  # waits for all workers; leaves the sum of their tensors
                tensor /= workers  # in place
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()  # parameter -= rate * gradient
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
        inputs, targets = step.read(task.index, task.spec.workers)  # (batch / workers, ...) each
        with step.computing():
            # when it returns, each gradient is the sum over all workers, which is the mean here;
            # with `accumulate`, the parts before the last are computed `alone`: nothing is sent
            step.backward(inputs, targets, forward=ddp, alone=ddp.no_sync)
        loss = replica.mean_loss()  # ()
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()
