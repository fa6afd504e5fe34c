"""mirrored: a copy of the parameters on every device of one machine, kept equal by an all-reduce.

It is multi_worker_mirrored with all devices in one machine, and in PyTorch it is the same program
too: a process for each device, and DistributedDataParallel between them. What the one machine
brings is a short way for the gradients: from GPU to GPU over NVLink or PCIe with NCCL, through the
loopback interface with gloo on CPUs.

TensorFlow keeps all replicas in one process. PyTorch has that too, DataParallel, and advises
against it: the threads of a Python process get in each other's way (the global interpreter lock),
and in each step one device copies its parameters to all others. Source: PyTorch documentation,
"CUDA semantics: Use nn.parallel.DistributedDataParallel instead of multiprocessing or
nn.DataParallel".
"""

from typing import Any

from course_lib.cluster.task import Task
from course_lib.strategies.torch import multi_worker_mirrored


def worker(task: Task) -> dict[str, Any]:
    """Train this device's share of each batch."""
    return multi_worker_mirrored.worker(task)
