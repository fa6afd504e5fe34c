"""How DistributedDataParallel (DDP) averages gradients and, along with them, the loss: by the
all-reduce of gloo or NCCL, or by one of ours.

DDP calls a communication hook whenever the backward pass has filled a bucket of gradients. The
hooks here do what DDP does without one, and record when each bucket's reduction began and ended.
DDP checks their annotations, so these must not be strings.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from course_lib.strategies.torch.steps import TorchStep

Hook = Callable[[None, dist.GradBucket], Future[torch.Tensor]]
Outcome = Callable[[], Any]
"""Raises the error of an all-reduce, if it had one."""


class LossAmongGradients(torch.nn.Module):
    """A model that returns its loss, disguised so that DDP averages the loss as well.

    DDP averages gradients and nothing else, and a message of its own for the loss would make every
    step longer. So there is one parameter more. It is zero and stays zero; it is multiplied by the
    loss and added to it, so that its gradient is the loss.
    """

    def __init__(self, step: TorchStep) -> None:
        super().__init__()
        self.model, self.loss_of = step.model, step.loss_of
        self.zero = torch.nn.Parameter(torch.zeros((), device=step.device))

    def forward(self, inputs: Any, targets: Any) -> Any:
        loss = self.loss_of(self.model(inputs), targets)
        return torch.addcmul(loss, loss.detach(), self.zero)  # loss + loss * zero

    def mean_loss(self) -> float:
        """The mean loss of all workers, once the backward pass is over."""
        assert self.zero.grad is not None
        loss, self.zero.grad = self.zero.grad.item(), None
        return loss


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


def averaging(step: TorchStep) -> Hook:
    """The hook for the all-reduce of this run.

    With `overlap`, a bucket's all-reduce starts as soon as the backward pass has filled the bucket;
    without, all start when the last bucket is full, which is when the pass is over.
    """
    workers, reduce = dist.get_world_size(), _scheduled(step) if step.task.schedule else _native
    full: list[tuple[torch.Tensor, Future[torch.Tensor]]] = []

    def start(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        share = bucket.buffer().div_(workers)
        mean: Future[torch.Tensor] = Future(devices=[step.device] if share.is_cuda else [])
        full.append((share, mean))
        if bucket.is_last():  # from here on the backward pass only waits
            step.task.enter("reduce")
        if step.spec.overlap or bucket.is_last():
            begun = step.now()
            for each in full:
                reduce(each[0], partial(end, *each, begun))
            full.clear()
        return mean

    def end(share: torch.Tensor, mean: Future[torch.Tensor], begun: Any, outcome: Outcome) -> None:
        try:
            outcome()
            step.reduced_beside(begun)
        except Exception as error:  # a future would make it a RuntimeError that speaks of tensors
            step.failure = error
        mean.set_result(share)

    return start


def _native(share: torch.Tensor, end: Callable[[Outcome], None]) -> None:
    """The all-reduce of the process group, as DDP starts it without a hook."""
    dist.all_reduce(share, async_op=True).get_future().then(lambda future: end(future.value))


def _scheduled(step: TorchStep) -> Callable[[torch.Tensor, Callable[[Outcome], None]], None]:
    """The all-reduce by the schedule of the run.

    It goes on in a thread beside the backward pass, one bucket after the other in the order in
    which they are filled, which is the same on all workers.
    """
    assert step.task.schedule
    schedule, group = step.task.schedule, step.task.group()
    thread = ThreadPoolExecutor(1, "lockstep-exchange")

    def exchange(share: torch.Tensor) -> None:
        here = share.cpu()  # the tensor itself, where it is on the CPU already
        group.execute(schedule, here.numpy())
        share.copy_(here)
        step.census.note(exchange=group.buffered)

    def reduce(share: torch.Tensor, end: Callable[[Outcome], None]) -> None:
        thread.submit(exchange, share).add_done_callback(lambda future: end(future.result))

    return reduce
