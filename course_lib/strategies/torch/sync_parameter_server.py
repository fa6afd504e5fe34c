"""sync_parameter_server: the parameter servers wait until all workers' gradients of a step are in,
then apply their mean, once.

Every worker waits for the slowest in each step: its push is answered only when the update has been
made. So all pull the same version, no gradient is stale, and the losses and weights are those of
one device (but for the order of sums). So are the checkpoints: no update is made while worker 0
gathers one from the ps, as all updates need its gradient. It does what an all-reduce between the
workers does, with all traffic going through the ps. Pull, compute and push are those of
`parameter_server.py`. Source: Chen et al., "Revisiting Distributed Synchronous SGD", 2016
(arXiv:1604.00981), section 2.
"""

from collections.abc import Sequence
from typing import Any

import torch

from course_lib.cluster.task import Task
from course_lib.strategies.torch.parameter_server import compute, pull, push
from course_lib.strategies.torch.server import Servers
from course_lib.strategies.torch.shard import Gradient, Later, Shard, on_ps, serve
from course_lib.strategies.torch.steps import TorchStep


def worker(task: Task) -> dict[str, Any]:
    """Pull, compute, push, and wait at the push until all have pushed."""
    step = TorchStep(task)
    servers = Servers(step)
    while step.begin():
        shards = pull(servers)
        inputs, targets = step.read(task.index, task.spec.workers)  # (batch / workers, ...) each
        with step.computing():
            loss, gradient = compute(step, inputs, targets)  # (2,) and (parameters,)
        with step.reducing():
            replies = push(servers, shards, loss, gradient, keep)
        servers.done(replies)
    return servers.result()


def ps(task: Task) -> None:
    """Hold a shard of the parameters."""
    serve(task)


@on_ps
def keep(shard: Shard, gradient: Gradient) -> Later:
    """On a ps: keep the gradient; with the last one of a step, apply the mean of all. The reply
    comes after the update.
    """
    shard.kept.append(gradient)
    if len(shard.kept) == shard.counted:
        apply_mean(shard)
    return Later(lambda: shard.version > gradient.read, shard.reply)


def apply_mean(shard: Shard) -> None:
    """On a ps: update the values by the mean of the gradients that it has kept."""
    gradients, shard.kept = shard.kept, []
    with shard.updating(gradients):
        shard.values.grad = mean(gradients)
        shard.optimizer.step()


def mean(gradients: Sequence[Gradient]) -> torch.Tensor:
    """The mean, each by its count, added up in the order of the workers: another order would change
    the last bits.
    """
    ordered = sorted(gradients, key=lambda g: g.worker)
    values = [g.values if g.count == 1 else g.count * g.values for g in ordered]
    total: torch.Tensor = sum(values[1:], values[0])
    return total / (sum(g.count for g in ordered) or 1.0)
