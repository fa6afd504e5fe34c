"""parameter_server: workers train at their own pace, and the parameter servers (ps) apply every
gradient as soon as it comes (asynchronous SGD).

Each ps holds a part of the parameters, its shard. The batch of a step is cut into as many pieces as
there are workers. A worker pulls all shards, computes the gradient of a piece, and pushes to each
ps the part of the gradient that belongs to its shard:

    pull       ps -> worker    the newest values of every shard, and their versions
    compute    worker          the loss of a piece of a batch, and its gradient
    push       worker -> ps    to each ps its part of the gradient
    apply      ps              values -= rate * gradient, or what the run's optimizer makes of it,
                               whose state is here too: one more version of the shard

No worker waits for another until the last pieces are done, only for the replies of the ps, so a
slow worker slows nobody. The price is staleness: between a worker's pull and its push the others
push too, and its gradient is applied to newer parameters than it was computed from. Staleness
counts the updates in between. With w workers of equal speed it is close to w - 1 if computing is
nearly all of a step. It is less otherwise, because the updates between a worker's push and its next
pull do not count. The gradients of a slower worker are staler.

When a worker is lost, its connections end, so every ps knows, and the others go on without it. The
piece that it had taken (`shard.taken`) goes to `shard.left`, and from there to the next one that
asks. A worker that is lost while it pushes may have reached some ps and not others. If ps 0, which
hands out the pieces, has not seen the push, the piece is computed again, and a ps that had applied
the first gradient applies the second as well; if only ps 0 has seen it, the others miss it. If the
run may restart tasks (`max_restarts`), the lost worker is started again, pulls the newest values,
and takes part again.

When a ps is lost, its shard is lost with it. If the run may restart tasks, all are started again
and go back to the last checkpoint, for which each ps has saved its shard (`checkpoint_every`); the
updates since then are lost. Each ps saves after as many updates as the others, but does not wait
for them, so those may be updates by other gradients. Large systems also keep a second copy of each
shard, and lose nothing.

The data is cut as for synchronous training, but here no piece belongs to a worker: whoever has
pushed takes the next piece that nobody has taken, so a fast worker does more of them. Ps 0 hands
them out. A step is w updates, each from 1/w of the batch with the full learning rate: together they
move the parameters about w times as far as one update by the mean.

The gradient of an embedding with `sparse=True` has only the rows that a batch looked up. Then a
worker pushes these rows, and pulls no more than what has changed since its last pull (see
`vectors.py`, and `Shard.snapshot`). With all other models everything is pulled and pushed.

PyTorch has no parameter server of its own, so this page is all there is. Calls go from worker to
ps: `servers.ask(what, function, argument)` runs `function(shard, argument)` on every ps, one call
at a time there, and returns a list with the reply of each; `of=0` asks ps 0 alone. An argument that
is a list has an element for each ps. `what` names the call in messages. A function that a ps runs
is marked `on_ps`. `Later(condition, answer)` is a reply that comes once the condition holds; other
calls are answered meanwhile. `shard.updating` records an update and counts the version up.

Source: Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012 (Downpour SGD).
"""

from collections.abc import Callable
from typing import Any

import torch

from course_lib.cluster.task import Task
from course_lib.strategies.torch.models import count_of, pair
from course_lib.strategies.torch.optimizer import clip
from course_lib.strategies.torch.precision import zeros_in
from course_lib.strategies.torch.rpc import Gradient, Later, Reply, Snapshot, on_ps
from course_lib.strategies.torch.server import Servers
from course_lib.strategies.torch.shard import Shard, serve
from course_lib.strategies.torch.steps import TorchStep, gradients_of
from course_lib.strategies.torch.vectors import end_to_end, split


def worker(task: Task) -> dict[str, Any]:
    """Take a piece, pull, compute, push, until no piece is left."""
    step = TorchStep(task)
    servers, workers = Servers(step), task.spec.workers
    while step.begin((piece := take(servers)) // workers):
        snapshots = pull(servers)
        inputs, targets = step.read(piece % workers, workers)
        with step.computing():
            loss, gradient = compute(step, inputs, targets)
            (gradient,) = clip([gradient], task.spec.clip_norm)  # by the norm of the whole
        with step.reducing():  # `sync_parameter_server` passes another function here
            replies = push(servers, snapshots, loss, gradient, apply_at_once)
        servers.done(replies)
    return servers.result()


def take(servers: Servers) -> int:
    """On a worker: the number of the piece that it is to do next."""
    step = servers.step
    ((piece, lost),) = servers.ask("piece", next_piece, step.task.index, of=0)
    if lost is not None:
        step.task.metric("taken_over", lost, piece // step.spec.workers, 0)
    return int(piece)


@on_ps
def next_piece(shard: Shard, worker: int) -> Later:
    """On ps 0: the next piece that nobody has taken; or one that a lost worker had taken, and who
    that was. If there is none, the reply waits until all are done: another worker may be lost.
    """
    pieces = shard.task.spec.steps * shard.task.spec.workers

    def answer() -> tuple[int, int | None]:
        piece, lost = shard.left.pop() if shard.left else (shard.next_piece, None)
        if piece < pieces:
            shard.taken[worker] = piece
            if lost is None:
                shard.next_piece += 1
        return piece, lost

    return Later(lambda: bool(shard.left) or shard.next_piece < pieces or not shard.taken, answer)


def pull(servers: Servers, at_least: int = 0) -> list[Snapshot]:
    """On a worker: fetch the newest values of all shards into the worker's model.

    The values are of version `at_least`, or newer; 0 means no wait. Ps 0 may also ask this worker
    to measure the test accuracy (`evaluate_at`).
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
        scale, loss = step.scale.value, pair(step.backward(inputs, targets))
        gradient = end_to_end(gradients_of(step)).cpu()  # and the step's own are gone
        divisor = count_of(loss) * scale
        if not step.scale.on or step.finite(float(gradient.norm()), zeros_in([gradient])):
            return loss, gradient if divisor == 1 else gradient / divisor
        step.task.dropped(step.number, "overflow")
        step.scale.check(step.number)


def push(
    servers: Servers,
    snapshots: list[Snapshot],
    loss: torch.Tensor,
    gradient: torch.Tensor,
    handle: Callable[[Shard, Gradient], Any],
) -> list[Reply]:
    """On a worker: send every ps its part of the gradient, and wait for the replies.

    `handle(shard, part)` runs on the ps: it decides what becomes of the part.
    """
    step = servers.step
    parts = [  # each with the version that it was computed from
        Gradient(step.task.index, step.number, snapshot.version, part, *loss.tolist())
        for snapshot, part in zip(snapshots, split(gradient, len(snapshots)), strict=True)
    ]
    return servers.ask("push", handle, parts)


def ps(task: Task) -> None:
    """Hold a shard of the parameters, and answer the workers, until the run ends: the supervisor
    stops a ps when all workers are done.
    """
    serve(task)


@on_ps
def apply_at_once(shard: Shard, gradient: Gradient) -> Reply:
    """On a ps: apply the gradient, whatever has happened since its worker pulled."""
    shard.taken.pop(gradient.worker, None)  # its piece is done; ps 0 hands them out
    with shard.updating([gradient]):
        shard.optimizer.apply([gradient.values], gradient.step, updates=shard.version)
    return shard.reply()
