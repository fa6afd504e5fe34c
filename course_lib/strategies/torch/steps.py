"""What the strategies in PyTorch share: the workload's model, with weights that start as given; the
small functions that every page needs, such as gradient descent; the recorder of a training step.

Keras and PyTorch lay the same numbers out differently: a dense kernel (inputs, outputs) is
(outputs, inputs) here, a convolution's (height, width, inputs, outputs) is (outputs, inputs,
height, width), and images have their channels first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.steps import TrainingStep
from course_lib.workloads.model import Conv, Dense, Flatten, Layer, Shape, Workload

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


# number of dimensions -> which goes where
_TO_TORCH: dict[int, tuple[int, ...]] = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
_FROM_TORCH: dict[int, tuple[int, ...]] = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}


def build(workload: Workload, seed: int) -> nn.Sequential:
    """The model, which turns images (batch, *input shape) into logits (batch, classes)."""
    modules: list[nn.Module] = []
    shape = workload.input_shape
    if len(shape) == 3:
        modules.append(Transpose(0, 3, 1, 2))
    for layer in workload.layers:
        modules += _modules(layer, shape)
        shape = layer.output(shape)
    model = nn.Sequential(*modules)
    with torch.no_grad():
        for parameter, weight in zip(
            model.parameters(), workload.initial_weights(seed), strict=True
        ):
            parameter.copy_(torch.from_numpy(weight).permute(_TO_TORCH[weight.ndim]))
    return model


def _modules(layer: Layer, inputs: Shape) -> Iterator[nn.Module]:
    match layer:
        case Flatten():
            yield Transpose(0, 2, 3, 1)  # so that the row of numbers is the one that Keras makes
            yield nn.Flatten()
        case Dense(units):
            yield nn.Linear(inputs[0], units)
        case Conv(filters, size):
            yield nn.Conv2d(inputs[2], filters, size)
    if not isinstance(layer, Flatten) and layer.relu:
        yield nn.ReLU()


class Transpose(nn.Module):
    """Reorders the dimensions of its input."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, images: Any) -> Any:
        return images.permute(self.order)


def weights_of(model: nn.Module) -> list[np.ndarray]:
    """The weights in the layout that all frameworks share."""
    values = (parameter.detach().cpu() for parameter in model.parameters())
    return [value.permute(_FROM_TORCH[value.ndim]).numpy() for value in values]


loss_of: Callable[..., Any] = nn.functional.cross_entropy
"""Mean softmax cross entropy of logits (batch, classes) and labels (batch,)."""


def accuracy(model: nn.Module, workload: Workload, device: Any = "cpu") -> float:
    """The share of test images that the model gets right."""
    with torch.no_grad():
        classes = model(torch.from_numpy(workload.x_test).to(device)).argmax(-1).cpu().numpy()
    return float(np.mean(classes == workload.y_test))


def model_of(task: Task) -> nn.Sequential:
    """The model of the task's run, on the task's device, with the weights that every run of its
    seed starts from.
    """
    return build(workloads.load(task.spec), task.spec.seed).to(use(task.device))


def descend(model: nn.Module, rate: float) -> None:
    """parameter -= rate * gradient, for what this process holds of each parameter."""
    with torch.no_grad():
        for parameter in model.parameters():
            local(parameter).sub_(local(parameter.grad), alpha=rate)
            parameter.grad = None


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All tensors laid end to end as one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def whole(tensor: Any) -> Any:
    """A tensor put together from all tasks, if it is a DTensor, of which each holds a shard."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def local(tensor: Any) -> Any:
    """What this process holds of a tensor: a shard of a DTensor, all of any other."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# --- the recorder ---


class TorchStep(TrainingStep):
    """A training step of this task's `model`.

    `holds`: what of the variables the task updates, `all` or its shard or stage; `device`: where it
    computes, if not where the model is; `measure`: how to find the test accuracy, if the model is
    not the whole of it.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
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

    def weights(self) -> list[np.ndarray]:
        """The model's weights, put together from all tasks where each holds a shard."""
        return weights_of(nn.ParameterList(map(whole, self.model.parameters())))

    def variables_on(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for mine in map(local, self.model.parameters()):
            found[str(mine.device)] += mine.numel() * mine.element_size()
        return dict(found)
