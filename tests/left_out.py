"""Calls of collectives that some ranks leave out."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from course_lib.cluster.task import Task

# the name by which a call is told -> the call, of torch.distributed and with these `tensors`
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "broadcast from rank 0": lambda dist, to: dist.broadcast(to.one, src=0),
    "all_reduce": lambda dist, to: dist.all_reduce(to.one),
    "reduce to rank 0": lambda dist, to: dist.reduce(to.one, dst=0),
    "all_gather": lambda dist, to: dist.all_gather(to.each, to.one),
    "all_gather_into_tensor": lambda dist, to: dist.all_gather_into_tensor(to.long, to.one),
    "gather to rank 0": lambda dist, to: dist.gather(to.one, to.root, dst=0),
    "scatter from rank 0": lambda dist, to: dist.scatter(to.one, to.root, src=0),
    "reduce_scatter": lambda dist, to: dist.reduce_scatter(to.one, to.each),
    "reduce_scatter_tensor": lambda dist, to: dist.reduce_scatter_tensor(to.one, to.long),
    "all_to_all": lambda dist, to: dist.all_to_all(to.each, [each.clone() for each in to.each]),
    "all_to_all_single": lambda dist, to: dist.all_to_all_single(to.long, to.long.clone()),
    "barrier": lambda dist, to: dist.barrier(),
    "monitored_barrier": lambda dist, to: dist.monitored_barrier(),
    "broadcast_object_list from rank 0": lambda dist, to: dist.broadcast_object_list([1], src=0),
    "all_gather_object": lambda dist, to: dist.all_gather_object([None for _ in to.each], 1),
    "gather_object to rank 0": lambda dist, to: dist.gather_object(1, to.root, dst=0),
    "scatter_object_list from rank 0": lambda dist, to: dist.scatter_object_list(
        [None], [1 for _ in to.each], src=0
    ),
    "new_group": lambda dist, to: dist.new_group(),
}


def call(name: str) -> None:
    import torch
    import torch.distributed as dist

    one, each = torch.ones(4), [torch.ones(4) for _ in range(dist.get_world_size())]
    root = each if dist.get_rank() == 0 else None  # what only the root gives
    CALLS[name](dist, SimpleNamespace(one=one, each=each, root=root, long=torch.cat(each)))


def program(name: str, ranks: set[int], before: int = 0) -> Callable[[Task], None]:
    """A function in which only these `ranks` make a call, after `before` all-reduces of all."""

    def function(task: Task) -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        for _ in range(before):
            dist.all_reduce(torch.ones(3))
        if task.rank in ranks:
            call(name)

    return function


def meeting(task: Task) -> None:
    import torch.distributed as dist

    if task.rank:
        dist.init_process_group("gloo")


def sends(task: Task) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if task.rank == 0:
        dist.isend(torch.ones(4), dst=1).wait()


def receives(task: Task) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if task.rank == 1:
        dist.recv(torch.ones(4))


def in_a_smaller_group(task: Task) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    group = dist.new_group([0, 1])
    if task.rank == 0:
        dist.broadcast(torch.ones(4), src=0, group=group)


def our_own(task: Task) -> None:
    import numpy as np

    from course_lib.collectives.algorithms.ring import ring

    schedule = ring(3)
    group = task.group(schedule)
    for _ in range(2 + (task.rank != 1)):
        group.execute(schedule, np.ones(9, "float32"))
