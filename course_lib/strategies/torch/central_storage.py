"""central_storage: one copy of the parameters, in the host's memory, for all the devices of one machine.

Every replica is a process that computes the gradients of its share of the batch. The parameters lie in memory that all of them have mapped, so
nobody sends them: a replica reads them where they are (on a GPU it copies them there first, in each step). The gradients come back through shared memory
too, a slot for each replica. When all slots are full, one process, worker:0, forms the mean and applies the update; the others wait, and find
new parameters when they go on:

    worker:0    compute | fill my slot | wait for all | mean, parameters -= rate * mean | say so
    worker:k    compute | fill my slot | wait for worker:0 .............................

What it saves is memory: one copy of the parameters, and no copies to keep equal. What it costs is time: one process adds up all gradients, so its
work grows with the replicas, where a ring of mirrored copies has them share it.
Slots rather than one sum that all add to: that sum would depend on who comes first, as float32 additions round.
Source: tf.distribute.experimental.CentralStorageStrategy, the strategy's name and idea; PyTorch has the parts (`torch.from_file`) and no strategy.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist

from course_lib import workloads
from course_lib.cluster.task import Task, clock, meetings
from course_lib.strategies.torch.devices import now, use
from course_lib.strategies.torch.multi_worker_mirrored import TIMEOUT
from course_lib.workloads.model import digest
from course_lib.workloads.torch import accuracy, build, loss_of, weights_of


def worker(task: Task) -> dict[str, Any]:
    """Compute gradients of this replica's share of each batch; worker:0 also applies the update of all. Returns the task's result."""
    device, spec, workload = use(task.device), task.spec, workloads.load(task.spec)
    dist.init_process_group("gloo", timeout=TIMEOUT)  # to wait for each other: none of the model travels through it
    model = build(workload, spec.seed)
    central = place(model, shared(task, "parameters", workload.parameters), fill=task.index == 0)
    slots = shared(task, "gradients", spec.workers * (workload.parameters + 1)).view(spec.workers, -1)  # the loss goes along with the gradients
    meet()
    if task.index == 0:
        meetings(task.run_dir).joinpath("parameters").unlink()  # the memory stays until the last process that has it is gone
        meetings(task.run_dir).joinpath("gradients").unlink()
    if device.type != "cpu":
        model = build(workload, spec.seed).to(device)
    loss = _loop(task, workload, model, central, slots, device)
    fetch(model, central)
    result = {"test_accuracy": accuracy(model, workload, device), "digest": digest(weights_of(model)), "parameters": workload.parameters}
    mine = {str(central[0].device): 4 * workload.parameters} if task.index == 0 else {}  # one copy, so one task that reports it
    return result | {"variables_on": mine, "final_loss": loss}


def shared(task: Task, name: str, length: int) -> torch.Tensor:
    """A float32 tensor of shape (length,) in memory that all tasks of the run map: the pages of one file that soon has no name."""
    folder = meetings(task.run_dir)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return torch.from_file(str(folder / name), shared=True, size=length)


def place(model: torch.nn.Module, memory: torch.Tensor, fill: bool) -> list[torch.Tensor]:
    """Let the parameters of `model` lie in `memory`, one after the other, and `fill` it with their values; those parts of it."""
    parts = memory.split([parameter.numel() for parameter in model.parameters()])
    for parameter, part in zip(model.parameters(), parts, strict=True):
        if fill:
            part.copy_(parameter.detach().flatten())
        parameter.data = part.view_as(parameter)
    return [parameter.data for parameter in model.parameters()]


def fetch(model: torch.nn.Module, central: list[torch.Tensor]) -> None:
    """Copy the parameters to a replica that is not on the host. On the host they are the replica's own, and there is nothing to do."""
    for parameter, part in zip(model.parameters(), central, strict=True):
        if parameter.data_ptr() != part.data_ptr():
            parameter.data.copy_(part)


def meet() -> None:
    """Wait until every worker is here, 60 s at most; whoever does not come is named."""
    dist.monitored_barrier(timeout=TIMEOUT)


def _loop(task: Task, workload: workloads.Workload, model: Any, central: list[torch.Tensor], slots: torch.Tensor, device: Any) -> float:
    """Run all steps and write them into the trace; the last loss."""
    spec, mine = task.spec, slots[task.index]
    rate = spec.learning_rate or workload.learning_rate
    busy = deque([0.0], maxlen=5)  # seconds that recent steps computed; the least of them, as a busy machine only ever adds
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
        torch.cat([share.detach().view(1), *(g.flatten() for g in gradients)], out=mine) if device.type == "cpu" else mine.copy_(
            torch.cat([share.detach().view(1), *(g.flatten() for g in gradients)])
        )
        handed = clock()
        task.record("compute", n, start, computed)
        meet()  # all slots are full
        if task.index == 0:
            mean = slots.mean(0)
            reduced = clock()
            loss, where = apply(central, mean, rate), str(central[0].device)
            task.record("reduce", n, computed, reduced)
            task.record("apply", n, reduced, clock())
            task.update(n, "all", where, read=n, written=n + 1, gradients=spec.workers)
        meet()  # the parameters are new
        if task.index:
            task.record("reduce", n, computed, handed)
            task.record("wait", n, handed, clock())
        loss = slots[:, 0].mean().item()
        task.metric("loss", loss, n, (n + 1) * spec.batch)
    return loss
