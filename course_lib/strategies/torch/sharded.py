"""The training loop for models whose parameters are DTensors: each worker has a shard of them,
computes its gradient, and applies the update to it.

How the shards come to be, and what the workers exchange for that in a step, is what tensor_parallel
and fully_sharded differ in. A DTensor looks like the whole tensor; `to_local` is the part of it
that is here, `full_tensor` fetches all parts.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.evaluation import evaluate
from course_lib.strategies.torch.devices import now
from course_lib.strategies.torch.training import Span
from course_lib.workloads.model import digest
from course_lib.workloads.torch import accuracy, weights_of


class Exchanges:
    """When the exchanges of a step began and ended."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._spans: list[Span] = []

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Note when the block, which exchanges something, began and ended."""
        start = now(self.device)
        yield
        self._spans.append((start, now(self.device)))

    def take(self) -> list[Span]:
        """(start, end) of each exchange since the last call, in order."""
        spans, self._spans = self._spans, []
        return spans


def train(
    task: Task,
    workload: workloads.Workload,
    model: Any,
    gradients: Callable[[Any, Any], float],
    exchanges: Exchanges,
    share: tuple[int, int] = (0, 1),
    work: float = 1.0,
) -> dict[str, Any]:
    """Train the run's workload.

    `gradients(images, labels)` leaves a gradient in each parameter and returns the mean loss over
    the global batch. `share` (k, w): this worker takes the k-th of w slices of the batch. `work`:
    its part of the emulated device time of a step. Returns the task's result; its digest is that of
    the whole model, variables_on has the bytes that are here.
    """
    loss = _loop(task, workload, model, gradients, exchanges, share, work)
    return {
        "final_loss": loss,
        "test_accuracy": accuracy(model, workload, exchanges.device),
        "variables_on": variables_on(model),
        "digest": digest(weights_of(whole(model))),
        "parameters": workload.parameters,
    }


def _loop(
    task: Task,
    workload: Any,
    model: Any,
    gradients: Any,
    exchanges: Exchanges,
    share: tuple[int, int],
    work: float,
) -> float:
    """Run all steps and write them into the trace; the last loss."""
    spec, device = task.spec, exchanges.device
    rate = spec.learning_rate or workload.learning_rate
    # seconds that recent steps computed; the least of them, as a busy machine only ever adds
    busy = deque([0.0], maxlen=5)
    loss = float("nan")
    for n in range(spec.steps):
        with task.phase("read", n):
            indices = workload.batch(n, spec.seed, spec.batch, *share)
            images = torch.from_numpy(workload.x_train[indices]).to(device)
            labels = torch.from_numpy(workload.y_train[indices]).to(device)
        start = clock()
        task.pace(min(busy), share=work)
        begin = clock()
        loss = gradients(images, labels)
        computed = now(device)
        spans = exchanges.take()
        busy.append(computed - begin - sum(b - a for a, b in spans))
        record(task, n, start, computed, spans)
        with task.phase("apply", n):
            where = apply(model, rate)
            now(device)
        task.update(n, f"shard {task.index}", where, read=n, written=n + 1)
        task.metric("loss", loss, n, (n + 1) * spec.batch)
        evaluate(task, n, (n + 1) * spec.batch, lambda: accuracy(model, workload, device))
        exchanges.take()  # those of that are not the next step's
    return loss


def record(task: Task, step: int, start: float, end: float, exchanges: list[Span]) -> None:
    """Record the exchanges between `start` and `end`, and what lies between them as computing."""
    for begun, ended in exchanges:
        task.record("compute", step, start, begun)
        task.record("reduce", step, begun, ended)
        start = ended
    task.record("compute", step, start, end)


def apply(model: Any, rate: float) -> str:
    """parameter -= rate * gradient, for the parts that are here; the device that did it."""
    with torch.no_grad():
        for parameter in model.parameters():
            mine = parameter.to_local()
            mine.sub_(parameter.grad.to_local(), alpha=rate)
            parameter.grad = None
    return str(mine.device)


def variables_on(model: Any) -> dict[str, int]:
    """Bytes of the parts that are here, on each device of this process."""
    found: Counter[str] = Counter()
    for parameter in model.parameters():
        mine = parameter.to_local()
        found[str(mine.device)] += mine.numel() * mine.element_size()
    return dict(found)


def whole(model: Any) -> Any:
    """The parameters put together from all workers, which must call this together."""
    return torch.nn.ParameterList(
        parameter.full_tensor().detach() for parameter in model.parameters()
    )
