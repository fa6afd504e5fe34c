"""Kills a process that starts clusters, at a random moment, and looks for what survives it.

Used by a test and by `make bench`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.conftest import gone_within, processes_of

# All that a kernel may leave behind: a run of a framework that saves often, one of a learner's
# function that has children of its own, of which one has left its session and its parent, one whose
# task is frozen, one that restarts again and again, and a race.
KERNEL = """
import os, subprocess, sys, time
from course_lib import race, start

def stubborn(task):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    if os.fork() == 0:  # a daemon
        if os.fork() == 0:
            os.setsid()
            os.execlp("sleep", "sleep", "600")
        os._exit(0)
    (task.run_dir / f"child-{task.index}").touch()
    while True:
        pass

def unlucky(task):
    time.sleep(0.05)
    if task.index:
        os._exit(1)
    time.sleep(600)

fields = {"framework": sys.argv[1], "workers": 2, "steps": 100000}
first = start("multi_worker_mirrored", checkpoint_every=20, **fields)
second = start(stubborn, workers=2)
third = start(unlucky, workers=2, max_restarts=100)
second.wait_running(60)
while len(list(second.run_dir.glob("child-*"))) < 2:
    time.sleep(0.01)
second.pause("worker:0")
first.wait_running(60)
open(sys.argv[2], "w").close()
race("multi_worker_mirrored", "parameter_server", **fields)
time.sleep(600)
"""


def kill(
    framework: str, home: Path, seconds: float | None = None, stop: bool = False
) -> tuple[int, list[str]]:
    """Start a kernel process with runs and SIGKILL it after `seconds`, or once they run (None).
    `stop`: all its processes are stopped (SIGSTOP) before.

    Returns how many processes there were then, and what is left a second later: processes (and with
    them sockets and namespaces, which have no names), temporary files, shared memory.
    """
    home.mkdir(exist_ok=True)
    before = set(shared_memory())
    running = home / "both-run"
    running.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as log:
        kernel = subprocess.Popen(
            [sys.executable, "-c", KERNEL, framework, str(running)],
            env={**os.environ, "LOCKSTEP_HOME": str(home)},
            stdout=log,
            stderr=log,
        )
        begun = time.monotonic()
        while kernel.poll() is None and not (
            running.exists() if seconds is None else time.monotonic() - begun >= seconds
        ):
            time.sleep(0.01)
        there = len(found := processes_of(str(home)))
        for process in found if stop else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        kernel.send_signal(signal.SIGKILL)
        if kernel.wait() != -signal.SIGKILL:  # it must have gone on until it was killed
            log.seek(0)
            raise AssertionError(f"the kernel process ended by itself: {log.read().decode()}")
    return there, gone_within(str(home), 1.0) + files_left(home) + memory_left(before)


def files_left(home: Path) -> list[str]:
    """What should be there only while a run goes on. A run that never had a supervisor has empty
    folders.
    """
    found = []
    for run in home.glob("runs/*"):
        begun = (run / "lifecycle.jsonl").exists()
        for folder in (*run.glob("tasks/*/tmp"), run / "meetings", run / "workload"):
            found += [*folder.rglob("*"), *[folder] * (begun and folder.exists())]
    return [f"{path} is left" for path in found]


def shared_memory() -> list[Path]:
    folder = Path("/dev/shm")
    return list(folder.iterdir()) if folder.is_dir() else []


def memory_left(before: set[Path]) -> list[str]:
    """Shared memory that has come since, and that no process has open."""
    fresh = [path for path in shared_memory() if path not in before]
    in_use: set[str] = set()
    for process in psutil.process_iter() if fresh else ():
        with contextlib.suppress(psutil.Error):
            in_use |= {m.path for m in process.memory_maps()}
    return [f"{path} is left" for path in fresh if path.exists() and str(path) not in in_use]


def survivors(kills: int, home: Path, longest: float = 5.0, seed: int = 0) -> list[str]:
    """`kills` kills at moments spread evenly at random over 0 to `longest` seconds, frameworks in
    turn; everything that survived any of them.
    """
    moments = random.Random(seed)
    left = []
    for i in range(kills):
        left += kill(("tensorflow", "torch")[i % 2], home, moments.uniform(0, longest))[1]
    return left
