"""multi_worker_mirrored: every worker process holds a copy of the parameters, and an all-reduce
keeps the copies equal.

All-reduce: each worker brings its gradients, and all leave with the mean. Each applies that mean to
its own copy, so the copies change alike. Nobody begins the next step before the mean is there, so
all wait for the slowest. DDP's own all-reduce is that of gloo, or of NCCL between GPUs; with
`all_reduce=` a schedule of ours takes its place.

DistributedDataParallel (DDP) gathers gradients in buckets. As soon as the backward pass has filled
a bucket, its all-reduce starts, while the backward pass goes on with the layers before:
communication hides behind computing. That needs more than one bucket, and the first is not full
before it holds 1 MiB of gradients: `digits` has one bucket, `wide` has two from about two million
parameters on.

What hides here, and what does not: emulated device time (`device_ms`) is slept before the forward
pass, so no exchange hides behind that, only behind what is really computed. And on GPUs the clock
of this page waits for the device when a reduction begins and when it ends. So its times are true,
but computing stops meanwhile: the overlap that DDP brings is lost for as long as it is measured
this way. Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", VLDB 2020.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.torch.devices import now, use
from course_lib.strategies.torch.exchange import ScheduledAllReduce
from course_lib.strategies.torch.training import Replica, Span, train
from course_lib.workloads.torch import build

TIMEOUT = timedelta(seconds=60)
"""For how long a worker waits for another that neither answers nor is known to be gone."""


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch."""
    device = use(task.device)
    workload = workloads.load(task.spec)
    # The workers meet at the address in MASTER_ADDR and MASTER_PORT, which worker 0 serves.
    dist.init_process_group("nccl" if task.backend == "nccl" else "gloo", timeout=TIMEOUT)
    replica = Replica(build(workload, task.spec.seed)).to(device)
    # copies rank 0's parameters to all
    averaged = DistributedDataParallel(replica, gradient_as_bucket_view=True)
    reductions = ScheduledAllReduce(task, device) if task.schedule else TimedAllReduce(device)
    averaged.register_comm_hook(None, reductions.start)
    return train(task, workload, replica, averaged, reductions.take)


class TimedAllReduce:
    """What DDP does with a bucket anyway, its mean over all workers, with a note of when it began
    and ended.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.workers = dist.get_world_size()
        self._spans: list[Span] = []

    def start(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Called by DDP when all gradients of a bucket are there: start its all-reduce and return
        the future of the result.
        """
        begun = now(self.device)

        def end(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            self._spans.append((begun, now(self.device)))
            return future.value()[0]

        share = bucket.buffer().div_(self.workers)
        return dist.all_reduce(share, async_op=True).get_future().then(end)

    def take(self) -> list[Span]:
        """(start, end) of each reduction of the step just done, in the order in which they began."""
        spans, self._spans = sorted(self._spans), []
        return spans
