"""central_storage: one copy of the parameters, in the host's memory, for all devices of one
machine.

Every replica is a process that computes the gradients of its share of the batch. The parameters lie
in memory that all of them have mapped, so nobody sends them: a replica reads them where they are (a
GPU gets a copy of them first, in each step). The gradients come back through shared memory too, a
slot for each replica. When all slots are full, one process, worker:0, forms the mean and applies
the update; the others wait, and find new parameters when they go on:

    worker:0   compute | fill my slot | wait for all | mean | update the parameters | all go on
    worker:k   compute | fill my slot | wait for worker:0 ............................. |

It saves memory for parameters: S bytes once, and not in each of w replicas. The slots for gradients
still take w times S. It costs time: one process adds up all gradients, so its work grows with the
number of replicas, where mirrored copies share it. Why slots, and not one sum that everybody adds
to? Float32 additions round, so that sum would depend on who comes first. Source:
tf.distribute.experimental.CentralStorageStrategy has the name and the idea; PyTorch has no such
strategy, only the parts to build it from.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import vector_to_parameters

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.errors import LockstepError
from course_lib.strategies.torch import models
from course_lib.strategies.torch.models import build, bytes_of, flat, pair, shaped, trained
from course_lib.strategies.torch.steps import TIMEOUT, TorchStep, gradients_of
from course_lib.workloads.layers import digest


def worker(task: Task) -> dict[str, Any]:
    """Compute the gradients of this replica's share of each batch; worker:0 also applies the mean
    of all.
    """
    # to wait for each other: no parameter and no gradient travels through it
    dist.init_process_group("gloo", timeout=TIMEOUT)
    first = task.index == 0
    central, slots, scale = common(task)
    step = TorchStep(task, central)
    model = step.replica = central if step.device.type == "cpu" else models.model_of(task)
    step.parameters = trained(central) if first else []  # in the memory that all replicas read
    if first:  # what is shared is counted once
        step.census.note(exchange=slots.nbytes)
    else:
        step.census.note(parameters=bytes_of(model.parameters()) if model is not central else 0)
    while step.begin():
        if model is not central:  # a replica on the host uses the parameters where they are
            model.load_state_dict(central.state_dict())
        inputs, targets = step.read(task.index, task.spec.workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets, forward=lambda x, y: step.loss_of(model(x), y))
        with step.reducing():
            # (2 + parameters,)
            slots[task.index].copy_(flat([pair(loss), *gradients_of(step, trained(model))]))
            if first:
                meet("the gradients of all workers")
                loss, mean = slots.mean(0).tensor_split([2])  # (2,) and (parameters,)
        if first:
            with step.applying():
                means = shaped(mean, step.parameters)
                for parameter, gradient in zip(step.parameters, means, strict=True):
                    parameter.grad = gradient
                if step.unscale(loss):
                    step.optimizer.step()
            scale.fill_(step.scale.value)
            meet("the update by worker:0")
        else:
            with step.waiting():
                meet("the gradients of all workers")
                meet("the update by worker:0")
            step.scale.value = scale.item()  # of the loss, as worker:0 has set it
        step.done(loss if first else None)  # only worker:0 knows the mean loss
    return step.result() if first else {"digest": digest(step.weights())}


def common(task: Task) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Share between all tasks: the model, whose parameters are one vector, a slot for each task,
    and the loss scale. They lie in one file, which all tasks map into their memory.

    A slot is a row: sum and count of a replica's loss, then all its gradients.
    """
    central = build(workloads.load(task.spec), task.spec.seed)
    count = sum(parameter.numel() for parameter in trained(central))
    sizes = [count, task.spec.workers * (2 + count), 1]
    task.files.meetings.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = task.files.meetings / "central"
    memory = torch.from_file(str(path), shared=True, size=sum(sizes))  # float32, at first zeros
    parameters, slots, scale = memory.split(sizes)
    if task.index == 0:
        parameters.copy_(flat(trained(central)))
    vector_to_parameters(parameters, trained(central))  # they become views of it
    meet("all workers to map the shared memory")
    if task.index == 0:
        path.unlink()  # all have mapped the file, and need its name no longer
    return central, slots.view(task.spec.workers, -1), scale


def meet(what: str) -> None:
    """Wait until all workers are here.

    Raises `LockstepError`, which says `what` it waited for, after 60 s or when one of them is gone.
    """
    try:
        dist.barrier()
    except RuntimeError as error:
        raise LockstepError(f"waited for {what}: {error}") from error
