"""Kills a process that starts clusters, at a random moment, and looks for what survives it.

Used by a test and by `make bench`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import gone_within, processes_of

# Runs of both frameworks, one of a learner's function that has a child of its own and one whose
# task is frozen: all that a kernel may leave behind.
KERNEL = """
import subprocess, sys, time
from course_lib import start

def stubborn(task):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    (task.run_dir / f"child-{task.index}").touch()
    while True:
        pass

first = start("multi_worker_mirrored", framework=sys.argv[1], workers=2, steps=100000)
second = start(stubborn, workers=2)
second.wait_running(60)
while len(list(second.run_dir.glob("child-*"))) < 2:
    time.sleep(0.01)
second.pause("worker:0")
first.wait_running(60)
open(sys.argv[2], "w").close()
time.sleep(600)
"""


def kill(framework: str, home: Path, seconds: float | None = None) -> tuple[int, list[str]]:
    """Start a kernel process with two runs and SIGKILL it after `seconds`, or once both runs run
    (None). Returns how many processes there were then, and those that are left a second later.
    """
    home.mkdir(exist_ok=True)
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
        there = len(processes_of(str(home)))
        kernel.send_signal(signal.SIGKILL)
        if kernel.wait() != -signal.SIGKILL:  # it must have gone on until it was killed
            log.seek(0)
            raise AssertionError(f"the kernel process ended by itself: {log.read().decode()}")
    return there, gone_within(str(home), 1.0)


def survivors(kills: int, home: Path, longest: float = 5.0, seed: int = 0) -> list[str]:
    """`kills` kills at moments spread evenly at random over 0 to `longest` seconds, frameworks in
    turn; everything that survived any of them.
    """
    moments = random.Random(seed)
    left = []
    for i in range(kills):
        left += kill(("tensorflow", "torch")[i % 2], home, moments.uniform(0, longest))[1]
    return left
