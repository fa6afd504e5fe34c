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
last bucket cannot hide. The first step has one bucket, as DDP still learns the order. With
`overlap=False` all buckets start when the pass is over. A model smaller than a bucket, such as that
of `digits`, is one bucket, and nothing overlaps. Many small buckets each pay latency.

If a worker is lost, no other can finish the step, and the run fails. With `max_restarts` all go
back to the last checkpoint, which worker 0 saves for all.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
2020; Goyal et al., "Accurate, Large Minibatch SGD", 2017, for the learning rate.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from course_lib.cluster.task import Task
from course_lib.strategies.torch.models import counts
from course_lib.strategies.torch.steps import TorchStep, join

Hook = Callable[[None, dist.GradBucket], Future[torch.Tensor]]
Call = Callable[[], Any]
ASYNCHRONOUS = dist.AllreduceOptions()
ASYNCHRONOUS.asyncOp = True


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
            # the loss comes last: its mean is recorded, and so is that of a count in it
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
    # The model with one parameter more, 1 / workers, by which its loss is multiplied. So a sum of
    # gradients is their mean, and the gradient of that parameter is the loss, averaged as well.
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


# --- the all-reduces, and the record of them ---
# DDP calls a communication hook whenever the backward pass has filled a bucket. `adding_up` does
# what DDP does without one, or follows a schedule of ours, and records when each bucket's reduction
# began and ended. DDP checks its annotations, so these must not be strings.


class LossAmongGradients(nn.Module):
    """A model that returns its part of the mean loss, made so that the all-reduce of gradients adds
    up to means, and averages the loss as well.

    The loss is multiplied by one parameter more, `part`, whose first number is 1 / workers. So the
    sum of all workers' gradients is their mean, and nobody has to pass over them once more to
    divide; and the gradient of `part` is the loss, which needs no message of its own. Where
    a loss is a sum and a count, the count is multiplied by the second number, 0: it adds nothing to
    the gradients, and is summed over the workers.
    """

    def __init__(self, step: TorchStep) -> None:
        super().__init__()
        sketch, self.tables = step.workload.sketch_in("torch", step.spec.precision), nn.ModuleList()
        for name in sketch.sparse if sketch else ():
            # DDP takes a sparse gradient only of what it meets first as the weight of an embedding
            self.tables.append(table := nn.Embedding(1, 1, sparse=True))
            table.weight = step.model.get_parameter(name)
        self.model, self.loss_of, self.workers = step.model, step.loss_of, step.spec.workers
        part = [1 / self.workers, 0.0][: 2 if counts(step.workload) else 1]
        self.part, self.counts = nn.Parameter(torch.tensor(part, device=step.device)), False

    def forward(self, inputs: Any, targets: Any) -> Any:
        loss = self.loss_of(self.model(inputs), targets)
        self.counts = loss.dim() > 0
        return (loss * self.part).sum() if self.counts else loss * self.part[0]

    def mean_loss(self) -> torch.Tensor:
        """The mean of all workers' losses, once the backward pass is over."""
        total, self.part.grad = self.part.grad / self.workers, None
        return total if self.counts else total[0]


def lay_out(ddp: Any, step: TorchStep) -> None:
    """If the run goes on from a checkpoint, let DDP lay out its buckets as it had before.

    It does so in its first backward pass, in which all gradients are one bucket. Which gradients
    lie in a bucket, and where, decides in which order the workers' values are added up, and so the
    last bits of the sums. Here that first pass is made in advance, and its gradients are dropped.
    To be called before the hook is registered.
    """
    if step.origin:
        inputs, targets = step.tensors(np.arange(step.spec.per_worker_batch))
        step.mixed(ddp)(inputs, targets).backward()
        ddp.zero_grad(set_to_none=True)


def adding_up(step: TorchStep) -> Hook:
    """The hook for the all-reduce of this run.

    With `overlap`, a bucket's all-reduce starts as soon as the backward pass has filled the bucket;
    without, all start when the last bucket is full, which is when the pass is over. Then the hook
    waits for them. So all futures that it returns to DDP are done, and if an all-reduce fails, the
    backward pass raises its own error. (Of an error in a future DDP makes a RuntimeError.)
    """
    begin = _scheduled(step) if step.task.schedule else _native
    devices = [step.device] if step.device.type == "cuda" else []
    full: list[torch.Tensor] = []
    waits: list[Call] = []

    def hook(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        full.append(bucket.buffer())
        if bucket.is_last():
            step.task.enter("reduce")
        if bucket.is_last() or step.spec.overlap:
            over = partial(step.reduced_beside, step.now())
            waits.extend(begin(sums, over, bucket.is_last()) for sums in full)
            full.clear()
        if bucket.is_last():
            for wait in waits:
                wait()
            waits.clear()
        done: Future[torch.Tensor] = Future(devices=devices)
        done.set_result(bucket.buffer())
        return done

    return hook


def _native(sums: torch.Tensor, over: Call, last: bool) -> Call:
    """Begin the all-reduce of the process group, as DDP does without a hook, and call `over` when
    it is over; what is returned waits for that. (`dist.all_reduce` does the same, after checks in
    Python that take 0.03 ms of a small model's step.)
    """
    here = sums.to_dense() if sums.is_cuda else sums  # NCCL adds up no sparse tensors
    work = dist.group.WORLD.allreduce([here], ASYNCHRONOUS)
    noted = None if last else work.get_future().then(lambda _: over())  # the last is waited for

    def wait() -> None:
        work.wait()
        put_back(here, sums)
        noted.wait() if noted else over()

    return wait


def _scheduled(step: TorchStep) -> Callable[[torch.Tensor, Call, bool], Call]:
    """The all-reduce by the schedule of the run.

    It goes on in a thread beside the backward pass, one bucket after the other in the order in
    which they are filled, which is the same on all workers.
    """
    assert step.task.schedule
    schedule, group = step.task.schedule, step.task.group()
    thread = ThreadPoolExecutor(1, "lockstep-exchange")

    def exchange(sums: torch.Tensor, over: Call) -> None:
        here = sums.to_dense().cpu()  # the tensor itself, if it is a dense one on the CPU
        group.execute(schedule, here.numpy())
        put_back(here, sums)
        step.census.note(exchange=group.buffered)
        over()

    return lambda sums, over, last: thread.submit(exchange, sums, over).result


def put_back(whole: torch.Tensor, sums: torch.Tensor) -> None:
    """Copy what an all-reduce has made of a dense copy of a bucket into the bucket, which is sparse
    for an embedding with sparse gradients.
    """
    sums.copy_(whole.to_sparse(sums.sparse_dim()) if sums.is_sparse else whole)
