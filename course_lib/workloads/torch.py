"""A workload's model in PyTorch: modules that start from the given weights.

Keras and PyTorch lay the same numbers out differently: a dense kernel (inputs, outputs) is
(outputs, inputs) here, a convolution's (height, width, inputs, outputs) is (outputs, inputs,
height, width), and images have their channels first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from course_lib.workloads.model import Conv, Dense, Flatten, Layer, Shape, Workload

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
