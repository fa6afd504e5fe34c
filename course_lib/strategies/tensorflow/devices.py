"""Which of the machine's devices a task may touch. TensorFlow would take all memory of every GPU it sees, in each process."""

from __future__ import annotations

import tensorflow as tf


def use(device: str) -> str:
    """Show TensorFlow only `device` (`cpu`, `gpu:1`) and return its name for it. To be called before the first operation."""
    job, _, index = device.partition(":")
    gpus = tf.config.list_physical_devices("GPU") if job == "gpu" else []
    mine = gpus[int(index) : int(index) + 1] if gpus else []
    tf.config.set_visible_devices(mine, "GPU")
    for gpu in mine:
        tf.config.experimental.set_memory_growth(gpu, True)
    return f"/{job}:0"
