"""A training on digits with the moment at which each step was over: ours, and the plain scripts'."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import course_lib
from course_lib import RunSpec, hardware, workloads
from course_lib.cluster import ports
from course_lib.cluster.task import Task, clock
from course_lib.trace import Event, Metric
from tests.benchmarks import clusters

WORKERS = 2
WARM_UP = 50  # steps that are not counted


class Training(NamedTuple):
    """The moments in seconds, and the loss that it ended with: two trainings with the same loss were the same training."""

    moments: list[float]
    final_loss: float


def median_ms(moments: Sequence[float]) -> float:
    """Milliseconds of the middle one of all steps after the warm-up."""
    return statistics.median(b - a for a, b in itertools.pairwise(moments[WARM_UP:])) * 1000


def ours(framework: str, steps: int) -> Training:
    """multi_worker_mirrored as every learner runs it, but for a look at the clock when a step reports its loss."""

    def work(task: Task) -> Training:
        moments: list[float] = []
        add = task.recorder.add

        def look(event: Event) -> None:
            add(event)
            if type(event) is Metric:
                moments.append(clock())

        task.recorder.add = look
        result = importlib.import_module(f"course_lib.strategies.{framework}.multi_worker_mirrored").worker(task)
        return Training(moments, result["final_loss"])

    run = course_lib.start(work, framework=framework, workers=WORKERS, steps=steps)
    return Training(*run.wait(clusters.LONGEST).result["worker:0"])


def plain(framework: str, steps: int) -> Training:
    """The plain script, with the data, the weights, the batches and the threads of our own run, in processes that import the framework themselves."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder, contextlib.ExitStack() as stack:
        describe(framework, steps, Path(folder))
        held = [stack.enter_context(sock) for sock in ports.reserve(WORKERS)]
        script = [sys.executable, str(clusters.PEERS / f"plain_{framework}.py"), folder]
        started = [stack.enter_context(clusters.process(script, extra)) for extra in places(framework, [ports.address(s) for s in held])]
        left = clusters.arrived(Path(folder), WORKERS, check=lambda: [clusters.still_there(process) for process in started])
    results = [json.loads(text) for text in left]
    return Training(results[0]["moments"], statistics.mean(result["loss"] for result in results))


def places(framework: str, addresses: list[str]) -> Iterator[dict[str, str]]:
    """What tells each worker its place in the cluster, in the way of its framework."""
    for rank in range(len(addresses)):
        if framework == "tensorflow":
            yield {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})}
        else:
            host, port = addresses[0].split(":")
            yield {"MASTER_ADDR": host, "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": str(len(addresses))}


def describe(framework: str, steps: int, folder: Path) -> None:
    """Write down a training in numbers alone, for scripts that know nothing of this library."""
    spec = RunSpec(strategy="custom", framework=framework, workers=WORKERS, steps=steps)
    workload = workloads.load(spec)
    order = [[workload.batch(n, spec.seed, spec.batch, worker, WORKERS) for n in range(steps)] for worker in range(WORKERS)]
    weights = {f"weight{i}": weight for i, weight in enumerate(workload.initial_weights(spec.seed))}
    threads = hardware.plan(spec, hardware.probe()).threads
    np.savez(
        folder / "training.npz",
        x=workload.x_train,
        y=workload.y_train,
        order=order,
        rate=workload.learning_rate,
        threads=threads,
        **weights,
    )
