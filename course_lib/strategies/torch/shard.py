"""A parameter server (ps): it holds a shard of the parameters, answers the calls of workers, one at
a time, and knows which workers are left; and the messages between workers and ps.

A worker names a function, and a ps runs it and replies with its value. One that must wait for other
workers returns `Later`; meanwhile the ps serves the others. When a worker's process ends, so does
its connection, and every ps knows at once that this worker is lost: nobody waits for it any longer.
If it is started again, it joins again.

A message is JSON, with the bytes of its tensors behind it (`exchange/messages.py`). A ps runs only
the functions marked `on_ps`, and unpickles nothing. PyTorch's own RPC unpickles what it is sent,
and cannot take back a process that has died and was started again; production systems use gRPC,
which has neither fault.
"""

import contextlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from course_lib.cluster.task import Task
from course_lib.exchange.group import Meeting
from course_lib.exchange.messages import Peer, ready
from course_lib.record.events import Lifecycle, clock, from_lines
from course_lib.record.files import read_lines
from course_lib.strategies import catalog, saving
from course_lib.strategies.torch import models
from course_lib.strategies.torch.models import bytes_of, bytes_sent, flat, state_of
from course_lib.strategies.torch.steps import TorchStep

POLL = 0.5  # seconds after which a ps reads whether workers were lost before they came
ON_PS: dict[str, Callable[..., Any]] = {}


def on_ps(function: Any) -> Any:
    """Mark a function that a ps runs for workers. Its first argument is the ps's shard."""
    ON_PS[function.__name__] = function
    return function


class Later(NamedTuple):
    """An answer of a ps that has to wait: it is `answer()`, as soon as `true()`.
    The ps serves other workers meanwhile.
    """

    true: Callable[[], bool]
    answer: Callable[[], Any]


# --- messages ---


@dataclass(frozen=True)
class Snapshot:
    """A copy of a shard: its `version` and `values`; a sparse vector has only those that differ
    from a version that the worker has.

    `evaluate_at`: the examples that the values have seen, if whoever gets them is to measure the
    test accuracy; else 0.
    """

    version: int
    values: torch.Tensor
    evaluate_at: int


@dataclass(frozen=True)
class Gradient:
    """A push of a worker to a shard: the mean gradient of its share of a batch, `values` for this
    piece of the parameters, computed from version `read`. The mean is `loss / count`, 1 being the
    count of a loss that is a mean by itself.
    """

    worker: int
    step: int
    read: int
    values: torch.Tensor
    loss: float
    count: float = 1.0


@dataclass(frozen=True)
class Reply:
    """The reply of a shard to a push.

    Its `version` now; the mean `loss` of the last gradients, as many as make up a global batch; how
    many `examples` its updates have used so far; how many steps the `slowest` worker has done; and
    whether this gradient was `used`.
    """

    version: int
    loss: float
    examples: int
    slowest: int
    used: bool = True


KINDS: dict[str, Callable[..., Any]] = {k.__name__: k for k in (Snapshot, Gradient, Reply)}
KINDS["runs"] = models.of_runs


def send(peer: Peer, value: Any) -> None:
    """Send a value that consists of JSON's types, tensors and what is defined above."""
    tensors: list[torch.Tensor] = []

    def as_json(each: Any) -> dict[str, Any]:
        if not isinstance(each, torch.Tensor):
            return {type(each).__name__: list(vars(each).values())}
        if each.is_sparse:
            return {"runs": [*models.runs(each), each.values(), len(each)]}
        tensors.append(each)
        return {"tensor": [str(each.dtype).removeprefix("torch."), each.nbytes]}

    text = json.dumps(value, default=as_json)
    peer.send(text, [memoryview(each.view(torch.uint8).numpy()) for each in tensors])


def receive(peer: Peer) -> Any:
    """The next value that a peer has sent; None if it has not come whole."""
    if not (message := peer.receive()):
        return None
    text, block = message

    def decoded(each: dict[str, Any]) -> Any:
        nonlocal block
        ((name, value),) = each.items()
        if name != "tensor":
            return KINDS[name](*value)
        its, block = block[: value[1]], block[value[1] :]
        kind = getattr(torch, value[0])
        return torch.from_numpy(its).view(kind) if len(its) else torch.empty(0, dtype=kind)

    return json.loads(text, object_hook=decoded)


# --- the shard ---


class Shard(TorchStep):
    """The piece of the parameters that a ps holds: its `values`, the `optimizer` that updates them,
    and a `version` that counts their updates. `counted` gradients make up a global batch; `kept`
    are gradients that came in but are not applied yet.

    `living` are the workers that are not lost; `pending` has the calls of those that wait for an
    answer; `finished` are those with nothing left to do; `steps_done` says how many steps each has
    done. Where pieces of batches are handed out one by one, `pieces` has the one that each worker
    has taken, or had when it was lost (-1: none), and `next_piece` is the next one. Of a model
    with sparse gradients, `changed` has for each of the values the version in which it last did.

    A shard leaves a part of each checkpoint, unless a worker saves all shards `together`
    (`Servers`).
    """

    def __init__(self, task: Task, counted: int) -> None:
        super().__init__(task)
        self.together = catalog.carries_over(task.spec.strategy)
        if self.together:
            self.restore()

        def mine(whole: Iterable[torch.Tensor]) -> torch.Tensor:
            return flat(whole).tensor_split(task.spec.ps)[task.index].clone()

        self.values, whole = mine(self.parameters), state_of(self.optimizer)
        self.optimizer = models.optimizer_of(task.spec, [self.values])
        if self.updates:
            models.begin_state(self.optimizer, self.updates)
            state = state_of(self.optimizer)
            for k, each in enumerate(state):
                each.copy_(mine(whole[k :: len(state)]))  # of all parameters
        self.model = self.replica = self.workloads_model = nn.Module()  # only the piece is left
        self.parameters, workers = [self.values], task.spec.workers
        self.steps_done = torch.full((workers,), self.number + 1)
        self.pieces, self.next_piece = torch.full((workers,), -1), torch.tensor(0)
        self.living, self.finished = set(range(workers)), set[int]()
        self.pending: dict[int, tuple[Peer, Any]] = {}
        self.kept: list[Gradient] = []
        self.counted, self._evaluations = counted, 0
        sketch = self.workload.sketch_in("torch", task.spec.precision)
        sparse = sketch and sketch.sparse
        self.changed = torch.zeros(len(self.values), dtype=torch.int32) if sparse else None
        self.losses: deque[tuple[float, float]] = deque(maxlen=counted)  # sum and count
        if not self.together:
            self.writers = [f"ps:{k}" for k in range(task.spec.ps)]
            self.own_state = {"values": self.values, "steps_done": self.steps_done}
            self.own_state |= {"pieces": self.pieces, "next_piece": self.next_piece}
            self.restore()  # pieces that were taken then are to be computed again
        self.version, self._saved = self.updates, self.number

    @contextlib.contextmanager
    def updating(self, gradients: Sequence[Gradient]) -> Iterator[None]:
        """The block calls `optimizer.step()`, with the mean of these gradients as that of the
        values: one update, which makes one version.
        """
        start, before = clock(), self.values if self.changed is None else self.values.clone()
        gradients = sorted(gradients, key=lambda gradient: gradient.worker)
        step, read = gradients[0].step, min(g.read for g in gradients)
        models.set_rate(self.optimizer, self.rates[step])
        yield
        self.optimizer.zero_grad()
        self.version += 1
        if self.changed is not None:  # an optimizer with a state changes values without a gradient
            self.changed[self.values != before] = self.version
        self.task.record("apply", step, start, clock())
        name, device = f"shard {self.task.index}", str(self.values.device)
        whose = " ".join(f"worker:{g.worker}" for g in gradients)
        self.task.update(step, name, device, read, self.version, len(gradients), whose)
        self.census.note(gradients=bytes_of(g.values for g in gradients))
        for g in gradients:
            self.losses.append((g.loss, g.count))
            self.steps_done[g.worker] = g.step + 1
        batch = self.spec.batch
        used = self.samples + len(gradients) * (batch // self.counted)
        self.number, self.ahead = used // batch - 1, used % batch
        self.census.close(step, used, self.memory)

    def memory(self) -> dict[str, int]:
        state = bytes_of(state_of(self.optimizer))
        return {"parameters": self.values.nbytes, "optimizer_state": state}

    @property
    def slowest(self) -> int:
        """The number of steps that the slowest living worker has done."""
        return min(int(self.steps_done[k]) for k in self.living or range(len(self.steps_done)))

    def reply(self, used: bool = True) -> Reply:
        """Make the reply to a push."""
        total, count = map(sum, zip(*self.losses, strict=True)) if self.losses else (math.nan, 1.0)
        return Reply(self.version, total / (count or 1.0), self.samples, self.slowest, used)

    def snapshot(self, since: int) -> Snapshot:
        """A copy of the values, as the next update may come before they are sent; or of those that
        have changed since a version, if these are fewer bytes.

        The first one to ask after each `evaluate_every` steps is to measure the test accuracy.
        """
        every, examples = self.spec.evaluate_every * self.spec.batch, 0
        if every and self.samples // every > self._evaluations:
            self._evaluations, examples = self.samples // every, self.samples
        values = self.values
        if self.changed is not None:
            places = torch.nonzero(self.changed > since)[:, 0]
            some = models.vector(places, values[places], len(values))
            values = min(values, some, key=bytes_sent)
        self.census.note(exchange=bytes_sent(values))
        return Snapshot(self.version, values.clone(), examples)

    def save(self) -> None:
        """Leave the part of a checkpoint that this shard is, if one is due."""
        due = saving.due(self.spec, self.number + 1) and self.number > self._saved
        if due and not self.together:
            self._saved, self.updates, start = self.number, self.version, clock()
            self.leave_checkpoint()
            self.task.record("checkpoint", self.number, start, clock())

    def lose(self, worker: int) -> None:
        """A worker is lost. Gradients of it that are not applied yet are dropped, as it may come
        back and compute them again.
        """
        self.living.discard(worker)
        self.pending.pop(worker, None)
        for gradient in [gradient for gradient in self.kept if gradient.worker == worker]:
            self.kept.remove(gradient)
            self.drop(gradient, "lost")

    def drop(self, gradient: Gradient, why: str) -> None:
        """Record that a gradient goes into no update."""
        whose = f"worker:{gradient.worker}"
        self.task.dropped(gradient.step, why, f"shard {self.task.index}", whose)

    def settle(self) -> None:
        """Answer the calls whose answers need not wait any longer."""
        for worker, (peer, answer) in [*self.pending.items()]:
            if not isinstance(answer, Later) or answer.true():
                del self.pending[worker]
                send(peer, answer.answer() if isinstance(answer, Later) else answer)


def serve(
    task: Task,
    counted: int | None = None,
    rule: Any = lambda shard: None,
    functions: Iterable[Any] = (),
) -> None:
    """Be a ps, for which `counted` gradients make up a global batch (default: one from each
    worker). After each call, and after each loss of a worker, `rule` may find that it is time for
    an update. `functions`: those that workers may name besides the ones marked `on_ps`.

    Never returns: the supervisor ends a ps when all workers are done.
    """
    for function in functions:
        on_ps(function)
    shard = Shard(task, counted or task.spec.workers)
    for worker, peer, call in calls(task):
        if call is None or peer is None:
            shard.lose(worker)
        else:
            function, arguments = call
            shard.pending[worker] = peer, ON_PS[function](shard, *arguments)
        shard.settle()
        rule(shard)
        shard.settle()
        shard.save()


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
def final(shard: Shard, worker: int) -> Later:
    """On a ps: values and loss of the shard, and the worker that speaks for the ps, once no worker
    has anything left to do.
    """
    shard.finished.add(worker)

    def answer() -> tuple[torch.Tensor, float, int]:
        return shard.values, shard.reply().loss, min(shard.living)

    return Later(lambda: shard.living <= shard.finished, answer)


# --- the calls of workers ---


def calls(task: Task) -> Iterator[tuple[int, Peer | None, Any]]:
    """On a ps: worker, connection and call (function, arguments), as they come; None for
    the call once the worker is gone. Never ends.
    """
    meeting, workers = meeting_of(task), dict[Peer, int]()
    missing = set(range(task.spec.workers))  # those that have not come yet
    while True:
        for each in ready([*meeting.doors, *workers], POLL if missing else None):
            if each in meeting.doors:
                if (caller := meeting.answer(each)) is not None:
                    worker, sock = caller
                    workers[Peer(f"worker:{worker}", sock)] = worker
                    missing.discard(worker)
                continue
            try:
                call = receive(each)
            except ConnectionError:
                each.sock.close()
                yield workers.pop(each), each, None
                continue
            if call is not None:
                yield workers[each], each, call
        for worker in missing & _lost(task) if missing else ():
            missing.discard(worker)
            yield worker, None, None


def _lost(task: Task) -> set[int]:
    """The workers that the run goes on without, as the supervisor has noted: one that has never
    come leaves no connection that could close.
    """
    events, _ = from_lines(read_lines(task.files.lifecycle))
    lost = (e.task for e in events if isinstance(e, Lifecycle) and e.state == "lost")
    return {int(name.partition(":")[2]) for name in lost if name.startswith("worker:")}


def meeting_of(task: Task) -> Meeting:
    """The place where workers meet the ps: in the run's directory, by sockets of this machine;
    between hosts by TCP, and then all of them, so that what they send is counted alike.
    """
    names = [name for name in task.spec.tasks if not name.startswith("chief")]  # workers, then ps
    several = len(task.spec.all_hosts) > 1
    places = tuple(range(len(names))) if several else (0,) * len(names)
    folder = task.files.meetings / "servers"
    return Meeting(folder, names.index(task.name), places, task.address)
