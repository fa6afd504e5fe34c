"""Asynchronous parameter servers with momentum, less of it the more workers there are.

Asynchrony is a momentum by itself: a gradient of old parameters pushes the way that these went.
With n workers it is as much as a momentum of 1 - 1/n in expectation. Whoever sets 0.9 besides gets
both, and the loss swings or blows up. So the ps use what is left of `MOMENTUM`: the momentum m with
(1 - m) / n = 1 - MOMENTUM, or none if asynchrony has more than that already. That the two multiply
like this is an assumption of this page; for m = 0 it is the paper's result. The optimizer is to be
sgd, which has no momentum of its own, and a ps that is started again begins its `speed` at zero.

Source: Mitliagkas, Zhang, Hadjis and Ré, "Asynchrony begets Momentum", 2016 (arXiv:1605.09774).
"""

import torch

from course_lib.torch import Servers, Step, compute, on_ps, pull, push, serve

MOMENTUM = 0.9


def async_momentum(task):
    return train(task, apply_what_is_left)


def async_momentum_twice(task):
    """As if there were no asynchrony."""
    return train(task, apply_all)


def train(task, apply):
    step = Step(task)
    servers = Servers(step)
    while step.begin():
        shards = pull(servers)
        inputs, targets = step.read(task.index, task.spec.workers)  # (batch / workers, ...) each
        with step.computing():
            loss, gradient = compute(step, inputs, targets)  # (2,) and (parameters,)
        with step.reducing():
            replies = push(servers, shards, loss, gradient, apply)
        servers.done(replies)
    return servers.result()


def hold(task):
    serve(task, functions=[apply_what_is_left, apply_all])


@on_ps
def apply_what_is_left(shard, gradient):
    workers = shard.spec.workers
    return with_momentum(shard, gradient, max(0.0, 1 - workers * (1 - MOMENTUM)))


@on_ps
def apply_all(shard, gradient):
    return with_momentum(shard, gradient, MOMENTUM)


def with_momentum(shard, gradient, momentum):
    if not hasattr(shard, "speed"):
        shard.speed = torch.zeros_like(shard.values)
    with shard.updating([gradient]):
        shard.speed.mul_(momentum).add_(gradient.values)
        shard.values.grad = shard.speed
        shard.optimizer.step()
    return shard.reply()


servers = {"worker": async_momentum, "ps": hold}
servers_twice = {"worker": async_momentum_twice, "ps": hold}
