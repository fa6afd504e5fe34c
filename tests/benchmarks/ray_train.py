"""On a Ray cluster of three nodes that is up: the start of a training and the time of its steps,
against Ray Train's TorchTrainer; and what the record costs there.

Both start and train on the same cluster, which this machine plays: for neither are its nodes warmer
than after a first run. It needs what `pip install 'ray[train]'` brings.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import course_lib
from course_lib import engines
from course_lib.record.events import Metric
from tests.benchmarks import clusters, timed, tracing
from tests.benchmarks.harness import Aim, Figure, Options, Rows, compare
from tests.benchmarks.steps import SameTraining

PEER = "TorchTrainer"
NEEDS = "pandas", "pyarrow", "tensorboardX", "fsspec", "requests"  # which `ray[train]` brings
FASTER, WITHIN = Aim("faster", 5), Aim("at most", 1.05)
Fit = Callable[[int, int], tuple[float, timed.Training]]
"""Trains so many workers for so many steps: seconds to the first step of the last worker, and the
training.
"""


def rows(options: Options) -> Rows:
    """Rows of starts, of steps, and of the record."""
    raylets = engines.load("ray.raylets")
    lacking = [name for name in NEEDS if not importlib.util.find_spec(name)]
    there = raylets.up(nodes=3, cpus=4)
    try:
        on = {"engine": f"ray:{there.address}"}
        length = 50 if options.quick else 200
        name = "trace of multi_worker_mirrored, torch, on Ray"
        work = tracing.strategy("torch", length)
        yield tracing.row(name, "trace=False", "torch", 2, work, length, options, **on)
        if lacking:
            why = f"{PEER} cannot be had: it imports {', '.join(lacking)}"
            raise clusters.Unfinished(f"{why}. Install them: pip install 'ray[train]'")
        with ray_train(there.address) as theirs:
            yield from against(theirs, lockstep(on), options)
    finally:
        if ray := sys.modules.get("ray"):
            ray.shutdown()
        there.end()


def against(theirs: Fit, ours: Fit, options: Options) -> Rows:
    def first(fit: Fit, workers: int) -> Figure:
        return lambda: fit(workers, 2)[0]

    for workers in (2,) if options.quick else (4, 8):
        theirs(workers, 2), ours(workers, 2)  # as both are after a first run
        name = f"start of {workers} tasks on Ray, to the first step of torch"
        peer = PEER, first(theirs, workers)
        yield compare(name, "s", first(ours, workers), peer, FASTER, options)
    same, steps = SameTraining(), timed.WARM_UP + (100 if options.quick else 2000)

    def median(fit: Fit) -> Figure:
        return same.median(lambda: fit(timed.WORKERS, steps)[1])

    name = f"step of multi_worker_mirrored on Ray, {timed.WORKERS} workers, torch"
    yield compare(name, "ms", median(ours), (PEER, median(theirs)), WITHIN, options)


def lockstep(on: dict[str, Any]) -> Fit:
    def fit(workers: int, steps: int) -> tuple[float, timed.Training]:
        fields = {"framework": "torch", "workers": workers, "steps": steps, **on}
        run = course_lib.start("multi_worker_mirrored", **fields).wait(clusters.LONGEST)
        losses = [run.trace.all(Metric, task, name="loss") for task in run.spec.tasks]
        training = timed.Training([each.at for each in losses[0]], run.result["final_loss"])
        return max(each[0].at for each in losses), training

    return fit


@contextlib.contextmanager
def ray_train(address: str) -> Iterator[Fit]:
    """The plain script under TorchTrainer, with the data, weights, batches and threads of ours; in
    one driver, so that its own start is not counted.
    """
    command = [sys.executable, str(clusters.PEERS / "with_ray_train.py"), address]
    with clusters.process(command, engines.load("ray.raylets").environment()) as peer:

        def fit(workers: int, steps: int) -> tuple[float, timed.Training]:
            with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
                place = Path(folder)
                timed.describe("torch", steps, place, timed.Cluster(workers=workers), threads=1)
                ask(peer, f"{workers} {folder}\n")
                script = timed.Script([peer], place, workers)
                left = script.results()
                began = float((place / "began").read_text())
                first = max(result["moments"][0] for result in left)
                return first - began, script.training()

        yield fit


def ask(peer: subprocess.Popen[bytes], line: str) -> None:
    assert peer.stdin
    with contextlib.suppress(BrokenPipeError):  # what it has said is told by who waits for it
        peer.stdin.write(line.encode())
        peer.stdin.flush()
