"""Parameter servers (ps) as a worker sees them: what it asks them for, and the record of it. What a
ps does is in `shard.py`; and why, on the strategies' pages.

With several ps the parameters are laid end to end as one long vector and cut into that many pieces
of equal length. So every ps holds, sends and receives the same number of bytes, however unequal the
layers are. A worker talks to all ps at once. Each shard counts its own versions, and none is held
back for another. Source: Li et al., "Scaling Distributed Machine Learning with the Parameter
Server", OSDI 2014.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils import vector_to_parameters

from course_lib.cluster.task import Task
from course_lib.exchange.messages import Peer, ready
from course_lib.record.events import clock
from course_lib.strategies import catalog, saving
from course_lib.strategies.optimizers import STATE
from course_lib.strategies.steps import due
from course_lib.strategies.torch import models, shard
from course_lib.strategies.torch.models import begin_state, flat, shaped, state_of
from course_lib.strategies.torch.shard import Reply, final
from course_lib.strategies.torch.steps import TorchStep

PATIENCE = 60.0
"""Seconds that a worker waits for an answer."""


class Servers:
    """All parameter servers, as a worker in its `step` sees them.

    Where a checkpoint holds the whole state by name, the first worker asks the ps for it, and saves
    it; no update is made before this worker goes on. Elsewhere each ps leaves a part of its own.
    """

    def __init__(self, step: TorchStep) -> None:
        self.step, self.task = step, step.task
        self.peers = connections(step.task)
        whole = catalog.carries_over(step.spec.strategy)
        self.saves = whole and step.first
        if whole:
            step.restore()
            step.optimizer.state.clear()  # the ps hold it
        # all parameters of the model, whose own are views of them, and the piece on each ps
        self.values = flat(step.parameters)
        vector_to_parameters(self.values, step.parameters)
        self.pieces = self.values.tensor_split(len(self.peers))
        self.versions = [-1] * len(self.peers)  # of each piece, as it was pulled; -1: not yet
        if not whole:
            step.writers = ()
            step.number = min(self.ask("start", shard.join, step.task.index)) - 1

    def ask(self, what: str, function: Any, *arguments: Any, of: int | None = None) -> list[Any]:
        """Run `function(shard, *arguments)` on each ps, all at once, or only on the one `of` them;
        return their answers.

        An argument that is a list has an element for each ps. Raises RuntimeError, which names the
        ps and `what` was asked for, if one does not answer.
        """
        asked = f"the {what} of step {max(0, self.step.number)} by {self.task.name}"
        peers = self.peers if of is None else [self.peers[of]]
        before, deadline, answers = self.task.doing, clock() + PATIENCE, dict[Peer, Any]()
        self.task.enter("wait")
        for k, peer in enumerate(peers):
            its = [value[k] if isinstance(value, list) else value for value in arguments]
            shard.send(peer, [function.__name__, its])
        while missing := [peer for peer in peers if peer not in answers]:
            if (left := deadline - clock()) <= 0:
                raise RuntimeError(f"{missing[0].name} did not answer {asked} in {PATIENCE:g} s")
            for peer in ready(missing, left):
                try:
                    message = shard.receive(peer)
                except ConnectionError:
                    time.sleep(1)  # the loss of the ps is to be noticed before our complaint of it
                    text = f"{peer.name} is gone, and did not answer {asked}"
                    raise RuntimeError(text) from None
                if message is not None:
                    answers[peer] = message
        self.task.enter(before)
        return [answers[peer] for peer in peers]

    def fill(self, pieces: Sequence[torch.Tensor]) -> None:
        """Take the model's parameters from what the shards sent: all of a piece, or what of it has
        changed.
        """
        for mine, piece in zip(self.pieces, pieces, strict=True):
            sent = piece.to(mine.device)
            mine[sent.indices()[0] if sent.is_sparse else ...] = models.numbers(sent)

    def done(self, replies: Sequence[Reply]) -> None:
        """The step is over, with these replies to its push."""
        step, (first, *_) = self.step, replies
        if first.used:
            self.task.metric("loss", first.loss, step.number, first.examples)
        step.census.close(step.number, first.examples, step.memory)
        if self.saves and saving.due(step.spec, step.number + 1):
            step.loss, step.updates = first.loss, first.version
            self._gather()
            step.save()
            step.optimizer.state.clear()
        self.task.at_step_end()

    def _gather(self) -> None:
        """Hold what the ps hold, for a moment."""
        optimizer, parameters = self.step.optimizer, self.step.parameters
        values, *state = zip(*self.ask("checkpoint", shard.everything), strict=True)
        self.fill(values)
        begin_state(optimizer, self.step.updates)
        for k, pieces in enumerate(state):
            ours = state_of(optimizer)[k :: len(state)]  # of each parameter
            for mine, whole in zip(ours, shaped(torch.cat(pieces), parameters), strict=True):
                mine.copy_(whole)

    def result(self) -> dict[str, Any]:
        """Return the result of the strategy (see `TrainingStep.result`), of the parameters that
        every shard has in the end. One worker speaks for the ps, which return nothing.
        """
        step = self.step
        values, losses, speakers = zip(*self.ask("final pull", final, step.task.index), strict=True)
        self.fill(values)
        step.loss, step.first = losses[0], self.task.index == speakers[0]
        if step.first and due(step.spec, step.spec.steps):  # nobody pulls the last version
            step.evaluate(step.spec.steps * step.spec.batch)
        on_ps = {f"ps:{k}/cpu": piece.nbytes for k, piece in enumerate(values) if step.first}
        state = STATE[step.spec.optimizer]
        its = {ps: state * count for ps, count in on_ps.items() if state}
        return step.result() | {"variables_on": on_ps, "optimizer_state_on": its}


def connections(task: Task) -> list[Peer]:
    """A connection to each ps, in order, once all are there."""
    meeting, deadline, peers = shard.meeting_of(task), clock() + PATIENCE, list[Peer]()
    for k in range(task.spec.ps):
        while (sock := meeting.call(task.spec.workers + k)) is None:
            if clock() > deadline:
                raise RuntimeError(f"{task.name} did not find ps:{k} within {PATIENCE:g} s")
            time.sleep(0.005)
        peers.append(Peer(f"ps:{k}", sock))
    meeting.close()  # nobody calls a worker
    return peers
