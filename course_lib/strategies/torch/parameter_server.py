"""parameter_server: workers train at their own pace, and the parameter servers apply every gradient
as soon as it comes (asynchronous SGD).

Nobody waits for anybody, so a slow worker slows nobody. The price is staleness: between a worker's
pull and its push the others push too, and its gradient is applied to parameters that it never saw.
With w workers of equal speed that is close to w - 1 updates if computing is nearly all of a step,
and less otherwise. A straggler's gradients are the most stale.

This page has the order of things; what they are, pull, load, compute and push, is in `server.py`.
When a ps is lost, its piece of the parameters is lost with it, and the run ends with an error that
names it. Real systems go back to a checkpoint, or keep a second copy of each piece.

The data is cut as for synchronous training: a step is a global batch, cut into a piece for each
worker. But here pieces are not bound to workers: whoever has pushed takes the next piece that
nobody has, so a fast worker does more of them. A step is w updates here, each from 1/w of the batch
with the full learning rate. Source: Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012
(Downpour SGD).
"""

from typing import Any

from course_lib.cluster.task import Task
from course_lib.strategies.torch.server import Answer, Gradient, Shard, Worker, serve


def worker(task: Task) -> dict[str, Any]:
    """Pull, compute, push, until no piece is left."""
    me, workers = Worker(task), task.spec.workers
    pieces = task.spec.steps * workers
    piece = task.index  # each begins with the piece of its own number
    while piece < pieces:
        step, share = divmod(piece, workers)
        me.pull()
        me.load(step, share)
        me.compute(step)
        answer, *_ = me.push(step, push)
        # every push makes a version of its own, so versions can number the pieces too
        piece = answer.version - 1 + workers
    return me.result(updates=pieces)


def ps(task: Task) -> None:
    """Hold a piece of the parameters."""
    serve(task)


def push(shard: Shard, gradient: Gradient) -> Answer:
    """On a ps: apply the gradient at once, whatever has happened since its worker pulled."""
    shard.apply([gradient])
    return shard.answer()
