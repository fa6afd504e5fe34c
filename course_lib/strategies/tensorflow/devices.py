"""Which of the machine's devices a task may touch.

TensorFlow would take all memory of every GPU it sees, in each process.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def use(device: str) -> str:
    """Show TensorFlow only `device` (`cpu`, `gpu:1`) and return its name for it.

    To be called before the first operation.
    """
    _show(_gpus(device, 1))
    return f"/{device.partition(':')[0]}:0"


def use_several(device: str, count: int, host_apart: bool = False) -> list[str]:
    """Devices for `count` replicas of this process, by TensorFlow's names. To be called before the
    first operation.

    Those are the GPU `device` (`gpu:0`) and the ones after it, if there are so many. Otherwise they
    are logical devices: TensorFlow takes the one CPU for several, each with variables of its own.
    They share its cores, and its memory: what one sends to another is handed over and not copied,
    so that costs nothing, unlike between GPUs. With `host_apart`, the first, `/cpu:0`, is left to
    the host.
    """
    gpus = _gpus(device, count)
    _show(gpus)
    if gpus:
        return [f"/gpu:{i}" for i in range(count)]
    first = int(host_apart)
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * (first + count)
    )
    return [f"/cpu:{first + i}" for i in range(count)]


def _gpus(device: str, count: int) -> list[Any]:
    """`count` of the machine's GPUs from `device` on; none if it is the CPU, or if there are not so
    many.
    """
    kind, _, first = device.partition(":")
    found = tf.config.list_physical_devices("GPU")[int(first) :][:count] if kind == "gpu" else []
    return found if len(found) == count else []


def _show(gpus: list[Any]) -> None:
    """Let TensorFlow see these GPUs and no others, and take memory of them as it needs it."""
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
