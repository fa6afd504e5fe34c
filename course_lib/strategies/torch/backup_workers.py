"""backup_workers: synchronous training with spare workers: an update is the mean of the first
(workers - backups) gradients of a step.

The slowest `backups` are not waited for. A gradient of theirs that comes later was computed from
parameters which are gone; it is dropped, and its worker pulls the newest and goes on with the step
that all are in. So as many stragglers as there are backups cost no time, and no gradient is ever
stale. The price is what the backups compute.

The global batch is spread over the gradients that count: every worker computes global_batch /
(workers - backups) examples a step, and a step uses (workers - backups) such shares, whichever they
are.

A step is a version of the parameters: a gradient is late if the version that it was computed from
is not the newest. With several ps each shard takes its own first ones, so a gradient may count on
one and be dropped on another; what is dropped is counted on each shard, as updates are. Load,
compute and push are in `server.py`. Source: Chen et al., "Revisiting Distributed Synchronous SGD",
2016 (arXiv:1604.00981), section 3.
"""

from typing import Any

from torch.futures import Future

from course_lib.cluster.task import Task
from course_lib.spec import RunSpec
from course_lib.strategies.torch.server import Answer, Gradient, Shard, Worker, serve


def counted(spec: RunSpec) -> int:
    """How many gradients make an update."""
    return spec.workers - spec.backups


def worker(task: Task) -> dict[str, Any]:
    """Pull, compute, push, each time for the step that all are in; one who comes late has missed
    some.
    """
    me = Worker(task, counted(task.spec))
    while (step := pull_step(me)) < task.spec.steps:
        me.load(step)
        me.compute(step)
        me.push(step, push)
    return me.result(updates=task.spec.steps)


def pull_step(me: Worker) -> int:
    """Pull the same version of all shards: the newest.

    Those behind are about to make it, as whoever has pushed to one has pushed to all.
    """
    step = me.pull()
    while step < max(me.versions):
        step = me.pull(at_least=max(me.versions))
    return step


def ps(task: Task) -> None:
    """Hold a piece of the parameters."""
    serve(task, counted(task.spec))


def push(shard: Shard, gradient: Gradient) -> Answer | Future[Any]:
    """On a ps: keep the gradient, or drop it if it is late; with the last that counts, apply their
    mean. The answer comes after the update.
    """
    if gradient.read < shard.version:
        return shard.answer(used=False)
    shard.kept.append(gradient)
    if len(shard.kept) == counted(shard.task.spec):
        gradients, shard.kept = shard.kept, []
        shard.apply(gradients)
    return shard.when(lambda: shard.version > gradient.read, shard.answer)
