"""stale_synchronous: asynchronous training on a leash: no worker begins a step while it is more
than `staleness_bound` steps ahead of the slowest (SSP).

Every worker has its own share of each step and makes all steps. Gradients are applied as they come.
A worker that has done up to `bound` steps more than the slowest goes on; one that has done more
waits until the slowest has done another step. So short hiccups cost nothing, as in asynchronous
training, and a worker that is slow all the time sets the pace of all, as in synchronous training.
Pull, compute, push and apply are those of `parameter_server.py`.

The bound s on steps bounds staleness too. When a worker begins a step, each of the other w - 1 is
at most s steps behind it, and while it computes each can get at most s steps ahead and push that
step too. So at most 2s + 1 updates of each other worker come between its pull and its push, and
staleness is at most (w - 1)(2s + 1). Bound 0 is lock-step: no step begins before all have done the
one before.

A worker that is lost is not waited for: the slowest is the slowest that is left. Nobody takes over
its shares. If it is started again, it begins with the step that the slowest of the others is in.
Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", NIPS 2013.
"""

from typing import Any

from course_lib.cluster.task import Task
from course_lib.strategies.torch.parameter_server import apply_at_once, compute, pull, push
from course_lib.strategies.torch.server import Servers
from course_lib.strategies.torch.shard import Later, Shard, on_ps, serve
from course_lib.strategies.torch.steps import TorchStep


def worker(task: Task) -> dict[str, Any]:
    """Wait before a step that would be too far ahead; then pull, compute, push."""
    step, bound = TorchStep(task), task.spec.staleness_bound
    servers = Servers(step)
    # steps that the slowest worker has done, as far as this one has heard: it may have done more
    slowest = step.number + 1
    while step.begin():
        if step.number - slowest > bound:
            with step.waiting():
                slowest = min(servers.ask("start", near_enough, step.number - bound))
        shards = pull(servers)
        inputs, targets = step.read(task.index, task.spec.workers)  # (batch / workers, ...) each
        with step.computing():
            loss, gradient = compute(step, inputs, targets)  # (2,) and (parameters,)
        with step.reducing():
            replies = push(servers, shards, loss, gradient, apply_at_once)
        slowest = min(reply.slowest for reply in replies)
        servers.done(replies)
    return servers.result()


def ps(task: Task) -> None:
    """Hold a shard of the parameters."""
    serve(task)


@on_ps
def near_enough(shard: Shard, steps: int) -> Later:
    """On a ps: the steps that the slowest worker has done, once they are so many `steps`."""
    return Later(lambda: shard.slowest >= steps, lambda: shard.slowest)
