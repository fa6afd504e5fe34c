"""The first all-reduce of a process, in each framework.

Both sides of a comparison run this same code.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

SIZE = 1000  # numbers: small, so that the start is measured and not the network


def tensorflow() -> float:
    """Join the cluster that TF_CONFIG names, sum ones over all workers, and return the moment when
    the sum was there.
    """
    import tensorflow as tf

    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CollectiveCommunication.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)

    @tf.function(autograph=False)  # it has no Python loops or conditions to be made into a graph's
    def step() -> tf.Tensor:
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones(SIZE))
        )

    total = step().numpy()
    now = time.monotonic()
    assert (total == len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])).all()
    return now


def torch() -> float:
    """Join the process group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name, sum ones over
    it, and return the moment of the sum.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(SIZE)
    dist.all_reduce(total)
    now = time.monotonic()
    assert (total == dist.get_world_size()).all()
    return now


FIRST = {"tensorflow": tensorflow, "torch": torch}


def stamp(framework: str, folder: str | Path, rank: int) -> None:
    """Do it, and leave the moment in a file of `folder` that carries the rank as its name."""
    path = Path(folder, f"{rank}.part")
    path.write_text(repr(FIRST[framework]()))
    path.rename(path.with_suffix(".stamp"))
