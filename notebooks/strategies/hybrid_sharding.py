"""Hybrid sharding: state is divided among the workers of a host, and repeated on every host.

Between hosts wires are slow. With ZeRO over all workers, gradients and values of all parameters
cross them. Here each worker keeps the part of its place on the host. Inside the host gradients are
scattered and values gathered; between hosts only equal parts are averaged, so each worker sends
1/k of the gradients across, with k workers on a host. The price: memory is divided by k, not by n.

Source: Zhao et al., "PyTorch FSDP", VLDB 2023 (arXiv:2304.11277), section 3.2.2, "hybrid sharding".
"""

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from course_lib import strategy
from course_lib.torch import Step, join


@strategy(exact=True)
def hybrid_sharding(task):
    join(task)
    inside, across, place, k = groups(task)
    step, workers = Step(task, holds=f"shard {place}"), task.spec.workers
    parameters = step.parameters
    step.parameters = [part_of(each, place, k) for each in parameters]  # for the optimizer
    step.own_state = {str(i): part for i, part in enumerate(step.parameters)}
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            for parameter, part in zip(parameters, step.parameters):
                whole = pad(parameter.grad.flatten(), (0, -parameter.numel() % k)) / workers
                came = torch.empty_like(whole)  # this part, from all workers of the host
                dist.all_to_all_single(came, whole, group=inside)
                part.grad, parameter.grad = came.view(k, -1).sum(0), None
                dist.all_reduce(part.grad, group=across)  # the same part on the other hosts
            dist.all_reduce(loss)
            loss /= workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        with step.reducing():
            for parameter, part in zip(parameters, step.parameters):
                whole = part.new_empty(k * len(part))
                dist.all_gather_single(whole, part, group=inside)
                parameter.data.copy_(whole[: parameter.numel()].view_as(parameter))
        step.done(loss)
    return step.result()


def groups(task):
    """The group of this worker's host, the group of those with the same place on their hosts, that
    place, and the number of workers on a host, which has to be the same on all.
    """
    hosts = {}
    for rank in range(task.spec.workers):
        hosts.setdefault(task.spec.places[f"worker:{rank}"], []).append(rank)
    rows = list(hosts.values())
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"hosts with equally many workers are needed, and these have {rows}")
    mine = next(row for row in rows if task.index in row)
    inside = [dist.new_group(row) for row in rows][rows.index(mine)]  # all make all groups
    across = [dist.new_group(column) for column in zip(*rows)][mine.index(task.index)]
    return inside, across, mine.index(task.index), len(mine)


def part_of(tensor, place, k):
    """The part of a tensor that a place of a host keeps: (numbers / k,), the last with zeros."""
    return pad(tensor.detach().flatten(), (0, -tensor.numel() % k)).chunk(k)[place].clone()
