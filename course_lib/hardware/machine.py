"""Machine: what can be used here. `probe` finds it, and whether this system lets us fork warm
processes and make a private network; `machine_rows` makes a table of it.
"""

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.hardware import limits
from course_lib.hardware.limits import Gpu, gigabytes, read, safely
from course_lib.network import namespaces
from course_lib.record.rundir import Reason

LINUX = ("Linux", "WSL2")
PACKAGES = ["lockstep-course", "tensorflow", "keras", "torch", "numpy", "scikit-learn"]
PACKAGES += ["jupyterlab", "ipywidgets", "anywidget", "plotly", "ray"]


@dataclass(frozen=True)
class Capability:
    """An ability: `ok` if something can be done here, `why` (or why not), and the `cure` if it
    cannot ("" if there is nothing to cure). `parts`: the parts of the kernel that a private network
    can use.
    """

    ok: bool
    why: str
    cure: str = ""
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The parts of this machine that we may use, inside a container too; or of a cluster, those
    that it has given a run.

    `cores` are usable at the same time, of `cores_total`. In bytes: `memory` is free for us now,
    `memory_total` the most there can be (0: cannot be read). `cuda_frameworks` are those whose
    installed build can drive the `gpus`. `others`: people who use this machine too, and could reach
    what runs open, as there is no private network; not looked for if loopback was asked for.

    Of a cluster: the names of the `nodes` that the tasks are on, which share no memory, and whose
    links are as they are; the `devices` of tasks that have one reserved; and what of the plan is
    `settled` by that.
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
    others: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    settled: tuple[Reason, ...] = ()


def probe() -> Machine:
    """This machine. Slow facts are found once a process; free memory and the LOCKSTEP_ variables
    are read anew each time. Never raises.
    """
    facts = _facts()
    memory, total, why = limits.usable_memory()
    if os.environ.get("LOCKSTEP_NETWORK") == "loopback":
        asked = "LOCKSTEP_NETWORK=loopback asks for plain loopback"
        facts = facts | {"private_network": Capability(False, asked, "Unset LOCKSTEP_NETWORK.")}
    elif not facts["private_network"].ok:
        nobody: tuple[str, ...] = ()
        facts = facts | {"others": safely(limits.other_people, nobody)}
    fork = warm_fork(facts["system"])
    return Machine(**facts, memory=memory, memory_total=total, memory_why=why, fork=fork)


@functools.cache
def _facts() -> dict[str, Any]:
    """The fields of `Machine` that do not change while this process lives."""
    system = _system()
    no_gpus: tuple[Gpu, ...] = ()
    with ThreadPoolExecutor(1) as beside:
        trial = beside.submit(private_network, system)  # goes on while we look at the rest
        gpus = safely(limits.find_gpus, no_gpus)
        facts: dict[str, Any] = {"system": system, "python": platform.python_version()}
        facts |= {"cores": limits.usable_cores(), "cores_total": os.cpu_count() or 1}
        facts |= {"cpu_name": safely(_cpu_name, "") or platform.machine(), "gpus": gpus}
        facts |= {"cuda_frameworks": limits.cuda_frameworks() if gpus else ()}
        return facts | {"tpu": safely(limits.has_tpu, False), "private_network": trial.result()}


def _system() -> str:
    if platform.system() == "Linux" and "microsoft" in platform.release().lower():
        return "WSL2"
    return {"Darwin": "macOS"}.get(platform.system(), platform.system())


def _cpu_name() -> str:
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, timeout=2).stdout.strip()
    lines = read(Path("/proc/cpuinfo")).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


# --- what this system allows ---


def warm_fork(system: str) -> Capability:
    """Return whether tasks can be forked from a process that has imported the framework."""
    if system not in LINUX:
        why = f"the libraries of {system} start threads, and then a process cannot be forked safely"
        return Capability(False, why, "Tasks start as fresh processes; Linux or WSL2 forks them.")
    if os.environ.get("LOCKSTEP_START") == "spawn":
        why = "LOCKSTEP_START=spawn asks for fresh processes"
        return Capability(False, why, "Unset LOCKSTEP_START.")
    return Capability(True, "tasks are copied from one process that has imported the framework")


_TRIAL = f"import runpy; runpy.run_path({namespaces.__file__!r}, run_name='__main__')"


def private_network(system: str, seconds: float = 10.0) -> Capability:
    """Return whether a run can have a network of its own. A process tries it, for at most
    `seconds`: a busy machine may need many. No process is left behind.
    """
    if system not in LINUX:
        why = f"there are no network namespaces on {system}"
        return Capability(False, why, "Runs use loopback; Linux or WSL2 has them.")
    command, no = [sys.executable, "-I", "-S", "-c", _TRIAL], subprocess.DEVNULL
    streams: dict[str, Any] = {"stdin": no, "stdout": subprocess.PIPE, "stderr": no}
    try:
        answer = subprocess.run(command, text=True, timeout=seconds, **streams).stdout.strip()
    except Exception:  # whatever it was, we cannot try
        return refused(f"no process could try it within {seconds:g} s")
    outcome, _, parts = answer.partition("\n")
    if outcome != "ok":
        return refused(outcome or "the trial died")
    why = "a run has a network of its own, which nobody else can reach or see"
    return Capability(True, why, parts=tuple(parts.split()))


def refused(answer: str, root: Path = Path("/")) -> Capability:
    """Why there is no private network: the kernel's `answer`, or the setting under `root` that is
    behind it.
    """
    for setting, bad, good, who in (
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0", "AppArmor restricts them"),
        ("kernel.unprivileged_userns_clone", "0", "1", "this kernel keeps them for root"),
        ("user.max_user_namespaces", "0", "10000", "there may be none"),
    ):
        if read(root / "proc/sys" / setting.replace(".", "/")) == bad:
            why = f"user namespaces are not allowed here: {who} ({setting}={bad})"
            cure = f"Runs use loopback; to allow it: sudo sysctl -w {setting}={good}"
            return Capability(False, why, cure)
    inside = (root / ".dockerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ
    who = "this container's security profile" if inside else "this system"
    why = f"{who} does not let us make a network namespace ({answer})"
    return Capability(False, why, "Runs use loopback.")


_OFFERS = {  # the part of the kernel that it needs besides interfaces; what it means; without it
    "hosts": ("", "each host is a switch, each task has an address", "Hosts share one address."),
    "rate": ("tbf", "the kernel holds links to their rate", "Only our own exchange keeps to it."),
    "delay": ("netem", "the kernel delays what a link carries", "Only our own exchange does."),
    "loss": ("nftables", "the kernel drops packets where a link is to", "Leave loss out."),
    "meter": ("", "the kernel counts what each task and host sends", "Bytes are not counted."),
}


def network_parts(can: Capability) -> dict[str, Capability]:
    """List what a run's own network can have here, each with the reason: hosts, the rate of their
    links, their delay and loss, and the meter. `can`: whether there is a private network.
    """
    offers = {}
    for what, (part, why, cure) in _OFFERS.items():
        needs = [*namespaces.LINKS, part] if part else namespaces.LINKS
        missing = " or ".join(each for each in needs if each not in can.parts)
        lacks = f"this kernel has no {missing}" if can.ok else "there is no private network"
        offers[what] = Capability(False, lacks, cure) if missing else Capability(True, why)
    return offers


# --- as a table ---


def machine_rows(machine: Machine) -> list[tuple[str, str, str]]:
    """The machine as a table: what, how much of it, and what that means for a learner."""
    system = f"{machine.system}, Python {machine.python}"
    memory = f"{gigabytes(machine.memory)} free of {gigabytes(machine.memory_total)}"
    tpu = "TPUStrategy can be used." if machine.tpu else "Only TPUStrategy needs one."
    abilities = {
        "warm fork": machine.fork,
        "private network": machine.private_network,
        **network_parts(machine.private_network),
    }
    return [
        ("system", system, "Every task is a process of its own on it."),
        ("cores", *_cores(machine)),
        ("memory", memory if machine.memory_total else "not known", machine.memory_why),
        ("GPU", *_gpus(machine)),
        ("TPU", "yes" if machine.tpu else "none", tpu),
    ] + [
        (what, "yes" if can.ok else "no", sentence(f"{can.why}. {can.cure}"))
        for what, can in abilities.items()
    ]


def _cores(machine: Machine) -> tuple[str, str]:
    name = f"{machine.cores} of {machine.cores_total}, {machine.cpu_name}"
    if machine.cores >= 4:
        return name, f"Up to {machine.cores} workers compute at the same time."
    turns = "no speed-up from compute, unless device_ms emulates a device for each"
    return name, f"From {machine.cores + 1} workers on they take turns: {turns}."


def _gpus(machine: Machine) -> tuple[str, str]:
    if not machine.gpus:
        return "none", "Not needed: only NCCL asks for GPUs, for two of them."
    names = ", ".join(f"{gpu.name} ({gigabytes(gpu.memory)})" for gpu in machine.gpus)
    none = "none of the installed frameworks, whose builds are without CUDA"
    used = f"Used by {', '.join(machine.cuda_frameworks) or none}."
    return names, f"{used} NCCL joins workers that have one each."


def versions() -> dict[str, str]:
    """Package -> installed version or "not installed", without importing any of them."""
    return {name: limits.version(name) or "not installed" for name in PACKAGES}


def sentence(text: str) -> str:
    """The text stripped, with a capital first letter."""
    return text.strip()[:1].upper() + text.strip()[1:]
