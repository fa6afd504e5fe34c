"""A training with DistributedDataParallel on gloo as one writes it by hand: `plain_torch.py FOLDER
[MODEL]`, with RANK and the like set.

FOLDER/training.npz holds data, initial weights and the order of examples; without MODEL, which is
one of tests/own_models.py, the model is two dense layers. Leaves the moment at which each step was
over, and the last loss.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(folder: Path, rank: int, own: str = "") -> None:
    """Leave the result, and stay until whoever measures closes stdin."""
    dist.init_process_group("gloo")
    write(folder, rank, train(folder, rank, own))
    sys.stdin.read()
    os._exit(0)


def train(folder: Path, rank: int, own: str = "") -> dict[str, Any]:
    given = np.load(folder / "training.npz")
    torch.set_num_threads(int(given["threads"]))
    model = own_model(own, int(given["seed"])) if own else two_layers(given)
    averaged = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(averaged.parameters(), lr=float(given["rate"]))
    x, y, order = given["x"], given["y"], given["order"][rank]
    moments, last, stop_after = [], float("nan"), int(given["stop_after"])
    for indices in order:
        inputs, targets = torch.from_numpy(x[indices]), torch.from_numpy(y[indices])
        outputs = averaged(inputs)
        loss = nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        moments.append(time.monotonic())
        if len(moments) == stop_after:
            os.kill(os.getpid(), signal.SIGSTOP)  # until whoever measures lets it go on
    return {"moments": moments, "loss": last}


def two_layers(given: Any) -> nn.Module:
    hidden, classes = given["weight0"].shape[1], given["weight2"].shape[1]
    model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.from_numpy(given[f"weight{i}"].T))
    return model


def own_model(name: str, seed: int) -> Any:
    from tests import own_models

    torch.manual_seed(seed)
    return getattr(own_models, f"torch_{name}")()


def write(folder: Path, rank: int, result: dict[str, Any]) -> None:
    (folder / f"{rank}.part").write_text(json.dumps(result))
    (folder / f"{rank}.part").rename(folder / f"{rank}.stamp")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ["RANK"]), *sys.argv[2:])
