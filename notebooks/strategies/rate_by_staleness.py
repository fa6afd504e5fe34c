"""Asynchronous parameter servers that divide the learning rate by the staleness of a gradient.

A gradient that was computed from old parameters points where these should have gone. The more
updates came in between, the less it is worth, and the smaller a step it gets: rate / (1 + s) for s
updates in between. Nobody waits, as in `parameter_server`, and a straggler does no harm: its
gradients are the stalest, so they count least. That is also the price: its share of the examples
counts least.

Source: Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016
(arXiv:1511.05950).
"""

from course_lib.torch import Servers, Step, compute, on_ps, pull, push, serve


def rate_by_staleness(task):
    step = Step(task)
    servers = Servers(step)
    while step.begin():
        shards = pull(servers)  # the newest values of each ps, with their versions
        inputs, targets = step.read(task.index, task.spec.workers)  # (batch / workers, ...) each
        with step.computing():
            loss, gradient = compute(step, inputs, targets)  # (2,) and (parameters,)
        with step.reducing():
            replies = push(servers, shards, loss, gradient, apply_by_staleness)
        servers.done(replies)
    return servers.result()


def hold(task):
    serve(task, functions=[apply_by_staleness])


@on_ps
def apply_by_staleness(shard, gradient):
    """On a ps: apply a gradient, the less the staler it is."""
    staleness = shard.version - gradient.read
    with shard.updating([gradient]):
        shard.values.grad = gradient.values
        for group in shard.optimizer.param_groups:  # set anew before each update
            group["lr"] /= 1 + staleness
        shard.optimizer.step()
    return shard.reply()


by_staleness = {"worker": rate_by_staleness, "ps": hold}
