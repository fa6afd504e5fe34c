"""Parameter servers (ps): what goes on between the workers and the ps, and the record of it. What
each of them does with it is on the strategies' pages; how they call each other, in `rpc.py`.

With several ps the parameters are laid end to end as one long vector and cut into that many pieces
of equal length. So every ps holds, sends and receives the same number of bytes, however unequal the
layers are. A worker talks to all ps at once. Each shard counts its own versions, and none is held
back for another.

A ps serves one call at a time. A function that must wait for other workers returns `Later`;
meanwhile the ps serves the others. When a worker's process ends, so does its connection, and every
ps knows at once that this worker is lost: nobody waits for it any longer. If it is started again,
it joins again. Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server",
OSDI 2014.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.memory import Census
from course_lib.strategies.steps import due
from course_lib.strategies.torch.optimizer import Optimizer, bytes_on
from course_lib.strategies.torch.rpc import (
    ON_PS,
    Gradient,
    Later,
    Peer,
    Reply,
    Snapshot,
    ask,
    calls,
    meet,
    on_ps,
    send,
)
from course_lib.strategies.torch.steps import TorchStep, build, flat, trained

# --- on a ps ---


class Shard:
    """The piece of the parameters that a ps holds: its `values`, their `optimizer` with its state,
    and a `version` that counts their updates. `counted` gradients make up a global batch; `kept`
    are gradients that came in but are not applied yet.

    `living` are the workers that are not lost; `waiting` has the calls of those that wait for an
    answer; `finished` are those with nothing left to do. Where pieces of batches are handed out
    one by one, `taken` is the piece that each worker has, `next_piece` is the next one, and `left`
    are those that lost workers had, with whose they were.
    """

    def __init__(self, task: Task, counted: int) -> None:
        workload = workloads.load(task.spec)
        parameters = flat(trained(build(workload, task.spec.seed)))
        self.task = task
        self.values = torch.tensor_split(parameters, task.spec.ps)[task.index].clone()
        self.optimizer = Optimizer(task.spec, [self.values])
        self.version = self.examples = 0
        self.steps_done = [0] * task.spec.workers
        self.living = set(range(task.spec.workers))
        self.finished: set[int] = set()
        self.waiting: dict[int, tuple[Peer, str, Later]] = {}
        self.kept: list[Gradient] = []
        self.taken: dict[int, int] = {}
        self.left: list[tuple[int, int]] = []
        self.next_piece = 0
        self.counted = counted
        self.losses: deque[float] = deque(maxlen=counted)
        self.census = Census(task)
        self.heard: dict[int, str] = {}  # the last call of each worker
        self._evaluations = 0

    @contextlib.contextmanager
    def updating(self, gradients: Sequence[Gradient]) -> Iterator[None]:
        """The block applies these gradients to the values: one update, which makes one version."""
        start = clock()
        yield
        gradients = sorted(gradients, key=lambda gradient: gradient.worker)
        step, read = gradients[0].step, min(g.read for g in gradients)
        self.version += 1
        self.task.record("apply", step, start, clock())
        name, device = f"shard {self.task.index}", str(self.values.device)
        whose = " ".join(f"worker:{g.worker}" for g in gradients)
        self.task.update(step, name, device, read, self.version, len(gradients), whose)
        self.census.note(gradients=sum(g.values.nbytes for g in gradients))
        for g in gradients:
            self.losses.append(g.loss)
            self.examples += self.task.spec.batch // self.counted
            self.steps_done[g.worker] = g.step + 1
        self.census.close(step, self.examples, self.held)

    def held(self) -> dict[str, int]:
        """Bytes of memory that this ps holds, by kind."""
        state = sum(self.optimizer.state_on().values())
        return {"parameters": self.values.nbytes, "optimizer_state": state}

    @property
    def slowest(self) -> int:
        """How many steps the slowest living worker has done."""
        return min(self.steps_done[k] for k in self.living or range(len(self.steps_done)))

    def reply(self, used: bool = True) -> Reply:
        """What to reply to a push now."""
        loss = sum(self.losses) / len(self.losses) if self.losses else float("nan")
        return Reply(self.version, loss, self.examples, self.slowest, used)

    def snapshot(self) -> Snapshot:
        """A copy of the values: the next update may come before they are sent.

        The first one to ask after each `evaluate_every` steps is to measure the test accuracy.
        """
        every, examples = self.task.spec.evaluate_every * self.task.spec.batch, 0
        if every and self.examples // every > self._evaluations:
            self._evaluations, examples = self.examples // every, self.examples
        self.census.note(exchange=self.values.nbytes)
        return Snapshot(self.version, self.values.clone(), examples)

    def lose(self, worker: int) -> None:
        """A worker is lost. Gradients of it that are not applied yet are dropped, as it may come
        back and compute them again.
        """
        self.living.discard(worker)
        self.waiting.pop(worker, None)
        if worker in self.taken:
            self.left.append((self.taken.pop(worker), worker))
        for gradient in self.kept:
            if gradient.worker == worker:
                name, of = f"shard {self.task.index}", f"worker:{worker}"
                self.task.dropped(gradient.step, "lost", name, of)
        self.kept = [gradient for gradient in self.kept if gradient.worker != worker]


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
        if call is None:
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
        shard.steps_done[worker] = max(shard.steps_done[worker], shard.slowest)
        shard.living.add(worker)
    return shard.steps_done[worker]


@on_ps
def final(shard: Shard, worker: int) -> Later:
    """On a ps: values and loss of the shard, the bytes by device of its values and of their
    optimizer's state, and the worker that speaks for the ps, once no worker has anything left to
    do.
    """

    def answer() -> tuple[torch.Tensor, float, dict[str, dict[str, int]], int]:
        held = {
            "variables_on": bytes_on([shard.values]),
            "optimizer_state_on": shard.optimizer.state_on(),
        }
        return shard.values, shard.reply().loss, held, min(shard.living)

    shard.finished.add(worker)
    return Later(lambda: shard.living <= shard.finished, answer)


# --- on a worker ---


class Servers:
    """All parameter servers, as a worker in its `step` sees them."""

    def __init__(self, step: TorchStep) -> None:
        self.step, self.task = step, step.task
        # what was asked for -> bytes of parameters and gradients that moved the last time
        self.moved: dict[str, int] = {}
        self.peers = meet(step.task)
        step.number = min(self.ask("start", join, step.task.index)) - 1

    def ask(
        self, what: str, function: Callable[..., Any], *arguments: Any, of: int | None = None
    ) -> list[Any]:
        """What `function(shard, *arguments)` returns on each ps, all asked at once, or only on the
        one `of` them.

        An argument that is a list has an element for each ps. Raises RuntimeError, which names the
        ps and `what` was asked for, if one does not answer.
        """
        text = f"{what} of step {max(0, self.step.number)}"
        peers = self.peers if of is None else [self.peers[of]]
        before = self.task.doing
        self.task.enter("wait")
        answers = ask(self.task, peers, text, function, *arguments)
        sent = (each for value in arguments if isinstance(value, list) for each in value)
        moved = [each for each in (*sent, *answers) if isinstance(each, (Snapshot, Gradient))]
        self.moved[what] = sum(each.values.nbytes for each in moved)
        self.step.census.note(exchange=sum(self.moved.values()))
        self.task.enter(before)
        return answers

    def done(self, replies: Sequence[Reply]) -> None:
        """The step is over, with these replies to its push: record what became of the gradient."""
        for k, reply in enumerate(replies):
            if not reply.used:
                self.task.dropped(self.step.number, "late", f"shard {k}")
        if replies[0].used:
            self.task.metric("loss", replies[0].loss, self.step.number, replies[0].examples)
        self.step.census.close(self.step.number, replies[0].examples, self.step.held)
        self.task.at_step_end()

    def result(self) -> dict[str, Any]:
        """What the strategy returns (see `outcome`), from the parameters that every shard has in
        the end. One worker speaks for the ps, which return nothing.
        """
        step = self.step
        shards = self.ask("final pull", final, self.task.index)
        fill(step.model, [values for values, *_ in shards])
        held: dict[str, dict[str, int]] = {"variables_on": {}, "optimizer_state_on": {}}
        _, step.loss, _, speaker = shards[0]
        step.speaks = self.task.index == speaker
        if step.speaks:
            for k, (_, _, its, _) in enumerate(shards):
                for what, found in its.items():
                    held[what] |= {f"ps:{k}/{device}": n for device, n in found.items()}
            if due(step.spec, step.spec.steps):  # nobody pulls the last version
                step.evaluate(step.spec.steps * step.spec.batch)
        return step.result() | held


def fill(model: torch.nn.Module, pieces: Sequence[torch.Tensor]) -> None:
    """Take the parameters of a model from the pieces that the shards hold, in order."""
    device = next(model.parameters()).device
    torch.nn.utils.vector_to_parameters(torch.cat(list(pieces)).to(device), trained(model))
