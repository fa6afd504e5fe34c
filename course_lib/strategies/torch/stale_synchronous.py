"""stale_synchronous: asynchronous training on a leash: no worker begins a step while it is more
than `staleness_bound` steps ahead (SSP).

Every worker has its own share of each step and makes all steps. Gradients are applied as they come.
A worker that has done up to `bound` steps more than the slowest goes on; only one that has done
more than that waits, until the slowest has done another step. So short hiccups cost nothing, as in
asynchronous training, and a worker that is slow all the time sets the pace of all, as in
synchronous training. Pull, compute and push are in `server.py`.

From the bound s follows one for staleness. When a worker begins a step, each of the other w - 1 is
at most s steps behind it, and while it computes each can get at most s steps ahead and push that
step too. So at most 2s + 1 updates of each other worker come between its pull and its push, and
staleness is at most (w - 1)(2s + 1). Bound 0 is lock-step: no step begins before all have done the
one before. Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
Parameter Server", NIPS 2013.
"""

from typing import Any

from torch.futures import Future

from course_lib.cluster.task import Task
from course_lib.strategies.torch.parameter_server import push
from course_lib.strategies.torch.server import Shard, Worker, serve


def worker(task: Task) -> dict[str, Any]:
    """Pull, compute, push, and wait before a step that would be too far ahead."""
    me, spec = Worker(task), task.spec
    # steps that the slowest worker has done, as far as this one has heard: it may have done more
    slowest = 0
    for step in range(spec.steps):
        if step - slowest > spec.staleness_bound:
            slowest = min(me.wait(step, "start", near_enough, step - spec.staleness_bound))
        me.pull()
        me.load(step)
        me.compute(step)
        slowest = min(answer.slowest for answer in me.push(step, push))
    return me.result(updates=spec.steps * spec.workers)


def ps(task: Task) -> None:
    """Hold a piece of the parameters."""
    serve(task)


def near_enough(shard: Shard, steps: int) -> Future[Any]:
    """On a ps: answered when every worker has done so many `steps`; how many the slowest has done
    then.
    """
    return shard.when(lambda: min(shard.steps_done) >= steps, lambda: min(shard.steps_done))
