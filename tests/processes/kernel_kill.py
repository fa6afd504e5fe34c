"""Kills a process that starts clusters, at a random moment, and looks for what survives it.

Used by a test and by `make bench`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import gone_within

# Runs of both frameworks, one of a learner's function that has a child of its own and one whose
# task is frozen: all that a kernel may leave behind.
KERNEL = """
import subprocess, sys, time
from course_lib import start

def stubborn(task):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    while True:
        pass

first = start("multi_worker_mirrored", framework=sys.argv[1], workers=2, steps=100000)
second = start(stubborn, workers=2)
second.wait_running(60)
second.pause("worker:0")
time.sleep(600)
"""


def kill_after(seconds: float, framework: str, home: Path) -> list[str]:
    """Start a kernel process with two runs, SIGKILL it after `seconds`, and return what of it is
    left a second later.
    """
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL, framework],
        env={**os.environ, "LOCKSTEP_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(seconds)
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    return gone_within(str(home), 1.0)


def survivors(kills: int, home: Path, longest: float = 5.0, seed: int = 0) -> list[str]:
    """`kills` kills at moments spread evenly at random over 0 to `longest` seconds, frameworks in
    turn; everything that survived any of them.
    """
    moments = random.Random(seed)
    left = []
    for i in range(kills):
        left += kill_after(moments.uniform(0, longest), ("tensorflow", "torch")[i % 2], home)
    return left
