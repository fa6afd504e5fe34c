"""A parameter server (ps): it holds a shard of the parameters, answers the calls of workers, one at
a time, and knows which workers are left.

A function that must wait for other workers returns `Later`; meanwhile the ps serves the others.
When a worker's process ends, so does its connection, and every ps knows at once that this worker is
lost: nobody waits for it any longer. If it is started again, it joins again.
"""

import contextlib
import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from course_lib.cluster.task import Task
from course_lib.record.checkpoints import Manifest, part_of, seal
from course_lib.record.events import clock
from course_lib.strategies import catalog, saving
from course_lib.strategies.memory import Census
from course_lib.strategies.torch import checkpoints
from course_lib.strategies.torch.models import begin_state, optimizer_of, set_rate, state_of
from course_lib.strategies.torch.rpc import (
    ON_PS,
    Gradient,
    Later,
    Peer,
    Reply,
    Snapshot,
    calls,
    on_ps,
    send,
)
from course_lib.strategies.torch.steps import TorchStep
from course_lib.strategies.torch.tensors import bytes_of, bytes_on, bytes_sent, flat, vector

NONE = -1
"""No piece of a batch."""


class Shard:
    """The piece of the parameters that a ps holds: its `values`, the `optimizer` that updates them,
    and a `version` that counts their updates. `counted` gradients make up a global batch; `kept`
    are gradients that came in but are not applied yet.

    `living` are the workers that are not lost; `waiting` has the calls of those that wait for an
    answer; `finished` are those with nothing left to do; `steps_done` says how many steps each has
    done. Where pieces of batches are handed out one by one, `pieces` has the one that each worker
    has taken, or had when it was lost, and `next_piece` is the next one. `all_changed` is the last
    version for which all values may have changed; of later ones it is known which did. If it
    `saves`, it leaves a part of each checkpoint; else a worker saves all shards together
    (`Servers`).
    """

    def __init__(self, task: Task, counted: int) -> None:
        self.task, step = task, TorchStep(task)
        self.saves = not catalog.carries_over(task.spec.strategy)
        if not self.saves:
            saving.restore(step)

        def mine(whole: Iterable[torch.Tensor]) -> torch.Tensor:
            return flat(whole).tensor_split(task.spec.ps)[task.index].clone()

        self.values = mine(step.parameters)
        self.optimizer, self.rates = optimizer_of(task.spec, [self.values]), step.rates
        if step.updates:
            begin_state(self.optimizer, step.updates)
            state, theirs = state_of(self.optimizer), state_of(step.optimizer)
            for k, each in enumerate(state):
                each.copy_(mine(theirs[k :: len(state)]))  # of all parameters
        self.version, self.examples = step.updates, step.samples
        self.all_changed = -1
        workers = task.spec.workers
        self.steps_done = torch.full((workers,), step.number + 1)
        self.pieces, self.next_piece = torch.full((workers,), NONE), 0
        self.living, self.finished = set(range(workers)), set[int]()
        self.waiting: dict[int, tuple[Peer, str, Later]] = {}
        self.kept: list[Gradient] = []
        self.counted = counted
        self.losses: deque[tuple[float, float]] = deque(maxlen=counted)  # sum and count
        self.census = Census(task)
        self.heard: dict[int, str] = {}  # the last call of each worker
        self._evaluations = self._saved = 0
        if self.saves and step.origin:
            self._load(*step.origin.part(task.name))

    @contextlib.contextmanager
    def updating(self, gradients: Sequence[Gradient]) -> Iterator[None]:
        """The block calls `optimizer.step()`, with the mean of these gradients as that of the
        values: one update, which makes one version.
        """
        start, sparse = clock(), all(g.values.is_sparse for g in gradients)
        before = self.values.clone() if sparse else self.values
        gradients = sorted(gradients, key=lambda gradient: gradient.worker)
        step, read = gradients[0].step, min(g.read for g in gradients)
        set_rate(self.optimizer, self.rates[step])
        yield
        self.optimizer.zero_grad()
        self.version += 1
        if sparse:  # an optimizer with a state also changes values without a gradient
            self.changed[self.values != before] = self.version
        else:
            self.all_changed = self.version
        self.task.record("apply", step, start, clock())
        name, device = f"shard {self.task.index}", str(self.values.device)
        whose = " ".join(f"worker:{g.worker}" for g in gradients)
        self.task.update(step, name, device, read, self.version, len(gradients), whose)
        self.census.note(gradients=bytes_of(g.values for g in gradients))
        for g in gradients:
            self.losses.append((g.loss, g.count))
            self.examples += self.task.spec.batch // self.counted
            self.steps_done[g.worker] = g.step + 1
        self.census.close(step, self.examples, self.held)

    @functools.cached_property
    def changed(self) -> torch.Tensor:
        """For each of the values the version in which it last changed."""
        return torch.zeros(len(self.values), dtype=torch.int32)

    def held(self) -> dict[str, int]:
        """Bytes of memory that this ps holds, by kind."""
        state = bytes_of(state_of(self.optimizer))
        return {"parameters": self.values.nbytes, "optimizer_state": state}

    @property
    def slowest(self) -> int:
        """The number of steps that the slowest living worker has done."""
        return min(int(self.steps_done[k]) for k in self.living or range(len(self.steps_done)))

    def reply(self, used: bool = True) -> Reply:
        """Make the reply to a push."""
        total, count = map(sum, zip(*self.losses, strict=True)) if self.losses else (math.nan, 1.0)
        loss = total / (count or 1.0)
        return Reply(self.version, loss, self.examples, self.slowest, used)

    def snapshot(self, since: int) -> Snapshot:
        """A copy of the values, as the next update may come before they are sent; or of those that
        have changed since a version, if these are fewer bytes.

        The first one to ask after each `evaluate_every` steps is to measure the test accuracy.
        """
        every, examples = self.task.spec.evaluate_every * self.task.spec.batch, 0
        if every and self.examples // every > self._evaluations:
            self._evaluations, examples = self.examples // every, self.examples
        values = self.values
        if since > self.all_changed:
            places = torch.nonzero(self.changed > since)[:, 0]
            some = vector(places, values[places], len(values))
            values = min(values, some, key=bytes_sent)
        self.census.note(exchange=bytes_sent(values))
        return Snapshot(self.version, values.clone(), examples)

    def save(self) -> None:
        """Leave the part of a checkpoint that this shard is, if one is due."""
        spec, steps = self.task.spec, self.examples // self.task.spec.batch
        if not self.saves or steps == self._saved or not saving.due(spec, steps):
            return
        self._saved = steps
        start = clock()
        part = part_of(self.task.files, self.task.name, steps, self.task.attempt)
        checkpoints.write(self._state(), part)
        numbers = {"samples": self.examples, "updates": self.version, "next": self.next_piece}
        servers = [f"ps:{k}" for k in range(spec.ps)]
        seal(part, steps, numbers, saving.facts_of(spec), servers)
        self.task.record("checkpoint", steps - 1, start, clock())

    def _load(self, part: Path, manifest: Manifest) -> None:
        """Go on from what `save` has left. Pieces that were taken then are to be computed again."""
        numbers = manifest.numbers
        self.examples, self.version = int(numbers["samples"]), int(numbers["updates"])
        self.next_piece, self._saved = int(numbers["next"]), manifest.step
        begin_state(self.optimizer, self.version)
        checkpoints.read(self._state(), part)

    def _state(self) -> dict[str, torch.Tensor]:
        state = {f"optimizer.{k}": each for k, each in enumerate(state_of(self.optimizer))}
        mine = {"values": self.values, "steps_done": self.steps_done, "pieces": self.pieces}
        return mine | state

    def lose(self, worker: int) -> None:
        """A worker is lost. Gradients of it that are not applied yet are dropped, as it may come
        back and compute them again.
        """
        self.living.discard(worker)
        self.waiting.pop(worker, None)
        for gradient in [gradient for gradient in self.kept if gradient.worker == worker]:
            self.kept.remove(gradient)
            self.drop(gradient, "lost")

    def drop(self, gradient: Gradient, why: str) -> None:
        """Record that a gradient goes into no update."""
        whose = f"worker:{gradient.worker}"
        self.task.dropped(gradient.step, why, f"shard {self.task.index}", whose)


def serve(
    task: Task, counted: int | None = None, rule: Callable[[Shard], None] = lambda shard: None
) -> None:
    """Be a ps, for which `counted` gradients make up a global batch (default: one from each
    worker). After each call, and after each loss of a worker, `rule` may find that it is time for
    an update.

    Never returns: the supervisor ends a ps when all workers are done.
    """
    shard = Shard(task, counted or task.spec.workers)
    for worker, peer, call in calls(task):
        if call is None or peer is None:
            shard.lose(worker)
        else:
            function, what, arguments = call
            answer = ON_PS[function](shard, *arguments)
            if isinstance(answer, Later):
                shard.waiting[worker] = peer, what, answer
            else:
                send(peer, [what, answer])
            if what:
                shard.heard[worker] = what
        settle(shard)
        rule(shard)
        settle(shard)
        shard.save()


def settle(shard: Shard) -> None:
    """On a ps: answer the calls whose answers need not wait any longer."""
    for worker, (peer, what, later) in [*shard.waiting.items()]:
        if later.true():
            del shard.waiting[worker]
            send(peer, [what, later.answer()])


@on_ps
def join(shard: Shard, worker: int) -> int:
    """On a ps: the step with which a worker begins. One that was lost and has been started again
    begins where the slowest of the others is.
    """
    if worker not in shard.living:
        shard.steps_done[worker] = max(int(shard.steps_done[worker]), shard.slowest)
        shard.living.add(worker)
    return int(shard.steps_done[worker])


@on_ps
def everything(shard: Shard) -> list[torch.Tensor]:
    """On a ps: its values, and each tensor of the optimizer's state for them."""
    return [shard.values, *state_of(shard.optimizer)]


@on_ps
def last_heard(shard: Shard) -> str:
    """On a ps: the last call of each worker, in words."""
    return ", ".join(f"{what} by worker:{k}" for k, what in sorted(shard.heard.items()))


@on_ps
def final(shard: Shard, worker: int) -> Later:
    """On a ps: values and loss of the shard, the bytes by device of its values and of their
    optimizer's state, and the worker that speaks for the ps, once no worker has anything left to
    do.
    """

    def answer() -> tuple[torch.Tensor, float, dict[str, dict[str, int]], int]:
        held = {
            "variables_on": bytes_on([shard.values]),
            "optimizer_state_on": bytes_on(state_of(shard.optimizer)),
        }
        return shard.values, shard.reply().loss, held, min(shard.living)

    shard.finished.add(worker)
    return Later(lambda: shard.living <= shard.finished, answer)
