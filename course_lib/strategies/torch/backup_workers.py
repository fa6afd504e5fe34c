"""backup_workers: synchronous training with spare workers: an update is the mean of the first
(workers - backups) gradients of a step.

The slowest `backups` are not waited for. A worker whose gradient is kept gets its answer after the
update. A gradient that comes later is of an older version: it is dropped, and its worker is
answered at once, pulls the newest parameters and joins the present step. So as many stragglers as
there are backups cost no time, and no gradient is ever stale. The price is what backups compute.

A worker that is lost is one backup fewer. Once more are lost than there are backups, an update is
the mean of what those that are left compute, and its batch is that much smaller.

The global batch is spread over the gradients that count: every worker computes global_batch /
(workers - backups) examples a step, and a step uses (workers - backups) such shares, whichever they
are.

A step is a version of the parameters: a gradient is late if it was computed from an older version
than the newest. With several ps each shard takes the first gradients that reach it, so a gradient
may count on one and be dropped on another; each shard counts what it drops, as it counts its
updates. Pull, compute and push are those of `parameter_server.py`. Source: Chen et al., "Revisiting
Distributed Synchronous SGD", 2016 (arXiv:1604.00981), section 3.
"""

from typing import Any

from course_lib.cluster.task import Task
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.torch.parameter_server import compute, pull, push
from course_lib.strategies.torch.server import Servers
from course_lib.strategies.torch.shard import Gradient, Later, Reply, Shard, Snapshot, on_ps, serve
from course_lib.strategies.torch.steps import TorchStep
from course_lib.strategies.torch.sync_parameter_server import apply_mean, keep


def counted(spec: RunSpec) -> int:
    """Count the gradients that make an update."""
    return spec.workers - spec.backups


def worker(task: Task) -> dict[str, Any]:
    """Pull, compute, push, each time for the step that all are in; a straggler misses some."""
    step, spec = TorchStep(task), task.spec
    servers, batch = Servers(step), spec.workers * spec.batch // counted(spec)
    while step.begin():
        shards = pull_one_version(servers)
        step.number = shards[0].version
        if step.number == spec.steps:
            break
        # (global_batch / (workers - backups), features) and (...,)
        inputs, targets = step.read(task.index, spec.workers, batch)
        with step.computing():
            loss, gradient = compute(step, inputs, targets)  # (2,) and (parameters,)
        with step.reducing():
            replies = push(servers, shards, loss, gradient, keep_or_drop)
        servers.done(replies)
    return servers.result()


def pull_one_version(servers: Servers) -> list[Snapshot]:
    """On a worker: pull the newest version, the same of all shards.

    A shard that lags will soon reach it, as every push goes to all shards.
    """
    shards = pull(servers)
    while len({shard.version for shard in shards}) > 1:
        shards = pull(servers, at_least=max(shard.version for shard in shards))
    return shards


def ps(task: Task) -> None:
    """Hold a shard of the parameters."""
    serve(task, counted(task.spec), do_with_fewer)


@on_ps
def keep_or_drop(shard: Shard, gradient: Gradient) -> Reply | Later:
    """On a ps: keep the gradient, or drop it if it is late."""
    if gradient.read < shard.version:
        shard.drop(gradient, "late")
        return shard.reply(used=False)
    return keep(shard, gradient)


def do_with_fewer(shard: Shard) -> None:
    """On a ps, after each call and each loss of a worker: when all that are left wait, no other
    gradient will come. Then apply the mean of those that are kept.
    """
    if shard.living <= shard.pending.keys():
        if shard.kept:
            apply_mean(shard)
        elif shard.living - shard.finished:  # lost with its worker on the way to this ps only
            shard.version += 1
