"""Machine: what there is to use here. `probe` finds it, `machine_rows` tells it."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from course_lib.hardware import accelerators, capabilities, limits
from course_lib.hardware.accelerators import Gpu
from course_lib.hardware.capabilities import Capability
from course_lib.hardware.limits import gigabytes, safely

PACKAGES = [
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
]


@dataclass(frozen=True)
class Machine:
    """What this machine lets us use, inside a container too.

    `cores` are usable at the same time, of `cores_total`. In bytes: `memory` is free for us now,
    `memory_total` the most there can be (0: cannot be read). `cuda_frameworks` are those whose
    installed build can drive the `gpus`.
    """

    system: str
    python: str
    cpu_name: str
    cores: int
    cores_total: int
    memory: int
    memory_total: int
    memory_why: str
    gpus: tuple[Gpu, ...]
    cuda_frameworks: tuple[str, ...]
    tpu: bool
    fork: Capability
    private_network: Capability

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)


def probe() -> Machine:
    """This machine. Slow facts are found once a process; free memory and the LOCKSTEP_ variables
    are read anew each time. Never raises.
    """
    machine = _facts()
    memory, total, why = limits.usable_memory()
    network = machine.private_network
    if os.environ.get("LOCKSTEP_NETWORK") == "loopback":
        network = Capability(
            False, "LOCKSTEP_NETWORK=loopback asks for plain loopback", "Unset LOCKSTEP_NETWORK."
        )
    fork = capabilities.warm_fork(machine.system)
    return replace(
        machine,
        memory=memory,
        memory_total=total,
        memory_why=why,
        fork=fork,
        private_network=network,
    )


@functools.cache
def _facts() -> Machine:
    """All that does not change while a kernel lives; free memory is left open."""
    system = _system()
    trial = capabilities.begin_trial(system)  # goes on while we look at the rest
    no_gpus: tuple[Gpu, ...] = ()
    gpus = safely(accelerators.find_gpus, no_gpus)
    return Machine(
        system=system,
        python=platform.python_version(),
        cpu_name=safely(_cpu_name, "") or platform.machine(),
        cores=limits.usable_cores(),
        cores_total=os.cpu_count() or 1,
        memory=0,
        memory_total=0,
        memory_why="",
        gpus=gpus,
        cuda_frameworks=accelerators.cuda_frameworks() if gpus else (),
        tpu=safely(accelerators.has_tpu, False),
        fork=capabilities.warm_fork(system),
        private_network=capabilities.end_trial(system, trial),
    )


def _system() -> str:
    wsl = "microsoft" in platform.release().lower()
    return {"Linux": "WSL2" if wsl else "Linux", "Darwin": "macOS"}.get(
        platform.system(), platform.system()
    )


def _cpu_name() -> str:
    if platform.system() == "Darwin":
        return subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=2
        ).stdout.strip()
    lines = limits.read(Path("/proc/cpuinfo")).splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )


def machine_rows(machine: Machine) -> list[tuple[str, str, str]]:
    """The machine as a table: what, how much of it, and what that means for a learner."""
    memory = (
        f"{gigabytes(machine.memory)} free of {gigabytes(machine.memory_total)}"
        if machine.memory_total
        else "not known"
    )
    rows = [
        (
            "system",
            f"{machine.system}, Python {machine.python}",
            "Every task is a process of its own on it.",
        ),
        _cores_row(machine),
        ("memory", memory, machine.memory_why),
        _gpu_row(machine),
        (
            "TPU",
            "yes" if machine.tpu else "none",
            "TPUStrategy can be used." if machine.tpu else "Only TPUStrategy needs one.",
        ),
    ]
    parts = capabilities.network_parts(machine.private_network)
    for what, can in {
        "warm fork": machine.fork,
        "private network": machine.private_network,
        **parts,
    }.items():
        rows.append((what, "yes" if can.ok else "no", sentence(f"{can.why}. {can.cure}")))
    return rows


def _cores_row(machine: Machine) -> tuple[str, str, str]:
    cores = (
        f"{machine.cores}"
        if machine.cores >= machine.cores_total
        else f"{machine.cores} of {machine.cores_total}"
    )
    if machine.cores >= 4:
        return (
            "cores",
            f"{cores}, {machine.cpu_name}",
            f"Up to {machine.cores} workers compute at the same time.",
        )
    turns = f"From {machine.cores + 1} workers on they take turns: no speed-up from compute, unless device_ms emulates a device for each."
    return "cores", f"{cores}, {machine.cpu_name}", turns


def _gpu_row(machine: Machine) -> tuple[str, str, str]:
    if not machine.gpus:
        return "GPU", "none", "Not needed: only NCCL asks for GPUs, for two of them."
    users = (
        ", ".join(machine.cuda_frameworks)
        or "none of the installed frameworks, whose builds are without CUDA"
    )
    nccl = (
        "NCCL needs two."
        if len(machine.gpus) == 1
        else f"NCCL can join up to {len(machine.gpus)} workers."
    )
    return (
        "GPU",
        ", ".join(f"{gpu.name} ({gigabytes(gpu.memory)})" for gpu in machine.gpus),
        f"Used by {users}. {nccl}",
    )


def versions() -> dict[str, str]:
    """Package -> installed version or "not installed", without importing any of them."""
    return {name: accelerators.version(name) or "not installed" for name in PACKAGES}


def sentence(text: str) -> str:
    """With a capital first letter and no space around."""
    return text.strip()[:1].upper() + text.strip()[1:]
