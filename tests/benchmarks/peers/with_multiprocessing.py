"""Two workers by multiprocessing that say in a folder that they work, and go on:
`with_multiprocessing.py FOLDER`.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from pathlib import Path


def work(folder: str, rank: int) -> None:
    Path(folder, f"{rank}.stamp").touch()
    time.sleep(60)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=work, args=(sys.argv[1], rank), daemon=True) for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
