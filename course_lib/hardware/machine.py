"""Machine: what can be used here. `probe` finds it; `machine_rows` makes a table of it."""

import functools
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from course_lib.hardware import capabilities, limits
from course_lib.hardware.capabilities import Capability
from course_lib.hardware.limits import Gpu, gigabytes, safely

PACKAGES = ["lockstep-course", "tensorflow", "keras", "torch", "numpy", "scikit-learn"]
PACKAGES += ["jupyterlab", "ipywidgets", "anywidget", "plotly"]


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
        asked = "LOCKSTEP_NETWORK=loopback asks for plain loopback"
        network = Capability(False, asked, "Unset LOCKSTEP_NETWORK.")
    return replace(
        machine,
        memory=memory,
        memory_total=total,
        memory_why=why,
        fork=capabilities.warm_fork(machine.system),
        private_network=network,
    )


@functools.cache
def _facts() -> Machine:
    """All that does not change while this process lives; free memory is filled in later."""
    system = _system()
    trial = capabilities.begin_trial(system)  # goes on while we look at the rest
    no_gpus: tuple[Gpu, ...] = ()
    gpus = safely(limits.find_gpus, no_gpus)
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
        cuda_frameworks=limits.cuda_frameworks() if gpus else (),
        tpu=safely(limits.has_tpu, False),
        fork=capabilities.warm_fork(system),
        private_network=capabilities.end_trial(system, trial),
    )


def _system() -> str:
    if platform.system() == "Linux" and "microsoft" in platform.release().lower():
        return "WSL2"
    return {"Darwin": "macOS"}.get(platform.system(), platform.system())


def _cpu_name() -> str:
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, timeout=2).stdout.strip()
    lines = limits.read(Path("/proc/cpuinfo")).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


def machine_rows(machine: Machine) -> list[tuple[str, str, str]]:
    """The machine as a table: what, how much of it, and what that means for a learner."""
    system = f"{machine.system}, Python {machine.python}"
    memory = "not known"
    if machine.memory_total:
        memory = f"{gigabytes(machine.memory)} free of {gigabytes(machine.memory_total)}"
    tpu = "TPUStrategy can be used." if machine.tpu else "Only TPUStrategy needs one."
    abilities = {
        "warm fork": machine.fork,
        "private network": machine.private_network,
        **capabilities.network_parts(machine.private_network),
    }
    return [
        ("system", system, "Every task is a process of its own on it."),
        ("cores", *_cores(machine)),
        ("memory", memory, machine.memory_why),
        ("GPU", *_gpus(machine)),
        ("TPU", "yes" if machine.tpu else "none", tpu),
        *(
            (what, "yes" if can.ok else "no", sentence(f"{can.why}. {can.cure}"))
            for what, can in abilities.items()
        ),
    ]


def _cores(machine: Machine) -> tuple[str, str]:
    cores, total = machine.cores, machine.cores_total
    name = f"{cores}{f' of {total}' if cores < total else ''}, {machine.cpu_name}"
    if cores >= 4:
        return name, f"Up to {cores} workers compute at the same time."
    turns = "no speed-up from compute, unless device_ms emulates a device for each"
    return name, f"From {cores + 1} workers on they take turns: {turns}."


def _gpus(machine: Machine) -> tuple[str, str]:
    if not (here := len(machine.gpus)):
        return "none", "Not needed: only NCCL asks for GPUs, for two of them."
    names = ", ".join(f"{gpu.name} ({gigabytes(gpu.memory)})" for gpu in machine.gpus)
    none = "none of the installed frameworks, whose builds are without CUDA"
    nccl = "NCCL needs two." if here == 1 else f"NCCL can join up to {here} workers."
    return names, f"Used by {', '.join(machine.cuda_frameworks) or none}. {nccl}"


def versions() -> dict[str, str]:
    """Package -> installed version or "not installed", without importing any of them."""
    return {name: limits.version(name) or "not installed" for name in PACKAGES}


def sentence(text: str) -> str:
    """The text stripped, with a capital first letter."""
    return text.strip()[:1].upper() + text.strip()[1:]
