"""Parameter servers (ps) as a worker sees them: what it asks them for, and the record of it. What a
ps does is in `shard.py`; how they call each other, in `rpc.py`; and why, on the strategies' pages.

With several ps the parameters are laid end to end as one long vector and cut into that many pieces
of equal length. So every ps holds, sends and receives the same number of bytes, however unequal the
layers are. A worker talks to all ps at once. Each shard counts its own versions, and none is held
back for another. Source: Li et al., "Scaling Distributed Machine Learning with the Parameter
Server", OSDI 2014.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from course_lib.strategies.steps import due
from course_lib.strategies.torch.models import trained
from course_lib.strategies.torch.rpc import Gradient, Reply, Snapshot, ask, meet
from course_lib.strategies.torch.shard import final, join
from course_lib.strategies.torch.steps import TorchStep


class Servers:
    """All parameter servers, as a worker in its `step` sees them."""

    def __init__(self, step: TorchStep) -> None:
        self.step, self.task = step, step.task
        # what was asked for -> bytes of parameters and gradients that moved the last time
        self.moved: dict[str, int] = {}
        self.peers = meet(step.task)
        step.writers = ()  # the ps leave checkpoints, and go back to them
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
        """The step is over, with these replies to its push."""
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
        step.first = self.task.index == speaker
        if step.first:
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
