"""Clusters that are brought as far as their first all-reduce and held there: Lockstep's own, and
those of its peers.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import course_lib
from course_lib.cluster import frameworks, nursery
from course_lib.cluster.task import Task
from course_lib.network.layout import reserve_ports
from tests.benchmarks.peers import first_all_reduce

PEERS = Path(__file__).parent / "peers"
LONGEST = 180.0  # seconds that anything here may take


class Cluster(NamedTuple):
    """A cluster whose workers have all done their first all-reduce: how long that took, and the
    process above all of them.
    """

    seconds: float
    root: psutil.Process


def warm(framework: str, **on: Any) -> None:
    """Have a warm zygote, and the first run behind us that looks the machine over."""
    course_lib.start(lambda: None, framework=framework, workers=1, **on).wait(LONGEST)


@contextlib.contextmanager
def ours(framework: str, workers: int) -> Iterator[Cluster]:
    """Lockstep's, from the call of `start`; the zygote must be warm."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:

        def work(task: Task) -> None:
            first_all_reduce.stamp(framework, folder, task.rank)
            time.sleep(LONGEST)

        began = time.monotonic()
        with course_lib.start(work, framework=framework, workers=workers) as run:
            finished = last(arrived(Path(folder), workers, check=lambda: run.wait_running(LONGEST)))
            yield Cluster(finished - began, psutil.Process(nursery._zygotes[framework].process.pid))


@contextlib.contextmanager
def spawned(framework: str, workers: int) -> Iterator[Cluster]:
    """multiprocessing's spawn, from the moment before the first `Process.start`: the parent's own
    start is not counted.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder,
        contextlib.ExitStack() as held,
    ):
        numbers = [
            str(held.enter_context(sock).getsockname()[1])
            for sock in reserve_ports(map(str, range(workers))).values()
        ]
        command = [sys.executable, str(PEERS / "with_spawn.py"), framework, folder, *numbers]
        with process(command) as parent:
            finished = last(arrived(Path(folder), workers, check=lambda: still_there(parent)))
            yield Cluster(
                finished - float(Path(folder, "began").read_text()), psutil.Process(parent.pid)
            )


@contextlib.contextmanager
def torchrun(framework: str, workers: int) -> Iterator[Cluster]:
    """torchrun, from the moment when it is called."""
    assert framework == "torch"
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder,
        contextlib.ExitStack() as held,
    ):
        (port,) = (
            held.enter_context(sock).getsockname()[1] for sock in reserve_ports(["server"]).values()
        )
        module = [sys.executable, "-m", "torch.distributed.run"]
        place = ["--master-addr=127.0.0.1", f"--master-port={port}", f"--nproc-per-node={workers}"]
        began = time.monotonic()
        with process([*module, *place, str(PEERS / "with_torchrun.py"), folder]) as parent:
            finished = last(arrived(Path(folder), workers, check=lambda: still_there(parent)))
            yield Cluster(finished - began, psutil.Process(parent.pid))


@contextlib.contextmanager
def process(
    command: list[str], place: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A peer in the environment that our own tasks have, and its `place` in a cluster.

    At the end of the block it is asked to leave, then made to.
    """
    environment = {**os.environ, **frameworks.ENVIRONMENT, **(place or {})}
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        try:
            yield started
        except Unfinished as error:
            log.seek(0)
            raise Unfinished(
                f"{error}; {' '.join(command[:4])} ..."
                f" said:\n{log.read()[-3000:].decode(errors='replace')}"
            ) from None
        finally:
            end(started)


class Unfinished(Exception):
    """A peer did not come as far as it should."""


def end(started: subprocess.Popen[bytes], patience: float = 5.0) -> None:
    """Have a process and all that came from it leave, and kill what has not after a while."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended by itself, with an error
        family = psutil.Process(started.pid).children(recursive=True)
    if started.stdin:
        started.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(patience)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    started.kill()
    started.wait()
    psutil.wait_procs(family, timeout=patience)


def still_there(started: subprocess.Popen[bytes]) -> None:
    if started.poll() is not None:
        raise Unfinished(f"it ended with exit code {started.returncode}")


def arrived(folder: Path, count: int, check: Callable[[], object]) -> list[str]:
    """What `count` workers leave in `folder`, by rank, once all have left it.

    `check` raises if they never will.
    """
    deadline = time.monotonic() + LONGEST
    while len(stamps := sorted(folder.glob("*.stamp"))) < count:
        check()
        if time.monotonic() > deadline:
            raise Unfinished(
                f"only {len(stamps)} of {count} workers came as far as they should in"
                f" {LONGEST:.0f} s"
            )
        time.sleep(0.05)
    return [stamp.read_text() for stamp in stamps]


def last(stamps: list[str]) -> float:
    """The latest of the moments that workers left."""
    return max(map(float, stamps))
