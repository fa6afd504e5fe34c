"""one_device: one process computes the gradients of the whole batch and applies them, the yardstick
that every other strategy is held against.
"""

from __future__ import annotations

from typing import Any

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.torch.devices import use
from course_lib.strategies.torch.training import Replica, train
from course_lib.workloads.torch import build


def worker(task: Task) -> dict[str, Any]:
    """Train the whole batch on this task's device."""
    workload = workloads.load(task.spec)
    replica = Replica(build(workload, task.spec.seed)).to(use(task.device))
    return train(task, workload, replica, replica)
