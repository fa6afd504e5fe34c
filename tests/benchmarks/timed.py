"""A training with the moment at which each step was over: ours, and the plain scripts'; on digits,
or of one of the models in `tests/own_models.py`. One after the other, or both in turns.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import course_lib
from course_lib import Run, RunSpec, hardware, workloads
from course_lib.network.layout import LOOPBACK, reserve_ports
from course_lib.record.events import Lifecycle, Metric
from tests import own_models
from tests.benchmarks import clusters
from tests.helpers import examples_of

ROOT = Path(__file__).parents[2]
WORKERS = 2
WARM_UP = 50  # steps that are not counted
# seconds: some steps of the longest, so that few are cut in two; less than what is told as a pause
TURN = 0.4


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
    return recorded(begin(framework, steps, cluster), cluster)


def begin(framework: str, steps: int, cluster: Cluster) -> Run:
    fields = {**cluster.fields, "framework": framework, "steps": steps}
    return course_lib.start(cluster.strategy, **fields)


def moments(run: Run, cluster: Cluster) -> list[float]:
    """Those that a run has recorded so far."""
    task = "chief:0" if cluster.ps else "worker:0"
    return [report.at for report in run.trace.all(Metric, task, name="loss")]


def recorded(run: Run, cluster: Cluster) -> Training:
    run.wait(clusters.LONGEST)
    return Training(moments(run, cluster), run.result["final_loss"])


def plain(framework: str, steps: int, cluster: Cluster = USUAL) -> Training:
    """The plain script, with the data, the weights, the batches and the threads of our own run, in
    processes that import the framework themselves.
    """
    with script(framework, steps, cluster) as peer:
        return peer.training()


class Script(NamedTuple):
    """A plain script that goes on, and the folder in which its workers leave their results."""

    processes: list[subprocess.Popen[bytes]]
    folder: Path
    workers: int

    @property
    def over(self) -> bool:
        return len(list(self.folder.glob("*.stamp"))) == self.workers

    def check(self) -> None:
        for process in self.processes:
            clusters.still_there(process)

    def results(self) -> list[dict[str, Any]]:
        """What each worker leaves, once it is over."""
        left = clusters.arrived(self.folder, self.workers, self.check)
        return [json.loads(text) for text in left]

    def training(self) -> Training:
        results = self.results()
        return Training(
            results[0]["moments"], statistics.mean(result["loss"] for result in results)
        )


@contextlib.contextmanager
def script(framework: str, steps: int, cluster: Cluster, stop_after: int = 0) -> Iterator[Script]:
    """Start the plain script. Its processes stop themselves (SIGSTOP) after so many steps, if any
    are given.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        describe(framework, steps, Path(folder), cluster, stop_after)
        tasks = RunSpec(strategy="work()", framework=framework, **cluster.fields).tasks
        held = {task: stack.enter_context(sock) for task, sock in reserve_ports(tasks).items()}
        named = [
            name for name in [cluster.strategy] if framework == "tensorflow" and not cluster.ps
        ]
        name = "plain_parameter_server.py" if cluster.ps else f"plain_{framework}.py"
        own = [cluster.model] if cluster.model else []
        command = [sys.executable, str(clusters.PEERS / name), *named, folder, *own]
        addresses = {task: f"{LOOPBACK}:{sock.getsockname()[1]}" for task, sock in held.items()}
        started = [
            stack.enter_context(clusters.process(command, extra | {"PYTHONPATH": str(ROOT)}))
            for extra in places(framework, addresses)
        ]
        yield Script(started, Path(folder), 1 if cluster.ps else cluster.workers)


def in_turns(framework: str, steps: int, cluster: Cluster) -> tuple[Training, Training]:
    """Ours and the plain script's, side by side, so that what slows the machine for a while slows
    both: while the processes of one go on, those of the other are stopped. The few steps in which
    they are stopped do not change the median.
    """
    with script(framework, steps, cluster, stop_after=WARM_UP) as peer:
        theirs = [psutil.Process(process.pid) for process in peer.processes]
        until(lambda: all(p.status() == psutil.STATUS_STOPPED for p in theirs), peer.check)
        with begin(framework, steps, cluster) as run:
            until(lambda: len(moments(run, cluster)) > WARM_UP, run.wait_running)
            begun = run.trace.all(Lifecycle, state="starting")
            mine = [psutil.Process(event.pid) for event in begun]
            take_turns(theirs, mine, lambda: run.state == "running" and not peer.over)
            return recorded(run, cluster), peer.training()


def take_turns(
    first: Sequence[psutil.Process], second: Sequence[psutil.Process], both: Callable[[], bool]
) -> None:
    """Let one group of processes go on, then the other, for as long as `both` have something left
    to do. In the end all go on.
    """
    try:
        for going, others in itertools.cycle([(first, second), (second, first)]):
            if not both():
                break
            tell(process.suspend for process in others)
            tell(process.resume for process in going)
            time.sleep(TURN)
    finally:
        tell(process.resume for process in (*first, *second))


def tell(orders: Iterable[Callable[[], None]]) -> None:
    for order in orders:
        with contextlib.suppress(psutil.NoSuchProcess):  # it is over
            order()


def until(true: Callable[[], bool], check: Callable[[], object]) -> None:
    """Wait for something. `check` raises if it will never be."""
    deadline = time.monotonic() + clusters.LONGEST
    while not true():
        check()
        if time.monotonic() > deadline:
            raise clusters.Unfinished(f"not warm after {clusters.LONGEST:.0f} s")
        time.sleep(0.05)


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


def describe(
    framework: str,
    steps: int,
    folder: Path,
    cluster: Cluster,
    stop_after: int = 0,
    threads: int = 0,
) -> None:
    """Write down a training in numbers alone, for scripts that know nothing of this library.
    `threads`: 0 for those of a run on this machine.
    """
    spec = RunSpec(strategy="work()", framework=framework, steps=steps, **cluster.fields)
    workload = workloads.load(spec)
    order = [
        [examples_of(workload, n, spec.seed, spec.batch, share, spec.shares) for n in range(steps)]
        for share in range(spec.shares)
    ]
    given = workload.initial_weights(spec.seed) if workload.layers else []
    weights: dict[str, Any] = {f"weight{i}": weight for i, weight in enumerate(given)}
    threads = threads or hardware.plan(spec, hardware.probe()).threads
    np.savez(
        folder / "training.npz",
        x=workload.train.inputs,
        y=workload.train.targets,
        order=order,
        rate=workload.learning_rate,
        seed=spec.seed,
        threads=threads,
        replicas=cluster.replicas,
        stop_after=stop_after,
        **weights,
    )
