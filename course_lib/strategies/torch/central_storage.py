"""central_storage: one copy of the parameters, in the host's memory, for all devices of one
machine.

Every replica is a process that computes the gradients of its share of the batch. The parameters lie
in memory that all of them have mapped, so nobody sends them: a replica reads them where they are (a
GPU gets a copy of them first, in each step). The gradients come back through shared memory too, a
slot for each replica. When all slots are full, one process, worker:0, forms the mean and applies
the update; the others wait, and find new parameters when they go on:

    worker:0    compute | fill my slot | wait for all | mean | parameters -= rate * mean | let all go on
    worker:k    compute | fill my slot | wait for worker:0 ........................................... |

It saves memory for parameters: S bytes once, and not in each of w replicas. The slots for gradients
still take w times S. It costs time: one process adds up all gradients, so its work grows with the
number of replicas, where mirrored copies share it. Slots, and not one sum that everybody adds to:
float32 additions round, so that sum would depend on who comes first. Source:
tf.distribute.experimental.CentralStorageStrategy has the name and the idea; PyTorch has no such
strategy, only the parts to build it from.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist

from course_lib import workloads
from course_lib.cluster.task import Task, clock, meetings
from course_lib.errors import LockstepError
from course_lib.strategies.evaluation import evaluate
from course_lib.strategies.torch.devices import now, use
from course_lib.strategies.torch.multi_worker_mirrored import TIMEOUT
from course_lib.strategies.torch.training import variables_on
from course_lib.workloads.model import digest
from course_lib.workloads.torch import accuracy, build, loss_of, weights_of


def worker(task: Task) -> dict[str, Any]:
    """Compute the gradients of this replica's share of each batch; worker:0 also applies the mean
    of all.
    """
    spec, workload, device = task.spec, workloads.load(task.spec), use(task.device)
    # to wait for each other: no parameter and no gradient travels through it
    dist.init_process_group("gloo", timeout=TIMEOUT)
    central = build(workload, spec.seed)
    move(central, shared(task, "parameters", workload.parameters), fill=task.index == 0)
    # in each: the loss, then all gradients
    slots = shared(task, "slots", spec.workers * (1 + workload.parameters)).view(spec.workers, -1)
    meet("all workers to map the shared memory")
    if task.index == 0:  # all have mapped the files, and need their names no longer
        for name in ("parameters", "slots"):
            (meetings(task.run_dir) / name).unlink()
    model = central if device.type == "cpu" else build(workload, spec.seed).to(device)
    loss = _loop(task, workload, central, slots, model, device)
    seen = {"digest": digest(weights_of(central))}
    if task.index:
        return seen
    fetch(model, central)
    return seen | {
        "final_loss": loss,
        "test_accuracy": accuracy(model, workload, device),
        "parameters": workload.parameters,
        "variables_on": variables_on(central),  # there is one copy, so one task reports it
    }


def shared(task: Task, name: str, length: int) -> torch.Tensor:
    """A float32 tensor of shape (length,) in memory that all tasks of this run have in common: the
    pages of a file that each of them maps.
    """
    folder = meetings(task.run_dir)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return torch.from_file(str(folder / name), shared=True, size=length)


def move(model: Any, memory: torch.Tensor, fill: bool) -> None:
    """Let the parameters of a model lie in `memory`, one behind the other; `fill` it with their
    values, or take those that are there.
    """
    parts = memory.split([parameter.numel() for parameter in model.parameters()])
    for parameter, part in zip(model.parameters(), parts, strict=True):
        if fill:
            part.copy_(parameter.detach().flatten())
        parameter.data = part.view_as(parameter)


def fetch(model: Any, central: Any) -> None:
    """Bring the parameters to a replica's device.

    A replica on the host works with those in shared memory themselves.
    """
    if model is not central:
        model.load_state_dict(central.state_dict())


def meet(what: str) -> None:
    """Wait until all workers are here.

    Raises `LockstepError`, which says `what` it waited for, after 60 s or when one of them is gone.
    """
    try:
        dist.barrier()
    except RuntimeError as error:
        raise LockstepError(f"waited for {what}: {error}") from error


def _loop(
    task: Task,
    workload: workloads.Workload,
    central: Any,
    slots: torch.Tensor,
    model: Any,
    device: Any,
) -> float:
    """Run all steps and write them into the trace; the last loss, which only worker:0 knows."""
    spec, rate = task.spec, task.spec.learning_rate or workload.learning_rate
    # seconds that recent steps computed; the least of them, as a busy machine only ever adds
    busy = deque([0.0], maxlen=5)
    loss = float("nan")
    for n in range(spec.steps):
        with task.phase("read", n):
            indices = workload.batch(n, spec.seed, spec.batch, task.index, spec.workers)
            images = torch.from_numpy(workload.x_train[indices]).to(device)
            labels = torch.from_numpy(workload.y_train[indices]).to(device)
            fetch(model, central)
        start = clock()
        task.pace(min(busy))
        begin = clock()
        share = loss_of(model(images), labels)
        gradients = torch.autograd.grad(share, list(model.parameters()))
        computed = now(device)
        busy.append(computed - begin)
        task.record("compute", n, start, computed)
        slots[task.index].copy_(
            torch.cat([share.detach().view(1), *(gradient.flatten() for gradient in gradients)])
        )
        handed = clock()
        meet("the gradients of all workers")
        if task.index == 0:
            mean = slots.mean(0)
            task.record("reduce", n, computed, clock())
            with task.phase("apply", n):
                loss, where = apply(central, mean, rate)
            task.update(n, "all", where, read=n, written=n + 1, gradients=spec.workers)
            task.metric("loss", loss, n, (n + 1) * spec.batch)
        meet("the update by worker:0")
        if task.index:
            task.record("reduce", n, computed, handed)
            task.record("wait", n, handed, clock())
        else:  # nothing changes until this worker, too, has handed in its next gradients
            evaluate(task, n, (n + 1) * spec.batch, lambda: accuracy(central, workload))
    return loss


def apply(central: Any, mean: torch.Tensor, rate: float) -> tuple[float, str]:
    """parameter -= rate * gradient, in the memory that all replicas read; the mean loss, and the
    device that did it.
    """
    loss, *gradients = mean.split([1, *(parameter.numel() for parameter in central.parameters())])
    with torch.no_grad():
        for parameter, gradient in zip(central.parameters(), gradients, strict=True):
            parameter.sub_(gradient.view_as(parameter), alpha=rate)
    return loss.item(), str(parameter.device)
