"""Parameter servers (ps) over torch.distributed.rpc: what goes on between the workers and the ps,
and the record of it. What each of them does with it is on the strategies' pages.

With several ps the parameters are laid end to end as one long vector and cut into that many pieces
of equal length. So every ps holds, sends and receives the same number of bytes, however unequal the
layers are. A worker talks to all ps at once. Each shard counts its own versions, and none is held
back for another.

RPC (remote procedure call) means that a worker runs a function on a ps and gets its value back.
PyTorch's documentation calls its RPC stable and in maintenance mode; it shows the idea in few
lines. Here all calls go through `call`, one at a time on a ps. A function that must wait for other
workers returns a future; meanwhile the ps serves the others. Source: Li et al., "Scaling
Distributed Machine Learning with the Parameter Server", OSDI 2014.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed.rpc as rpc
from torch.futures import Future

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.memory import Census
from course_lib.strategies.steps import due
from course_lib.strategies.torch.optimizer import Optimizer, bytes_on
from course_lib.strategies.torch.steps import TorchStep, build, flat, trained

PATIENCE = 60.0
"""Seconds that a worker waits for an answer."""


class Snapshot(NamedTuple):
    """A copy of a shard: its `version` and `values`.

    `evaluate_at`: the examples that the values have seen, if whoever gets them is to measure the
    test accuracy; else 0.
    """

    version: int
    values: torch.Tensor
    evaluate_at: int


class Gradient(NamedTuple):
    """What a worker pushes to a shard: the mean gradient of its share of a batch, `values` for this
    piece of the parameters, computed from version `read`.
    """

    worker: int
    step: int
    read: int
    values: torch.Tensor
    loss: float


class Reply(NamedTuple):
    """What a shard replies to a push.

    Its `version` now; the mean `loss` of the last gradients, as many as make up a global batch; how
    many `examples` its updates have used so far; how many steps the `slowest` worker has done; and
    whether this gradient was `used`.
    """

    version: int
    loss: float
    examples: int
    slowest: int
    used: bool = True


# --- on a ps ---


class Shard:
    """The piece of the parameters that a ps holds: its `values`, their `optimizer` with its state,
    and a `version` that counts their updates. `counted` gradients make up a global batch; `kept`
    are gradients that came in but are not applied yet.

    One call at a time uses it.
    """

    def __init__(self, task: Task, counted: int) -> None:
        workload = workloads.load(task.spec)
        parameters = flat(trained(build(workload, task.spec.seed)))
        self.task = task
        self.values = torch.tensor_split(parameters, task.spec.ps)[task.index].clone()
        self.optimizer = Optimizer(task.spec, [self.values])
        self.version = self.examples = 0
        self.steps_done = [0] * task.spec.workers
        self.kept: list[Gradient] = []
        self.counted = counted
        self.losses: deque[float] = deque(maxlen=counted)
        self.census = Census(task)
        self.heard: dict[str, str] = {}  # the last call of each worker
        self.lock = threading.RLock()
        self._waiting: list[tuple[Callable[[], bool], Callable[[], Any], Future[Any]]] = []
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
        self._look()

    def held(self) -> dict[str, int]:
        """Bytes of memory that this ps holds, by kind."""
        state = sum(self.optimizer.state_on().values())
        return {"parameters": self.values.nbytes, "optimizer_state": state}

    def reply(self, used: bool = True) -> Reply:
        """What to reply to a push now."""
        loss = sum(self.losses) / len(self.losses) if self.losses else float("nan")
        return Reply(self.version, loss, self.examples, min(self.steps_done), used)

    def snapshot(self) -> Snapshot:
        """A copy of the values: the next update may come before they are sent.

        The first one to ask after each `evaluate_every` steps is to measure the test accuracy.
        """
        every, examples = self.task.spec.evaluate_every * self.task.spec.batch, 0
        if every and self.examples // every > self._evaluations:
            self._evaluations, examples = self.examples // every, self.examples
        self.census.note(exchange=self.values.nbytes)
        return Snapshot(self.version, self.values.clone(), examples)

    def when(self, true: Callable[[], bool], answer: Callable[[], Any]) -> Future[Any]:
        """A future that gets `answer()` as soon as `true()`.

        `true` is called now and after each update, so waiting costs the ps nothing.
        """
        future: Future[Any] = Future()
        self._waiting.append((true, answer, future))
        self._look()
        return future

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        for true, answer, future in waiting:
            if true():
                future.set_result(answer())
            else:
                self._waiting.append((true, answer, future))


_shard: Shard  # of this process, if it is a ps


def serve(task: Task, counted: int | None = None) -> None:
    """Be a ps, for which `counted` gradients make up a global batch (default: one from each
    worker).

    Never returns: the supervisor ends a ps when all workers are done.
    """
    global _shard
    _shard = Shard(task, counted or task.spec.workers)
    join(task)
    threading.Event().wait()


@rpc.functions.async_execution
def call(who: str, what: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """What `function(shard, *arguments)` returns, or, if that is a future, what it gets.

    Run on a ps for worker `who`.
    """
    with _shard.lock:
        _shard.heard[who] = what
        value = function(_shard, *arguments)
    if isinstance(value, Future):
        return value
    done: Future[Any] = Future()
    done.set_result(value)
    return done


def last_heard() -> str:
    """On a ps: the last call of each worker, in words."""
    return ", ".join(f"{what} by {who}" for who, what in sorted(_shard.heard.items()))


def final(shard: Shard, updates: int) -> Future[Any]:
    """On a ps: values and loss of the shard, and the bytes by device of its values and of their
    optimizer's state, once it has had all its updates.
    """

    def answer() -> tuple[torch.Tensor, float, dict[str, dict[str, int]]]:
        held = {
            "variables_on": bytes_on([shard.values]),
            "optimizer_state_on": shard.optimizer.state_on(),
        }
        return shard.values, shard.reply().loss, held

    return shard.when(lambda: shard.version >= updates, answer)


# --- on a worker ---


class Servers:
    """All parameter servers, as a worker in its `step` sees them."""

    def __init__(self, step: TorchStep) -> None:
        self.step, self.task = step, step.task
        self.names = [f"ps:{k}" for k in range(step.spec.ps)]
        # what was asked for -> bytes of parameters and gradients that moved the last time
        self.moved: dict[str, int] = {}
        join(step.task)

    def ask(self, what: str, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(shard, *arguments)` returns on each ps, all asked at once.

        An argument that is a list has an element for each ps. Raises RuntimeError, which names the
        ps and `what` was asked for, if one does not answer.
        """
        text, sent, calls = f"{what} of step {self.step.number}", [], []
        before = self.task.doing
        self.task.enter("wait")
        for k, ps in enumerate(self.names):
            its = [value[k] if isinstance(value, list) else value for value in arguments]
            sent += its
            request = (self.task.name, text, function, *its)
            calls.append((ps, rpc.rpc_async(ps, call, request, timeout=PATIENCE)))
        answers = [self._answer(ps, text, future) for ps, future in calls]
        moved = [each for each in (*sent, *answers) if isinstance(each, (Snapshot, Gradient))]
        self.moved[what] = sum(each.values.nbytes for each in moved)
        self.step.census.note(exchange=sum(self.moved.values()))
        self.task.enter(before)
        return answers

    def _answer(self, ps: str, what: str, future: Future[Any]) -> Any:
        try:
            return future.wait()
        except RuntimeError as error:
            heard = ""
            with contextlib.suppress(RuntimeError):
                heard = " What it heard last: " + rpc.rpc_sync(ps, last_heard, timeout=5)
            reason = str(error).splitlines()[0].rstrip(".")
            raise RuntimeError(
                f"{ps} did not answer the {what} by {self.task.name}: {reason}.{heard}"
            ) from None

    def done(self, replies: Sequence[Reply]) -> None:
        """The step is over, with these replies to its push: record what became of the gradient."""
        for k, reply in enumerate(replies):
            if not reply.used:
                self.task.dropped(self.step.number, "late", f"shard {k}")
        if replies[0].used:
            self.task.metric("loss", replies[0].loss, self.step.number, replies[0].examples)
        self.step.census.close(self.step.number, replies[0].examples, self.step.held)
        self.task.at_step_end()

    def result(self, updates: int) -> dict[str, Any]:
        """What the strategy returns (see `outcome`), from the parameters that every shard has after
        `updates` updates. Worker 0 speaks for the ps, which return nothing.
        """
        step = self.step
        shards = self.ask("final pull", final, updates)
        fill(step.model, [values for values, _, _ in shards])
        held: dict[str, dict[str, int]] = {"variables_on": {}, "optimizer_state_on": {}}
        step.loss = shards[0][1]
        if not self.task.index:
            for k, (_, _, its) in enumerate(shards):
                for what, found in its.items():
                    held[what] |= {f"ps:{k}/{device}": n for device, n in found.items()}
            if due(step.spec, step.spec.steps):  # nobody pulls the last version
                step.evaluate(step.spec.steps * step.spec.batch)
        return step.result() | held


# --- on both ---


def join(task: Task) -> None:
    """Make this task one that all others can call by its name, once all are there."""
    # to meet the others; its own is 24 days
    rpc.constants.DEFAULT_PROCESS_GROUP_TIMEOUT = timedelta(seconds=PATIENCE)
    # Sockets only: the shared-memory transport polls without a pause, a fifth of a core in every
    # task. Between hosts tensors use sockets too; RPC would otherwise pass them from memory to
    # memory, because both hosts are this machine.
    channels = ["basic"] if len(task.spec.all_hosts) > 1 else None
    options = rpc.TensorPipeRpcBackendOptions(
        rpc_timeout=PATIENCE, num_worker_threads=4, _transports=["uv"], _channels=channels
    )
    rpc.init_rpc(
        task.name, rank=task.rank, world_size=len(task.spec.tasks), rpc_backend_options=options
    )


def fill(model: torch.nn.Module, pieces: Sequence[torch.Tensor]) -> None:
    """Take the parameters of a model from the pieces that the shards hold, in order."""
    device = next(model.parameters()).device
    torch.nn.utils.vector_to_parameters(torch.cat(list(pieces)).to(device), trained(model))
