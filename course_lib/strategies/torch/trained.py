"""A trained PyTorch model, from the weights that a run left."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from course_lib.strategies.torch.models import build
from course_lib.workloads.workload import Workload


def model(workload: Workload, seed: int, weights: Mapping[str, np.ndarray]) -> Any:
    """The workload's `torch.nn.Module` with these weights and buffers, on the CPU, in evaluation
    mode.
    """
    with torch.random.fork_rng(devices=[]):  # the builder is seeded, whoever calls this is not
        module = build(workload, seed).eval()
    module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return module
