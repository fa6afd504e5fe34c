"""When the kernel process is killed nothing of its clusters is left a second later.

`make bench` does it two hundred times: `make bench BENCH_ARGS=kills`.
"""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import gone_within, processes_of
from tests.helpers import of_times, undisturbed, until
from tests.processes.kernel_kill import (
    EVERYTHING,
    SOON,
    Kill,
    at_random,
    fell,
    held_by,
    kill,
    killed,
    shared_memory,
)

# kernel, zygotes of the framework and of plain Python; three supervisors and their keepers, four
# tasks at least, four children
ALL = 17


def gone(framework: str, home: Path, *how: Any, **more: Any) -> tuple[Kill, Path]:
    """Kill a kernel process, up to three times until nothing is left a second later: a busy machine
    may take longer once. What is left for good fails at once. With the home of the last kill.
    """
    tried: list[tuple[Kill, Path]] = []

    def measured() -> None:
        own = home / f"kill{len(tried)}"
        tried.append((kill(framework, own, *how, **more), own))
        left = tried[-1][0].left
        assert math.inf not in left.values(), left
        with of_times():
            assert left == {}

    undisturbed(measured)
    return tried[-1]


@pytest.mark.parametrize("seconds", [0.05, 0.4, 0.8, 1.5])
def test_killed_while_starting(seconds: float, home: Path) -> None:
    gone("torch", home, "start-up", seconds)


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_killed_at_full_speed(framework: str, home: Path) -> None:
    done, _ = gone(framework, home, EVERYTHING)
    assert done.there >= ALL


def test_killed_while_all_its_processes_are_stopped(home: Path) -> None:
    gone("torch", home, stop=True)


@pytest.mark.nightly
def test_killed_at_random_moments_of_all_kinds(home: Path) -> None:
    moments = set()
    for n, (framework, moment, seconds) in enumerate(at_random(8)):
        _, own = gone(framework, home / str(n), moment, seconds)
        moments.add(fell(own))
    assert len(moments) > 2


SURVIVOR = """
import os, socket, time
s, parent = socket.create_server(('127.0.0.1', 0)), os.getppid()
while os.getppid() == parent:
    time.sleep(0.02)
time.sleep(2)
"""


def test_what_survives_its_parent_is_found_and_a_leak_told_from_what_is_slow(home: Path) -> None:
    (home / "tmp" / "forgotten").mkdir(parents=True)
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SURVIVOR!r}])"
    environment = {**os.environ, "LOCKSTEP_HOME": str(home)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    ours = {name for _, name in held_by([psutil.Process()])}

    def sockets() -> set[str]:
        found = {name for _, name in held_by(processes_of(str(home)))} - ours
        return {name for name in found if name.startswith("socket")}

    until(sockets, "the socket of its child")
    done = killed(parent, home, shared_memory(), patience=4.0)
    assert done.there == 2
    (process,) = (line for line in done.left if "create_server" in line)
    (socket,) = (line for line in done.left if line.startswith("socket:["))
    assert SOON < done.left[process] < math.inf and SOON < done.left[socket] < math.inf
    assert done.left[f"file {home / 'tmp' / 'forgotten'}"] == math.inf
    assert gone_within(str(home), 30.0) == []


def test_a_kernel_process_that_ends_by_itself_shows_nothing(home: Path) -> None:
    with pytest.raises(AssertionError, match="did you mean"):
        kill("tensorfow", home)
