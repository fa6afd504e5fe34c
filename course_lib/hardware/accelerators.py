"""GPUs and TPUs, found without importing a framework."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path

from course_lib.hardware.limits import safely


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU that this process may see; `memory` in bytes."""

    name: str
    memory: int


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES lets us see, in its order.

    Raises NVML's errors, so also where there is no driver.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        ids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        seen = [handles[i] for i in visible(ids, os.environ.get("CUDA_VISIBLE_DEVICES"))]
        return tuple(
            Gpu(str(pynvml.nvmlDeviceGetName(gpu)), int(pynvml.nvmlDeviceGetMemoryInfo(gpu).total))
            for gpu in seen
        )
    finally:
        pynvml.nvmlShutdown()


def visible(ids: list[str], setting: str | None) -> list[int]:
    """Which of the GPUs with these UUIDs CUDA shows under a value of CUDA_VISIBLE_DEVICES: it reads
    up to the first entry that it does not know.
    """
    if setting is None:
        return list(range(len(ids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        match = [
            i
            for i, uuid in enumerate(ids)
            if entry == str(i) or (entry.startswith("GPU-") and uuid.startswith(entry))
        ]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen += match
    return chosen


def cuda_frameworks() -> tuple[str, ...]:
    """Frameworks whose installed build can drive an NVIDIA GPU, as far as that shows without
    importing them.
    """
    torch = version("torch") and not version("torch").endswith("+cpu")
    tensorflow = version("tensorflow") and (
        version("nvidia-cudnn-cu12") or safely(lambda: ctypes.util.find_library("cudnn"), None)
    )
    return tuple(name for name, can in (("tensorflow", tensorflow), ("torch", torch)) if can)


def has_tpu(root: Path = Path("/")) -> bool:
    """Whether this is a TPU machine: its environment says so and a device file is there."""
    told = os.environ.get("TPU_NAME") or os.environ.get("TPU_WORKER_ID")
    return bool(told) and any(
        next((root / "dev").glob(pattern), None) for pattern in ("accel*", "vfio/[0-9]*")
    )


def version(package: str) -> str:
    """The installed version of a package, "" if there is none; nothing is imported."""
    return safely(lambda: importlib.metadata.version(package), "")
