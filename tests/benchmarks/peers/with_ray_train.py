"""The plain script's training under Ray Train: `with_ray_train.py ADDRESS`, with a line on stdin
for each: the number of workers, and the folder that `plain_torch.py` is given.

The moment at which Ray Train was called is left there as well.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import plain_torch
import ray
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer


def work(given: dict[str, str]) -> None:
    folder, rank = Path(given["folder"]), get_context().get_world_rank()
    plain_torch.write(folder, rank, plain_torch.train(folder, rank))


def main(address: str) -> None:
    ray.init(address=address, log_to_driver=False)
    for line in sys.stdin:
        workers, folder = line.split()
        trainer = TorchTrainer(
            work,
            train_loop_config={"folder": folder},
            scaling_config=ScalingConfig(num_workers=int(workers), resources_per_worker={"CPU": 1}),
            torch_config=TorchConfig(backend="gloo"),
            run_config=RunConfig(storage_path=folder),
        )
        Path(folder, "began").write_text(str(time.monotonic()))
        trainer.fit()


if __name__ == "__main__":
    main(sys.argv[1])
