"""All-reduces without end, as one writes them by hand: `endless.py FRAMEWORK FOLDER`, with RANK and
the like or TF_CONFIG set. Leaves a file after the first of them, and one with the error that ends
them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE = 1000  # numbers


def torch() -> Callable[[], Any]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return lambda: dist.all_reduce(torch.ones(SIZE))


def tensorflow() -> Callable[[], Any]:
    import tensorflow as tf

    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CollectiveCommunication.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)

    def reduced() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.ones(SIZE))

    @tf.function(autograph=False)
    def step() -> Any:
        return strategy.run(reduced)

    return lambda: step().numpy()


FRAMEWORKS = {"tensorflow": tensorflow, "torch": torch}


def main(framework: str, folder: Path, rank: int) -> None:
    try:
        reduce = FRAMEWORKS[framework]()
        reduce()
        (folder / f"{rank}.stamp").touch()
        while True:
            reduce()
    except Exception as error:
        (folder / f"{rank}.error").write_text(str(error))
        os._exit(1)


if __name__ == "__main__":
    place = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    main(sys.argv[1], Path(sys.argv[2]), int(place.get("index", os.environ.get("RANK", 0))))
