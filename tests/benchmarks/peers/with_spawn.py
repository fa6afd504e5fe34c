"""Start workers with multiprocessing's spawn, as far as the first all-reduce: `with_spawn.py
FRAMEWORK FOLDER PORT...`, a port for each worker.

Leaves the moment of the start and of each worker's first all-reduce in FOLDER. The workers stay
until stdin is closed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import first_all_reduce


def work(framework: str, folder: str, ports: list[str], rank: int, leave: Event) -> None:
    if framework == "tensorflow":
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": cluster, "task": {"type": "worker", "index": rank}}
        )
    else:
        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=ports[0],
            RANK=str(rank),
            WORLD_SIZE=str(len(ports)),
        )
    first_all_reduce.stamp(framework, folder, rank)
    leave.wait()
    os._exit(0)  # the frameworks' own teardown is not what is measured, and may wait for peers


def main(framework: str, folder: str, ports: list[str]) -> None:
    context = multiprocessing.get_context("spawn")
    leave = context.Event()
    began = time.monotonic()
    workers = [
        context.Process(target=work, args=(framework, folder, ports, rank, leave), daemon=True)
        for rank in range(len(ports))
    ]
    for worker in workers:
        worker.start()
    Path(folder, "began").write_text(repr(began))
    sys.stdin.read()
    leave.set()
    for worker in workers:
        worker.join(10)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
