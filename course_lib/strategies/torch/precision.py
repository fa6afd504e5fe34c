"""Mixed precision in PyTorch: `torch.autocast` decides for each operation whether it computes in 16
bits. It casts the parameters that such an operation uses, so they themselves stay float32.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from course_lib.strategies.torch.vectors import numbers
from course_lib.workloads.trees import Tree, mapped

LOW: dict[str, Any] = {"bfloat16": torch.bfloat16, "float16": torch.float16}

Function = Callable[..., Any]


def mixed(precision: str, device: str) -> Callable[[Function], Function]:
    """A decorator: the function computes in this precision on this type of device."""
    if precision == "float32":
        return lambda function: function
    autocast: Callable[[Function], Function] = torch.autocast(device, LOW[precision])
    return autocast


def wide(tensor: Tree) -> Tree:
    """A tensor, or a structure of tensors, in float32 where they have fewer bits."""
    if not isinstance(tensor, torch.Tensor):
        return mapped(wide, tensor)
    return tensor.float() if tensor.dtype in LOW.values() else tensor


def zeros_in(gradients: Iterable[torch.Tensor]) -> float:
    """The share of the entries of these gradients that are exactly zero."""
    counts = [(each.numel(), int(each.count_nonzero())) for each in map(numbers, gradients)]
    return 1 - sum(found for _, found in counts) / sum(every for every, _ in counts)
