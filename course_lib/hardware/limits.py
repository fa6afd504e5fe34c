"""Cores, memory, GPUs and TPUs that are ours to use: what the machine has, less what a container or
a hub holds back. GPUs and TPUs are found without importing a framework.
"""

import ctypes.util
import importlib.metadata
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
GB = 2**30
PEOPLE = (500 if sys.platform == "darwin" else 1000, 60_000)  # the numbers that users get


def gigabytes(size: float) -> str:
    """Bytes as people write memory, `2.0 GB`, where 1 GB is 2**30 bytes as in container limits."""
    return f"{size / GB:.1f} GB"


def safely(probe: Callable[[], T], otherwise: T) -> T:
    """The result of `probe`, or `otherwise` where the machine hides it and `probe` raises."""
    try:
        return probe()
    except Exception:  # whatever it was: psutil, NVML and /proc each have their own
        return otherwise


def read(path: Path) -> str:
    """The text of a file, stripped; "" if it does not exist or may not be read."""
    return safely(path.read_text, "").strip()


def usable_cores() -> int:
    """Cores this process may use at the same time, at least 1."""
    from joblib import cpu_count  # affinity, LOKY_MAX_CPU_COUNT, and the quota of a container

    # joblib looks at the root of the cgroups only; a hub that makes a systemd slice for each user
    # sets the quota further down.
    quota = safely(cgroup_cores, None)
    cores = safely(cpu_count, os.cpu_count() or 1)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def usable_memory(root: Path = Path("/")) -> tuple[int, int, str]:
    """(free, total, why) in bytes: the machine's memory, or that of a container's limit if it is
    tighter. (0, 0, why) if it cannot be read.
    """
    import psutil

    physical = safely(psutil.virtual_memory, None)
    if physical is None:
        return 0, 0, "How much memory is free cannot be read here."
    free, total = int(physical.available), int(physical.total)
    within, limit = safely(lambda: cgroup_memory(root), None) or (free, total)
    why = "Nothing limits it but what other programs use."
    if limit < total:
        of = f"in a machine of {gigabytes(total)}"
        why = f"A limit of {gigabytes(limit)} is set for this container or user, {of}."
    return min(free, within), min(total, limit), why


def cgroup_memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """(free, limit) in bytes of the tightest memory limit on this process, of cgroup v2 or v1; None
    if there is none.

    The page cache counts as free, as the kernel gives it back on demand. `root` is where `proc` and
    `sys` are looked for.
    """
    limits = []
    for group in _cgroups("memory", root):
        lines = read(group / "memory.stat").splitlines()
        stat = {name: int(value) for name, value in map(str.split, lines)}
        v1 = "limit_in_bytes", "usage_in_bytes", "total_"
        # above `high` tasks are not killed but slowed to a crawl
        for most, now, prefix in (("max", "current", ""), ("high", "current", ""), v1):
            limit, usage = read(group / f"memory.{most}"), read(group / f"memory.{now}")
            # v1 writes "no limit" as nearly 2**63
            if limit.isdigit() and usage.isdigit() and int(limit) < 2**60:
                cache = sum(stat.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
                limits.append((max(0, int(limit) - max(0, int(usage) - cache)), int(limit)))
    return min(limits, default=None)


def cgroup_cores(root: Path = Path("/")) -> float | None:
    """The tightest CPU quota on this process, in cores, of cgroup v2 or v1; None for none."""
    quotas = []
    for group in _cgroups("cpu", root):
        v1 = f"{read(group / 'cpu.cfs_quota_us')} {read(group / 'cpu.cfs_period_us')}"
        for text in (read(group / "cpu.max"), v1):
            quota, _, period = text.partition(" ")
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """The folder of this process's group and of each group around it.

    A container may see its own as the top.
    """
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = top if ".." in path else top / path.strip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU that this process may see; `memory` in bytes."""

    name: str
    memory: int


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES lets us see, in its order.

    Raises NVML's errors, for example where there is no driver.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        ids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        seen = [handles[i] for i in visible(ids, os.environ.get("CUDA_VISIBLE_DEVICES"))]
        memory = [int(pynvml.nvmlDeviceGetMemoryInfo(gpu).total) for gpu in seen]
        return tuple(map(Gpu, map(str, map(pynvml.nvmlDeviceGetName, seen)), memory))
    finally:
        pynvml.nvmlShutdown()


def visible(ids: list[str], setting: str | None) -> list[int]:
    """Indices of the GPUs with these UUIDs that CUDA shows for a value of CUDA_VISIBLE_DEVICES: it
    reads the list up to the first entry that it does not know.
    """
    if setting is None:
        return list(range(len(ids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        named = [i for i, its in enumerate(ids) if entry[:4] == "GPU-" and its.startswith(entry)]
        match = named or [i for i in range(len(ids)) if str(i) == entry]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen += match
    return chosen


def cuda_frameworks() -> tuple[str, ...]:
    """Frameworks whose installed build can drive an NVIDIA GPU, as far as that shows without
    importing them.
    """
    cudnn = version("nvidia-cudnn-cu12") or safely(lambda: ctypes.util.find_library("cudnn"), None)
    torch = version("torch")
    cuda = torch and not torch.endswith("+cpu")
    can = {"tensorflow": version("tensorflow") and cudnn, "torch": cuda}
    return tuple(name for name in can if can[name])


def other_people() -> tuple[str, ...]:
    """Names of other users who are logged in here or run a program, as far as we may see them.

    System services do not count: their numbers are below or above those of people.
    """
    import psutil

    people = {user.name for user in psutil.users()}
    for process in psutil.process_iter(["uids", "username"]):
        uids = process.info["uids"]
        if uids and PEOPLE[0] <= uids.real < PEOPLE[1]:
            people.add(process.info["username"])
    return tuple(sorted(people - {psutil.Process().username()}))


def has_tpu(root: Path = Path("/")) -> bool:
    """Return whether this is a TPU machine: its environment says so and a device file is there."""
    named = os.environ.get("TPU_NAME") or os.environ.get("TPU_WORKER_ID")
    devices = ((root / "dev").glob(pattern) for pattern in ("accel*", "vfio/[0-9]*"))
    return bool(named) and any(next(paths, None) for paths in devices)


def version(package: str) -> str:
    """The installed version of a package, "" if there is none; nothing is imported."""
    return safely(lambda: importlib.metadata.version(package), "")
