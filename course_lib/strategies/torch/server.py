"""Parameter servers over torch.distributed.rpc: what the strategies with a ps have in common.

    on a ps         Shard: its piece of the parameters, and its version: how many updates that piece has had
    on a worker     pull():          values and version of every shard, for this worker's copy of the model
                    load, compute:   the loss of a share of the batch, and its gradient
                    push(function):  to every shard its piece of the gradient; there `function(shard, gradient)` decides what becomes of it

With several ps the parameters are laid end to end as one long vector and cut into that many pieces
of equal length, so every ps holds, sends and receives the same number of bytes, however unequal the
layers are. A worker talks to all shards at once. Each shard counts its own versions, and nothing
holds one shard back for another.

RPC (remote procedure call) means that a worker runs a function on a ps and gets its value back.
PyTorch's documentation calls its RPC stable and in maintenance mode: expect nothing new of it. It
is here because it shows the idea in few lines. Here all go through `call`, one at a time on a ps. A
function that must wait for other workers returns a future; meanwhile the ps serves the others.
Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed.rpc as rpc
from torch.futures import Future

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.evaluation import evaluate
from course_lib.strategies.torch.devices import now, use
from course_lib.workloads.model import digest
from course_lib.workloads.torch import accuracy, build, loss_of, weights_of

PATIENCE = 60.0
"""Seconds that a worker waits for an answer."""


class Gradient(NamedTuple):
    """What a worker pushes to a shard: `values` for its piece of the parameters, computed from
    version `read`, a mean over so many `examples`.
    """

    worker: int
    step: int
    read: int
    values: torch.Tensor
    loss: float
    examples: int


class Answer(NamedTuple):
    """What a shard says to a push.

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
    """The piece of the parameters that a ps holds. `counted` gradients make up a global batch.

    Used by one call at a time.
    """

    def __init__(self, task: Task, counted: int) -> None:
        workload = workloads.load(task.spec)
        pieces = torch.tensor_split(
            flat(build(workload, task.spec.seed).parameters()), task.spec.ps
        )
        self.task, self.values = task, pieces[task.index].clone()
        self.rate = task.spec.learning_rate or workload.learning_rate
        self.version = self.examples = 0
        self.steps_done = [0] * task.spec.workers
        self.kept: list[Gradient] = []  # gradients that came in but are not applied yet
        self.losses: deque[float] = deque(maxlen=counted)
        self.heard: dict[str, str] = {}  # the last call of each worker
        self.lock = threading.RLock()
        self._waiting: list[tuple[Callable[[], bool], Callable[[], Any], Future[Any]]] = []
        self._evaluations = 0

    def apply(self, gradients: Sequence[Gradient]) -> None:
        """values -= rate * mean of `gradients`: one update, which makes one new version."""
        # the order of a float32 sum shows in its last bits
        gradients = sorted(gradients, key=lambda g: g.worker)
        step, start = gradients[0].step, clock()
        mean = sum(g.values for g in gradients) / len(gradients)
        self.values.sub_(mean, alpha=self.rate)
        self.version += 1
        self.task.record("apply", step, start, clock())
        where, read = str(self.values.device), min(g.read for g in gradients)
        whose = " ".join(f"worker:{g.worker}" for g in gradients)
        self.task.update(
            step, f"shard {self.task.index}", where, read, self.version, len(gradients), whose
        )
        for g in gradients:
            self.losses.append(g.loss)
            self.examples += g.examples
            self.steps_done[g.worker] = g.step + 1
        self._look()

    def answer(self, used: bool = True) -> Answer:
        """What to say to a push now."""
        loss = sum(self.losses) / len(self.losses) if self.losses else float("nan")
        return Answer(self.version, loss, self.examples, min(self.steps_done), used)

    def evaluation(self) -> int:
        """How many examples the values have seen, if whoever gets them now is to measure the test
        accuracy; else 0. So one worker does.
        """
        every = self.task.spec.evaluate_every * self.task.spec.batch
        if not every or self.examples // every <= self._evaluations:
            return 0
        self._evaluations = self.examples // every
        return self.examples

    def when(self, true: Callable[[], bool], answer: Callable[[], Any]) -> Future[Any]:
        """A future that gets `answer()` as soon as `true()`.

        That is looked at after each update, so waiting costs the ps nothing.
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


def pull(shard: Shard, at_least: int) -> Future[Any]:
    """Version and values of a shard, as soon as it has version `at_least`, and what
    `Shard.evaluation` says of them.
    """
    # A copy: the next update may come before this one is sent.
    return shard.when(
        lambda: shard.version >= at_least,
        lambda: (shard.version, shard.values.clone(), shard.evaluation()),
    )


def final(shard: Shard, updates: int) -> Future[Any]:
    """The shard once it has had all its updates: values, loss, device."""
    return shard.when(
        lambda: shard.version >= updates,
        lambda: (shard.values, shard.answer().loss, str(shard.values.device)),
    )


# --- on a worker ---


class Worker:
    """A worker: its copy of the model, and its way to the ps. Each method is a part of a step and
    writes it into the trace.

    A share of a batch is a `counted`-th of the global batch (default: one for each worker).
    """

    def __init__(self, task: Task, counted: int | None = None) -> None:
        self.task, self.device = task, use(task.device)
        self.workload = workloads.load(task.spec)
        self.model = build(self.workload, task.spec.seed).to(self.device)
        self.servers = [f"ps:{k}" for k in range(task.spec.ps)]
        self.share = task.spec.batch // (counted or task.spec.workers)
        # seconds that recent steps computed; the least of them, as a busy machine only ever adds
        self._busy = deque([0.0], maxlen=5)
        join(task)

    def pull(self, at_least: int = 0) -> int:
        """Fetch the newest parameters, of version `at_least` or later; the version of the oldest
        shard.
        """
        self._begun = clock()  # of reading, which ends when the examples are there too
        answers = self._ask("pull", pull, [(at_least,)] * len(self.servers))
        self.versions = [version for version, _, _ in answers]
        self._set(values for _, values, _ in answers)
        self._evaluate = answers[0][2]  # ps:0 says who measures the accuracy, and when
        return min(self.versions)

    def load(self, step: int, share: int | None = None) -> None:
        """Fetch a share of a step's examples (default: the one of this worker's number)."""
        spec, workers = self.task.spec, self.task.spec.workers
        mine = self.task.index if share is None else share
        indices = self.workload.batch(step, spec.seed, self.share * workers, mine, workers)
        self.images = torch.from_numpy(self.workload.x_train[indices]).to(self.device)
        self.labels = torch.from_numpy(self.workload.y_train[indices]).to(self.device)
        self.task.record("read", step, self._begun, clock())
        if self._evaluate:
            last = self._evaluate // spec.batch - 1
            self.task.metric(
                "accuracy", accuracy(self.model, self.workload, self.device), last, self._evaluate
            )

    def compute(self, step: int) -> None:
        """The mean loss over the share, and its gradient."""
        start = clock()
        self.task.pace(min(self._busy))
        begin = clock()
        loss = loss_of(self.model(self.images), self.labels)
        self.gradient = flat(torch.autograd.grad(loss, list(self.model.parameters()))).cpu()
        self.loss = loss.item()
        end = now(self.device)
        self._busy.append(end - begin)
        self.task.record("compute", step, start, end)

    def push(self, step: int, function: Callable[[Shard, Gradient], Any]) -> list[Answer]:
        """Send each shard its piece of the gradient and wait for what `function(shard, gradient)`
        says there.
        """
        start = clock()
        pieces = zip(
            self.versions, torch.tensor_split(self.gradient, len(self.servers)), strict=True
        )
        # A clone, as with a view of half a tensor RPC would send the whole of it.
        sent = [
            (Gradient(self.task.index, step, read, piece.clone(), self.loss, self.share),)
            for read, piece in pieces
        ]
        answers: list[Answer] = self._ask(f"push of step {step}", function, sent)
        self.task.record("reduce", step, start, clock())
        for answer in answers:
            if not answer.used:
                self.task.dropped(step, answer.examples)
        if answers[0].used:
            self.task.metric("loss", answers[0].loss, step, answers[0].examples)
        return answers

    def wait(
        self, step: int, what: str, function: Callable[..., Any], *arguments: Any
    ) -> list[Any]:
        """Wait before a step, for what `function(shard, *arguments)` says on every ps."""
        with self.task.phase("wait", step):
            return self._ask(f"{what} of step {step}", function, [arguments] * len(self.servers))

    def result(self, updates: int) -> dict[str, Any]:
        """The task's result, from the parameters that every shard has after `updates` updates."""
        shards = self._ask("request for the end result", final, [(updates,)] * len(self.servers))
        self._set(values for values, _, _ in shards)
        result = {
            "final_loss": shards[0][1],
            "test_accuracy": accuracy(self.model, self.workload, self.device),
            "digest": digest(weights_of(self.model)),
            "parameters": self.workload.parameters,
        }
        # for the ps, which return nothing; and nobody pulls what the last step has made
        if self.task.index == 0:
            spec = self.task.spec
            evaluate(
                self.task, spec.steps - 1, spec.steps * spec.batch, lambda: result["test_accuracy"]
            )
            result["variables_on"] = {
                f"ps:{k}/{where}": v.numel() * v.element_size()
                for k, (v, _, where) in enumerate(shards)
            }
        return result

    def _set(self, pieces: Iterable[torch.Tensor]) -> None:
        torch.nn.utils.vector_to_parameters(
            torch.cat(list(pieces)).to(self.device), self.model.parameters()
        )

    def _ask(
        self, what: str, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """What each ps answers to `function(shard, *its arguments)`, all asked at once.

        Raises RuntimeError, which names the ps, if one does not.
        """
        calls = [
            (ps, rpc.rpc_async(ps, call, (self.task.name, what, function, *its), timeout=PATIENCE))
            for ps, its in zip(self.servers, arguments, strict=True)
        ]
        return [self._answer(ps, what, future) for ps, future in calls]

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


def last_heard() -> str:
    """On a ps: the last call of each worker, in words."""
    return ", ".join(f"{what} by {who}" for who, what in sorted(_shard.heard.items()))


# --- on both ---


def join(task: Task) -> None:
    """Make this task one that all others can call by its name, once all are there."""
    # to meet the others; its own is 24 days
    rpc.constants.DEFAULT_PROCESS_GROUP_TIMEOUT = timedelta(seconds=PATIENCE)
    # Sockets only: the shared-memory transport polls without a pause, a fifth of a core in every
    # task. Between hosts tensors go through them too, and do not find a way from memory to memory
    # because both hosts are this machine.
    channels = ["basic"] if len(task.spec.all_hosts) > 1 else None
    options = rpc.TensorPipeRpcBackendOptions(
        rpc_timeout=PATIENCE, num_worker_threads=4, _transports=["uv"], _channels=channels
    )
    rpc.init_rpc(
        task.name, rank=task.rank, world_size=len(task.spec.tasks), rpc_backend_options=options
    )


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All tensors laid end to end as one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
