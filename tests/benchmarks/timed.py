"""A training with the moment at which each step was over: ours, and the plain scripts'; on digits,
or of one of the models in `tests/own_models.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import course_lib
from course_lib import RunSpec, hardware, workloads
from course_lib.network.layout import LOOPBACK, reserve_ports
from course_lib.record.events import Metric
from tests import own_models
from tests.benchmarks import clusters
from tests.helpers import examples_of

ROOT = Path(__file__).parents[2]
WORKERS = 2
WARM_UP = 50  # steps that are not counted


class Training(NamedTuple):
    """The moments in seconds, and the loss that it ended with: two trainings with the same loss
    were the same training.
    """

    moments: list[float]
    final_loss: float


def median_ms(moments: Sequence[float]) -> float:
    """Milliseconds of the middle one of all steps after the warm-up."""
    return statistics.median(b - a for a, b in itertools.pairwise(moments[WARM_UP:])) * 1000


class Cluster(NamedTuple):
    """The tasks of a training; with `replicas` in one process instead of workers, where a strategy
    has them there. `model`: the name of a workload in `tests/own_models.py`, if it is not digits.
    """

    strategy: str = "multi_worker_mirrored"
    workers: int = WORKERS
    replicas: int = 1
    ps: int = 0
    model: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "replicas": self.replicas,
            "ps": self.ps,
            "chief": self.ps > 0,
            "workload": getattr(own_models, self.model) if self.model else "digits",
        }


USUAL = Cluster()


def ours(framework: str, steps: int, cluster: Cluster = USUAL) -> Training:
    """A strategy as every learner runs it: its trace says when a step reported its loss."""
    fields = {**cluster.fields, "framework": framework, "steps": steps}
    run = course_lib.start(cluster.strategy, **fields).wait(clusters.LONGEST)
    reports = run.trace.all(Metric, "chief:0" if cluster.ps else "worker:0", name="loss")
    return Training([report.at for report in reports], run.result["final_loss"])


def plain(framework: str, steps: int, cluster: Cluster = USUAL) -> Training:
    """The plain script, with the data, the weights, the batches and the threads of our own run, in
    processes that import the framework themselves.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        describe(framework, steps, Path(folder), cluster)
        tasks = RunSpec(strategy="custom", framework=framework, **cluster.fields).tasks
        held = {task: stack.enter_context(sock) for task, sock in reserve_ports(tasks).items()}
        named = [
            name for name in [cluster.strategy] if framework == "tensorflow" and not cluster.ps
        ]
        script = "plain_parameter_server.py" if cluster.ps else f"plain_{framework}.py"
        own = [cluster.model] if cluster.model else []
        command = [sys.executable, str(clusters.PEERS / script), *named, folder, *own]
        addresses = {task: f"{LOOPBACK}:{sock.getsockname()[1]}" for task, sock in held.items()}
        started = [
            stack.enter_context(clusters.process(command, extra | {"PYTHONPATH": str(ROOT)}))
            for extra in places(framework, addresses)
        ]
        answers = 1 if cluster.ps else cluster.workers
        left = clusters.arrived(
            Path(folder),
            answers,
            check=lambda: [clusters.still_there(process) for process in started],
        )
    results = [json.loads(text) for text in left]
    return Training(results[0]["moments"], statistics.mean(result["loss"] for result in results))


def places(framework: str, addresses: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """What tells each task its place in the cluster, in the way of its framework."""
    by_job: dict[str, list[str]] = {}
    for task, address in addresses.items():
        by_job.setdefault(task.partition(":")[0], []).append(address)
    for rank, task in enumerate(addresses):
        job, _, index = task.partition(":")
        if framework == "tensorflow":
            alone = len(addresses) == 1
            yield (
                {}
                if alone
                else {
                    "TF_CONFIG": json.dumps(
                        {"cluster": by_job, "task": {"type": job, "index": int(index)}}
                    )
                }
            )
        else:
            host, port = by_job["worker"][0].split(":")
            yield {
                "MASTER_ADDR": host,
                "MASTER_PORT": port,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(addresses)),
            }


def describe(framework: str, steps: int, folder: Path, cluster: Cluster) -> None:
    """Write down a training in numbers alone, for scripts that know nothing of this library."""
    spec = RunSpec(strategy="custom", framework=framework, steps=steps, **cluster.fields)
    workload = workloads.load(spec)
    order = [
        [examples_of(workload, n, spec.seed, spec.batch, share, spec.shares) for n in range(steps)]
        for share in range(spec.shares)
    ]
    given = workload.initial_weights(spec.seed) if workload.layers else []
    weights: dict[str, Any] = {f"weight{i}": weight for i, weight in enumerate(given)}
    threads = hardware.plan(spec, hardware.probe()).threads
    np.savez(
        folder / "training.npz",
        x=workload.train.inputs,
        y=workload.train.targets,
        order=order,
        rate=workload.learning_rate,
        seed=spec.seed,
        threads=threads,
        replicas=cluster.replicas,
        **weights,
    )
