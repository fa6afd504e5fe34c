"""How DistributedDataParallel (DDP) averages gradients and, along with them, the loss: by the
all-reduce of gloo or NCCL, or by one of ours.

DDP calls a communication hook whenever the backward pass has filled a bucket of gradients. The
hooks here do what DDP does without one, and record when each bucket's reduction began and ended.
DDP checks their annotations, so these must not be strings.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from course_lib.strategies.torch.steps import TorchStep

Hook = Callable[[None, dist.GradBucket], Future[torch.Tensor]]


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
        return loss + loss.detach() * self.zero

    def mean_loss(self) -> float:
        """The mean loss of all workers, once the backward pass is over."""
        assert self.zero.grad is not None
        loss, self.zero.grad = self.zero.grad.item(), None
        return loss


def averaging(step: TorchStep) -> Hook:
    """The hook for the all-reduce of this run."""
    return _scheduled(step) if step.task.schedule else _native(step)


def _native(step: TorchStep) -> Hook:
    """What DDP does without a hook: the all-reduce of the process group."""
    workers = dist.get_world_size()

    def start(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        begun = step.now()

        def end(future: Future[list[torch.Tensor]]) -> torch.Tensor:
            step.reduced_beside(begun)
            return future.value()[0]

        share = bucket.buffer().div_(workers)
        return dist.all_reduce(share, async_op=True).get_future().then(end)

    return start


def _scheduled(step: TorchStep) -> Hook:
    """The mean of each bucket by the schedule of the run.

    The exchange goes on in a thread beside the backward pass, one bucket after the other in the
    order in which they are filled, which is the same on all workers.
    """
    assert step.task.schedule
    schedule, group = step.task.schedule, step.task.group()
    thread = ThreadPoolExecutor(1, "lockstep-exchange")

    def start(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        begun, share = step.now(), bucket.buffer().div_(schedule.workers)
        future: Future[torch.Tensor] = Future(devices=[step.device] if share.is_cuda else [])
        thread.submit(exchange, share, begun, future)
        return future

    def exchange(share: torch.Tensor, begun: float, future: Future[torch.Tensor]) -> None:
        try:
            here = share.cpu()  # the tensor itself, where it is on the CPU already
            group.execute(schedule, here.numpy())
            share.copy_(here)
            step.reduced_beside(begun)
        except Exception as error:  # a future would make it a RuntimeError that speaks of tensors
            step.failure = error
        future.set_result(share)

    return start
