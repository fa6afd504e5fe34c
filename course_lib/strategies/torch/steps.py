"""What the strategies in PyTorch share: the recorder of a training step, and the small functions
that every page needs: devices, gradient descent, and tensors of which a process holds a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.steps import TrainingStep, outcome
from course_lib.workloads.torch import accuracy, build, weights_of

TIMEOUT = timedelta(seconds=60)
"""For how long a worker waits for another that neither answers nor is known to be gone."""


def join(task: Task) -> None:
    """Meet the other workers, at MASTER_ADDR and MASTER_PORT, which worker 0 serves."""
    dist.init_process_group("nccl" if task.backend == "nccl" else "gloo", timeout=TIMEOUT)


def use(name: str) -> Any:
    """The `torch.device` of a task's `device` (`cpu`, `gpu:1`), which becomes the current one."""
    kind, _, index = name.partition(":")
    if kind != "gpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(index))
    torch.cuda.set_device(device)
    return device


def model_of(task: Task) -> torch.nn.Sequential:
    """The model of the task's run, on the task's device, with the weights that every run of its
    seed starts from.
    """
    return build(workloads.load(task.spec), task.spec.seed).to(use(task.device))


def descend(model: torch.nn.Module, rate: float) -> None:
    """parameter -= rate * gradient, for what this process holds of each parameter."""
    with torch.no_grad():
        for parameter in model.parameters():
            local(parameter).sub_(local(parameter.grad), alpha=rate)
            parameter.grad = None


def local(tensor: Any) -> Any:
    """What this process holds of a tensor: a shard of a DTensor, all of any other."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def variables_on(model: torch.nn.Module) -> dict[str, int]:
    """The bytes of a model's parameters on each device of this process."""
    found: Counter[str] = Counter()
    for mine in map(local, model.parameters()):
        found[str(mine.device)] += mine.numel() * mine.element_size()
    return dict(found)


class TorchStep(TrainingStep):
    """A training step of this task's `model`.

    `holds`: what of the variables the task updates, `all` or its shard or stage; `device`: where it
    computes, if not where the model is; `measure`: how to find the test accuracy, if the model is
    not the whole of it.
    """

    def __init__(
        self,
        task: Task,
        model: torch.nn.Module,
        holds: str = "all",
        device: Any = None,
        measure: Callable[[], float] | None = None,
    ) -> None:
        self.model, self.measure = model, measure
        home = next(model.parameters()).device
        self.device = device or home
        super().__init__(task, [(holds, str(home))])

    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        images, labels = self.workload.x_train[indices], self.workload.y_train[indices]
        return torch.from_numpy(images).to(self.device), torch.from_numpy(labels).to(self.device)

    def accuracy(self) -> float:
        if self.measure:
            return self.measure()
        return accuracy(self.model, self.workload, next(self.model.parameters()).device)

    def now(self) -> float:
        """The time, once the device has done all that it was given: a GPU works behind the
        program's back.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return clock()

    def result(self) -> dict[str, Any]:
        """What the strategy returns (see `outcome`); the digest is that of the whole model.

        Where each task holds a shard, all tasks must call it together.
        """
        right = self.accuracy()
        return outcome(self.workload, self.weights(), self.loss, right, variables_on(self.model))

    def weights(self) -> list[np.ndarray]:
        """The model's weights, put together from all tasks where each holds a shard."""
        return weights_of(torch.nn.ParameterList(whole(self.model)))


def whole(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The parameters of a model, each as a whole."""
    for parameter in model.parameters():
        yield (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach()
