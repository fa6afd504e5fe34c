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
