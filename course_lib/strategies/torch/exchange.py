"""An all-reduce of ours as the communication hook of DistributedDataParallel."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from course_lib.cluster.task import Task
from course_lib.strategies.torch.devices import now
from course_lib.strategies.torch.training import Span


class ScheduledAllReduce:
    """The mean of each bucket over all workers, by the schedule of the run.

    The exchange goes on in a thread beside the backward pass, one bucket after the other in the
    order in which they are filled, which is the same on all workers.
    """

    def __init__(self, task: Task, device: Any) -> None:
        assert task.schedule
        self.schedule, self.group, self.device = task.schedule, task.group(), device
        self._thread = ThreadPoolExecutor(1, "lockstep-exchange")
        self._spans: list[Span] = []
        self._error: Exception | None = None

    def start(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Called by DDP when all gradients of a bucket are there: begin its exchange and return the
        future of the result.
        """
        begun = now(self.device)
        share = bucket.buffer().div_(self.schedule.workers)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[self.device] if share.is_cuda else []
        )
        self._thread.submit(self._exchange, share, begun, future)
        return future

    def _exchange(
        self, share: torch.Tensor, begun: float, future: torch.futures.Future[torch.Tensor]
    ) -> None:
        try:
            here = share.cpu()  # the tensor itself, where it is on the CPU already
            self.group.execute(self.schedule, here.numpy())
            share.copy_(here)
            self._spans.append((begun, now(self.device)))
            future.set_result(share)
        except Exception as error:  # a future would make it a RuntimeError that speaks of tensors
            self._error = error
            future.set_result(share)

    def take(self) -> list[Span]:
        """(start, end) of each reduction of the step just done, in the order in which they began."""
        if self._error:
            raise self._error
        spans, self._spans = sorted(self._spans), []
        return spans
