"""Functions of learners whose collectives do not fit together."""

import time
from typing import Any

from course_lib.cluster.task import Task


def _joined() -> tuple[Any, Any]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return torch, dist


def other_shape(task: Task) -> None:
    torch, dist = _joined()
    dist.barrier()
    dist.all_reduce(torch.zeros(10, 4 if task.index == 2 else 5))


def larger_shape(task: Task) -> None:
    torch, dist = _joined()
    dist.all_reduce(torch.zeros(1_000_000 if task.index == 2 else 500_000))


def other_dtype(task: Task) -> None:
    torch, dist = _joined()
    dist.all_reduce(torch.zeros(10, dtype=torch.float64 if task.index == 2 else torch.float32))


def other_collective(task: Task) -> None:
    torch, dist = _joined()
    if task.index == 1:
        dist.barrier()
    dist.all_reduce(torch.zeros(10))


def one_broadcasts(task: Task) -> None:
    torch, dist = _joined()
    if task.index == 1:
        dist.broadcast(torch.zeros(10), src=1)
    else:
        dist.all_reduce(torch.zeros(10))
    dist.all_reduce(torch.zeros(10))


def another_root(task: Task) -> None:
    torch, dist = _joined()
    dist.broadcast(torch.zeros(10), src=(task.index + 1) % 3)


def gathers_more(task: Task) -> None:
    torch, dist = _joined()
    mine = torch.zeros(4 + (task.index == 2))
    dist.all_gather([torch.zeros(4 + (task.index == 2)) for _ in range(3)], mine)


def one_returns(task: Task) -> None:
    torch, dist = _joined()
    for _ in range(3 if task.index == 2 else 4):
        dist.all_reduce(torch.zeros(10))


def one_ends_its_group(task: Task) -> None:
    torch, dist = _joined()
    for _ in range(3 if task.index == 2 else 4):
        dist.all_reduce(torch.zeros(10))
    dist.destroy_process_group()


def receive_from_each_other(task: Task) -> None:
    torch, dist = _joined()
    if task.index < 2:
        dist.recv(torch.zeros(4), src=1 - task.index)
        dist.send(torch.zeros(4), dst=1 - task.index)
    dist.barrier()


def groups_in_another_order(task: Task) -> None:
    torch, dist = _joined()
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if task.index == 0 else groups[::-1]:
        dist.all_reduce(torch.zeros(10), group=group)
    dist.barrier()


def waits_for_async(task: Task) -> None:
    torch, dist = _joined()
    work = dist.all_reduce(torch.zeros(10, 4 if task.index == 2 else 5), async_op=True)
    time.sleep(0.1)
    work.wait()


def _sends(task: Task, sent: int, received: int) -> None:
    torch, dist = _joined()
    if task.index == 0:
        dist.send(torch.zeros(sent), dst=1)
    if task.index == 1:
        dist.recv(torch.zeros(received), src=0)
    dist.barrier()


def receives_less(task: Task) -> None:
    _sends(task, 8, 4)


def receives_more(task: Task) -> None:
    _sends(task, 4, 8)


def never_comes(task: Task) -> None:
    torch, dist = _joined()
    dist.barrier()
    if task.index == 2:
        while True:
            time.sleep(0.01)
    dist.all_reduce(torch.zeros(10))


def _ddp(task: Task, model: Any = None, **options: Any) -> tuple[Any, Any]:
    """A model in DDP, each rank with inputs of its own, and a function of its steps."""
    torch, _ = _joined()
    torch.manual_seed(0)
    ddp = torch.nn.parallel.DistributedDataParallel(model or torch.nn.Linear(4, 3), **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(task.index)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            ddp(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    steps.optimizer = optimizer  # type: ignore[attr-defined]  # of a function
    return ddp, steps


def ddp_returns_early(task: Task) -> None:
    _, steps = _ddp(task)
    steps(3 + 2 * task.index)


def ddp_ends_its_group_early(task: Task) -> None:
    import torch.distributed as dist

    _, steps = _ddp(task)
    steps(3 + 2 * task.index)
    dist.destroy_process_group()


def watched_ddp_returns_early(task: Task) -> None:
    ddp, steps = _ddp(task)
    task.watch(ddp, steps.optimizer)
    steps(5 + 2 * task.index)


def _normalized() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


def batch_norm_returns_early(task: Task) -> None:
    _, steps = _ddp(task, _normalized())
    steps(3 + 2 * task.index)


def batch_norm_returns_early_but_rank_0(task: Task) -> None:
    _, steps = _ddp(task, _normalized())
    steps(5 if task.index == 0 else 3)


def ddp_leaves_early(task: Task) -> None:
    import torch.distributed as dist

    _, steps = _ddp(task)
    steps(3 + 2 * task.index)
    dist.barrier()


def fsdp_returns_early(task: Task) -> None:
    torch, _ = _joined()
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(4, 3))
    for _ in range(3 + 2 * task.index):
        model(torch.randn(8, 4)).square().mean().backward()


def last_stage_returns_early(task: Task) -> None:
    torch, _ = _joined()
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(torch.nn.Linear(4, 4), task.index, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.MSELoss())
    for _ in range(4 - task.index):
        if task.index == 0:
            schedule.step(torch.ones(8, 4))
        else:
            schedule.step(target=torch.ones(8, 4))


def joined_ddp(task: Task) -> list[float]:
    """Rank 1 has two steps more, each longer than it takes to see a standstill."""
    ddp, steps = _ddp(task)
    with ddp.join():
        steps(2)
        for _ in range(2 * task.index):
            time.sleep(1.5)
            steps(1)
    return [x for p in ddp.parameters() for x in p.flatten().tolist()]


def slow_ddp(task: Task) -> None:
    """Rank 1 takes long over a backward pass; rank 0 then over a forward pass that it makes alone,
    after rank 1 has returned, and over a gradient of the inputs.
    """
    import torch

    class Slow(torch.autograd.Function):
        seconds = 0.0

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]  # has one gradient
            time.sleep(Slow.seconds)
            return gradient

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.last(Slow.apply(self.first(x)))  # type: ignore[no-untyped-call]  # `apply` is

    ddp, steps = _ddp(task, Model())
    steps(2)
    Slow.seconds = 2.5 * task.index
    steps(1)
    if task.index == 0:
        Slow.seconds = 2.5
        inputs = torch.randn(8, 4, requires_grad=True)
        torch.autograd.grad(ddp(inputs).sum(), inputs)
