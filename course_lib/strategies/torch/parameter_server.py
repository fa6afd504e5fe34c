"""parameter_server: workers train at their own pace, and the parameter servers (ps) apply every
gradient as soon as it comes (asynchronous SGD).

Each ps holds a part of the parameters, its shard. The batch of a step is cut into as many pieces as
there are workers. Whoever has pushed takes the next piece, so a fast worker does more of them:

    take       ps 0 -> worker  a piece of a batch that nobody has taken
    pull       ps -> worker    the newest values of every shard, and their versions
    compute    worker          the loss of the piece, and its gradient
    push       worker -> ps    to each ps its part of the gradient
    apply      ps              optimizer.step(): one more version of the shard

No worker waits for another until the last pieces are done, so a slow worker slows nobody. The price
is staleness: between a worker's pull and its push the others push too, and its gradient is applied
to newer parameters than it was computed from. Staleness counts the updates in between. With w
workers of equal speed it is close to w - 1 if computing is nearly all of a step. A step is w
updates, each from 1/w of the batch with the full learning rate: together they move the parameters
about w times as far as one update by the mean.

A worker that is lost is not waited for, and the next one that asks gets its piece. (If it had
pushed to some ps only, these may apply the piece twice.) With `max_restarts` it is started again
and takes part again. With a ps its shard is lost: then all go back to the last checkpoint
(`checkpoint_every`), of which each ps has saved its part without waiting for the others.

PyTorch has no parameter server, so this page is all there is. `servers.ask(what, function,
argument)` runs `function(shard, argument)` on every ps, one call at a time there, and returns their
replies; of an argument that is a list each ps gets an element. What a ps may run is marked `on_ps`.
`Later(condition, answer)` is a reply that comes once the condition holds.

Source: Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012 (Downpour SGD).
"""

from typing import Any

import torch

from course_lib.cluster.task import Task
from course_lib.strategies.torch import models
from course_lib.strategies.torch.server import Servers
from course_lib.strategies.torch.shard import Gradient, Later, Reply, Shard, Snapshot, on_ps, serve
from course_lib.strategies.torch.steps import TorchStep, gradients_of


def worker(task: Task) -> dict[str, Any]:
    """Take a piece, pull, compute, push, until no piece is left."""
    step = TorchStep(task)
    servers, workers = Servers(step), task.spec.workers
    while step.begin((piece := take(servers)) // workers):
        snapshots = pull(servers)
        inputs, targets = step.read(piece % workers, workers)  # (batch / workers, features), (...,)
        with step.computing():
            loss, gradient = compute(step, inputs, targets)  # (2,) and (parameters,)
        with step.reducing():  # `sync_parameter_server` passes another function here
            replies = push(servers, snapshots, loss, gradient, apply_at_once)
        servers.done(replies)
    return servers.result()


def take(servers: Servers) -> int:
    """On a worker: the number of the piece that it is to do next."""
    task = servers.task
    ((piece, lost),) = servers.ask("piece", next_piece, task.index, of=0)
    if lost is not None:
        task.metric("taken_over", lost, piece // task.spec.workers, 0)
    return int(piece)


@on_ps
def next_piece(shard: Shard, worker: int) -> Later:
    """On ps 0: the next piece that nobody has taken; or one that a lost worker had taken, and who
    that was. If there is none, the reply waits until all are done: another worker may be lost.
    """
    workers = shard.task.spec.workers
    pieces = shard.task.spec.steps * workers

    def unattended() -> list[int]:
        """The workers whose pieces nobody computes: the lost ones, and this one, started again."""
        gone = set(range(workers)) - shard.living | {worker}
        return [k for k in sorted(gone) if shard.pieces[k] >= 0]

    def answer() -> tuple[int, int | None]:
        whose = next(iter(unattended()), None)
        if whose is None:
            piece = int(shard.next_piece)
            shard.next_piece.fill_(min(piece + 1, pieces))
        else:
            piece, shard.pieces[whose] = int(shard.pieces[whose]), -1
        if piece < pieces:
            shard.pieces[worker] = piece
        return piece, None if whose == worker else whose

    def ready() -> bool:
        return bool(unattended()) or shard.next_piece < pieces or bool((shard.pieces < 0).all())

    return Later(ready, answer)


def pull(servers: Servers, at_least: int = 0) -> list[Snapshot]:
    """On a worker: fetch the newest values of all shards into the worker's model.

    The values are of version `at_least`, or newer; 0 means no wait. Of a model with sparse
    gradients only what has changed is sent. Ps 0 may also ask this worker to measure the test
    accuracy (`evaluate_at`).
    """
    snapshots: list[Snapshot] = servers.ask("pull", newest, at_least, servers.versions)
    servers.fill([snapshot.values for snapshot in snapshots])
    servers.versions = [snapshot.version for snapshot in snapshots]
    servers.step.evaluate_at = snapshots[0].evaluate_at or servers.step.evaluate_at
    return snapshots


@on_ps
def newest(shard: Shard, at_least: int, since: int) -> Later:
    """On a ps: a copy of the values, once their version is `at_least`, for a worker that has those
    of a version `since`.
    """
    return Later(lambda: shard.version >= at_least, lambda: shard.snapshot(since))


def compute(step: TorchStep, inputs: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """On a worker: the loss of some examples, as a sum and a count, and the gradient of its mean,
    as one long vector.

    In float16 a gradient that overflows is not pushed: it is dropped, and computed again with half
    the loss scale. Each worker has a loss scale of its own.
    """
    while True:
        scale, loss = step.scale.value, models.pair(step.backward(inputs, targets))
        gradient = models.end_to_end(gradients_of(step, step.parameters)).cpu()
        divisor = models.count_of(loss) * scale
        if not step.scale.on or step.finite(float(gradient.norm()), models.zeros_in([gradient])):
            return loss, gradient if divisor == 1 else gradient / divisor
        step.task.dropped(step.number, "overflow")
        step.scale.check(step.number)


def push(
    servers: Servers, snapshots: list[Snapshot], loss: Any, gradient: Any, handle: Any
) -> list[Reply]:
    """On a worker: send every ps its part of the gradient, and wait for the replies.

    `handle(shard, part)` runs on the ps: it decides what becomes of the part.
    """
    step, pieces = servers.step, models.split(gradient, len(snapshots))
    parts = [  # each with the version that it was computed from
        Gradient(step.task.index, step.number, snapshot.version, piece, *loss.tolist())
        for snapshot, piece in zip(snapshots, pieces, strict=True)
    ]
    moved = [*pieces, *(snapshot.values for snapshot in snapshots)]
    step.census.note(exchange=sum(map(models.bytes_sent, moved)))
    return servers.ask("push", handle, parts)


def ps(task: Task) -> None:
    """Hold a shard of the parameters, and answer the workers, until the run ends: the supervisor
    stops a ps when all workers are done.
    """
    serve(task)


@on_ps
def apply_at_once(shard: Shard, gradient: Gradient) -> Reply:
    """On a ps: apply the gradient, whatever has happened since its worker pulled."""
    shard.pieces[gradient.worker] = -1  # it is done; ps 0 hands them out
    with shard.updating([gradient]):
        shard.values.grad = gradient.values
        shard.optimizer.step()
    return shard.reply()
