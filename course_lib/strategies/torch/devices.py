"""Which of the machine's devices a task computes on, and how to wait for it."""

from __future__ import annotations

from typing import Any

import torch

from course_lib.cluster.task import clock


def use(name: str) -> Any:
    """The `torch.device` of a task's `device` (`cpu`, `gpu:1`), which becomes the current one."""
    kind, _, index = name.partition(":")
    if kind != "gpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(index))
    torch.cuda.set_device(device)
    return device


def now(device: Any) -> float:
    """The time, once `device` has done all it was given: a GPU works behind the program's back."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()
