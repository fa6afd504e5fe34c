"""sync_parameter_server: the parameter servers wait until all workers' gradients of a step are in,
then apply their mean, once.

Every worker waits for the slowest in each step: its push is answered only when the update has been
made. So all pull the same version, no gradient is stale, and the losses and weights are those of
one device (but for the order of sums). It does what an all-reduce between the workers does, with
all traffic going through the ps. Pull, load, compute and push are in `server.py`. Source: Chen et
al., "Revisiting Distributed Synchronous SGD", 2016 (arXiv:1604.00981), section 2.
"""

from typing import Any

from torch.futures import Future

from course_lib.cluster.task import Task
from course_lib.strategies.torch.server import Gradient, Shard, Worker, serve


def worker(task: Task) -> dict[str, Any]:
    """Pull, compute, push, and be held at the push until all have pushed."""
    me = Worker(task)
    for step in range(task.spec.steps):
        me.pull()
        me.load(step)
        me.compute(step)
        me.push(step, push)
    return me.result(updates=task.spec.steps)


def ps(task: Task) -> None:
    """Hold a piece of the parameters."""
    serve(task)


def push(shard: Shard, gradient: Gradient) -> Future[Any]:
    """On a ps: keep the gradient; with the last one of the step, apply the mean of all.

    The answer comes after the update.
    """
    shard.kept.append(gradient)
    if len(shard.kept) == shard.task.spec.workers:
        gradients, shard.kept = shard.kept, []
        shard.apply(gradients)
    return shard.when(lambda: shard.version > gradient.read, shard.answer)
