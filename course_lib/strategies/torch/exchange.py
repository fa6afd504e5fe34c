"""Average gradients and, along with them, the loss in DistributedDataParallel (DDP): by the
all-reduce of gloo or NCCL, or by one of ours.

DDP calls a communication hook whenever the backward pass has filled a bucket of gradients. The hook
here does what DDP does without one, and records when each bucket's reduction began and ended. DDP
checks its annotations, so these must not be strings.
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

from course_lib.strategies.torch.models import counts
from course_lib.strategies.torch.steps import TorchStep

Hook = Callable[[None, dist.GradBucket], Future[torch.Tensor]]
Call = Callable[[], Any]
Reduce = Callable[[torch.Tensor, Call, bool], Call]
"""Starts the all-reduce of a bucket, and says whether it is the `last`. It calls the second when it
is over; what is returned waits for that, and raises the error if there was one.
"""


class LossAmongGradients(nn.Module):
    """A model that returns its part of the mean loss, made so that the all-reduce of gradients adds
    up to means, and averages the loss as well.

    The loss is multiplied by one parameter more, `part`, whose first number is 1 / workers. So the
    sum of all workers' gradients is their mean, and nobody has to pass over them once more to
    divide; and the gradient of `part` is the loss, which needs no message of its own. Of a loss
    that is a sum and a count, the count is multiplied by the second number, which is 0.
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
        assert self.part.grad is not None
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
    reduce = _scheduled(step) if step.task.schedule else _native()
    devices = [step.device] if step.device.type == "cuda" else []
    full: list[torch.Tensor] = []
    waits: list[Call] = []

    def hook(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        last = bucket.is_last()
        full.append(bucket.buffer())
        if last:
            step.task.enter("reduce")
        if last or step.spec.overlap:
            over = partial(step.reduced_beside, step.now())
            waits.extend(reduce(sums, over, last) for sums in full)
            full.clear()
        if last:
            for wait in waits:
                wait()
            waits.clear()
        done: Future[torch.Tensor] = Future(devices=devices)
        done.set_result(bucket.buffer())
        return done

    return hook


def put_back(whole: torch.Tensor, sums: torch.Tensor) -> None:
    """Copy what an all-reduce has made of a dense copy of a bucket into the bucket, which is sparse
    for an embedding with sparse gradients.
    """
    sums.copy_(whole.to_sparse(sums.sparse_dim()) if sums.is_sparse else whole)


def _native() -> Reduce:
    """Starts the all-reduce of the process group, as DDP does without a hook. `dist.all_reduce`
    does the same, after checks in Python that take 0.03 ms of a small model's step.
    """
    group, asynchronous = dist.group.WORLD, dist.AllreduceOptions()
    asynchronous.asyncOp = True
    assert group

    def reduce(sums: torch.Tensor, over: Call, last: bool) -> Call:
        here = sums.to_dense() if sums.is_cuda else sums  # NCCL adds up no sparse tensors
        work = group.allreduce([here], asynchronous)
        noted = None if last else work.get_future().then(lambda _: over())

        def wait() -> None:
            work.wait()
            put_back(here, sums)
            noted.wait() if noted else over()

        return wait

    return reduce


def _scheduled(step: TorchStep) -> Reduce:
    """Starts the all-reduce by the schedule of the run.

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
