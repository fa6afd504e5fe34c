"""The synchronous training loop in PyTorch, the same for one device and for replicas that average
their gradients.

A step has three parts:

    replica(images, labels)         the loss of a share of the batch
    backward()                      gradients; a wrapper such as DistributedDataParallel has averaged them when it returns
    parameter -= rate * gradient    on every replica, with the same average
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.evaluation import evaluate
from course_lib.strategies.torch.devices import now
from course_lib.workloads.model import digest
from course_lib.workloads.torch import accuracy, loss_of, weights_of

Span = tuple[float, float]


class Replica(torch.nn.Module):
    """A model, and one parameter more whose gradient is the loss.

    Whatever averages the gradients so averages the loss along with them: one message, not two. The
    extra parameter is zero, adds zero to the loss, and is never changed.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = torch.nn.Parameter(torch.zeros(()))

    def forward(self, images: Any, labels: Any) -> Any:
        loss = loss_of(self.model(images), labels)
        return loss + loss.detach() * self.loss


def train(
    task: Task,
    workload: workloads.Workload,
    replica: Replica,
    averaged: Callable[[Any, Any], Any],
    reductions: Callable[[], list[Span]] = list,
) -> dict[str, Any]:
    """Train the run's workload.

    `averaged` is the replica itself or a wrapper that averages gradients; `reductions` tells when
    it did so in the step just done. Returns the task's result: final_loss (mean over the last
    global batch), test_accuracy, digest (of this process's own copy of the parameters), parameters
    (how many) and variables_on (bytes of parameters by device).
    """
    loss = _loop(task, workload, replica, averaged, reductions)
    return {
        "final_loss": loss,
        "test_accuracy": accuracy(replica.model, workload, replica.loss.device),
        "digest": digest(weights_of(replica.model)),
        "parameters": workload.parameters,
        "variables_on": variables_on(replica.model),
    }


def _loop(
    task: Task,
    workload: workloads.Workload,
    replica: Replica,
    averaged: Any,
    reductions: Callable[[], list[Span]],
) -> float:
    """Run all steps and write them into the trace; the last loss."""
    spec, device = task.spec, replica.loss.device
    rate = spec.learning_rate or workload.learning_rate
    # seconds that recent steps computed; the least of them, as a busy machine only ever adds
    busy = deque([0.0], maxlen=5)
    loss = float("nan")
    for n in range(spec.steps):
        with task.phase("read", n):
            indices = workload.batch(n, spec.seed, spec.batch, task.index, spec.workers)
            images = torch.from_numpy(workload.x_train[indices]).to(device)
            labels = torch.from_numpy(workload.y_train[indices]).to(device)
        start = clock()
        task.pace(min(busy))
        begin = clock()
        averaged(images, labels).backward()
        reduced = now(device)
        spans = reductions()
        # the last gradients are there when the last reduction starts
        computed = spans[-1][0] if spans else reduced
        loss, where = apply(replica, rate)
        applied = now(device)
        busy.append(computed - begin)
        task.record("compute", n, start, computed)
        for span in spans:
            task.record("reduce", n, *span)
        task.record("apply", n, reduced, applied)
        task.update(n, "all", where, read=n, written=n + 1, gradients=spec.shares)
        task.metric("loss", loss, n, (n + 1) * spec.batch)
        if task.index == 0:
            evaluate(
                task, n, (n + 1) * spec.batch, lambda: accuracy(replica.model, workload, device)
            )
    return loss


def variables_on(model: torch.nn.Module) -> dict[str, int]:
    """Bytes of a model's parameters on each device of this process."""
    found: Counter[str] = Counter()
    for parameter in model.parameters():
        found[str(parameter.device)] += parameter.numel() * parameter.element_size()
    return dict(found)


def apply(replica: Replica, rate: float) -> tuple[float, str]:
    """parameter -= rate * gradient, for all parameters of the model; the mean loss, and the device
    that did it.
    """
    with torch.no_grad():
        for parameter in replica.model.parameters():
            parameter.sub_(parameter.grad, alpha=rate)
        loss = replica.loss.grad.item()
        where = str(replica.loss.grad.device)
    replica.zero_grad(set_to_none=True)
    return loss, where
