"""What this machine offers, and the plan of a run on it: each choice with its reason in a sentence."""

from __future__ import annotations

import ctypes.util
import functools
import importlib.metadata
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from course_lib.errors import SpecError
from course_lib.spec import RunSpec

T = TypeVar("T")
GB, MB = 2**30, 2**20
Backend = Literal["nccl", "ring", "gloo", "none"]
PACKAGES = (
    "lockstep-course",
    "tensorflow",
    "keras",
    "torch",
    "numpy",
    "scikit-learn",
    "jupyterlab",
    "ipywidgets",
    "anywidget",
    "plotly",
)

# (once, each): MB that a cluster takes once, for its zygote or for the library pages that its tasks share, and again for each task.
# Measured on Linux x86-64 with /proc/<pid>/smaps_rollup: once is the zygote's Rss (spawn: file pages, Rss - Anonymous), each is Private_Clean +
# Private_Dirty of 2 and of 4 tasks after ten steps of an MLP on digits (MultiWorkerMirroredStrategy with RING; DDP on gloo). Seen: tensorflow
# fork 621 and 96, spawn 388 and 295; torch fork 303 and 153, spawn 115 and 271; numpy with scikit-learn 119. Rounded up.
_MEMORY_MB = {
    ("tensorflow", "fork"): (650, 140),
    ("tensorflow", "spawn"): (400, 350),
    ("torch", "fork"): (400, 180),
    ("torch", "spawn"): (150, 320),
    ("python", "fork"): (150, 40),
    ("python", "spawn"): (50, 120),
}
# Copies of the float32 parameters that a task holds at its worst moment: weights, gradients, reduce buffers, temporaries. Same runs, the MLP grown
# to 3, 10, 25 and 50 million parameters, from the peak (VmHWM): tensorflow 6.4 to 8.4 (the first step merges tensors for RING), torch 3.1 to 4.1.
_COPIES = {"tensorflow": 8, "torch": 4, "python": 5}


@dataclass(frozen=True)
class Capability:
    """Whether something can be had here, `why` (or why not), and the `cure` where it cannot ("" where none is needed)."""

    ok: bool
    why: str
    cure: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may see; `memory` in bytes."""

    name: str
    memory: int


@dataclass(frozen=True)
class Machine:
    """What this machine lets us use, inside a container too. Memory in bytes: `memory` is free for us now, `memory_total` the most there can be."""

    system: str
    python: str
    cpu_name: str
    cores: int
    cores_total: int
    memory: int
    memory_total: int
    memory_why: str
    gpus: tuple[Gpu, ...]
    gpu_frameworks: tuple[str, ...]
    tpu: bool
    fork: Capability
    private_network: Capability

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Reason:
    """One decision of a plan: `what` was decided, the `choice`, and `why`, in one sentence for a learner."""

    what: str
    choice: str
    why: str


@dataclass(frozen=True)
class Plan:
    """Where and how the tasks of a run start. `devices`: task -> `cpu` or `gpu:0`; `threads`: of each task; `fits`: tasks that memory allows."""

    start_method: Literal["fork", "spawn"]
    device: Literal["cpu", "gpu"]
    devices: dict[str, str]
    threads: int
    backend: Backend
    reality: Literal["measured", "emulated"]
    fits: int
    network: Literal["loopback"]
    reasons: tuple[Reason, ...]


def probe() -> Machine:
    """This machine. Slow facts are found once a process; free memory and the LOCKSTEP_ variables are read anew each time. Never raises."""
    machine = _facts()
    memory, total, why = _memory()
    network = machine.private_network
    if os.environ.get("LOCKSTEP_NETWORK") == "loopback":
        network = Capability(False, "LOCKSTEP_NETWORK=loopback asks for plain loopback", "Unset LOCKSTEP_NETWORK.")
    return replace(machine, memory=memory, memory_total=total, memory_why=why, fork=_fork(machine.system), private_network=network)


def plan(spec: RunSpec, machine: Machine, warm: bool = False) -> Plan:
    """Decide devices, threads, collective backend and start method of a run. Pure: it looks at nothing but its arguments.

    `warm` says that the zygote of this framework runs already, so that its memory is not counted twice. Raises `SpecError` if the tasks need more
    memory than is free.
    """
    start: Literal["fork", "spawn"] = "fork" if machine.fork.ok else "spawn"
    fits, memory = _fit(spec, machine, start, warm)
    gpus, device = _devices(spec, machine)
    backend, reduction = _backend(spec, gpus)
    return Plan(
        start_method=start,
        device="gpu" if gpus else "cpu",
        devices={task: f"gpu:{i}" if task == f"worker:{i}" else "cpu" for task, i in zip(spec.tasks, _worker_numbers(spec, gpus), strict=True)},
        threads=max(1, machine.cores // spec.workers),
        backend=backend,
        reality="emulated" if spec.device_ms > 0 or spec.slow else "measured",
        fits=fits,
        network="loopback",
        reasons=(_cores_reason(spec, machine), device, reduction, _start_reason(spec, machine), memory, _NETWORK, _reality_reason(spec)),
    )
