"""When the kernel process is killed nothing of its clusters is left a second later.

`make bench` does it two hundred times: `make bench BENCH_ARGS=kills`.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import gone_within
from tests.processes.kernel_kill import kill, survivors

# kernel, zygotes of the framework and of plain Python; three supervisors and their keepers, four
# tasks at least, four children
ALL = 17


@pytest.mark.parametrize("seconds", [0.05, 0.4, 0.8, 1.5])
def test_killed_while_starting(seconds: float, home: Path) -> None:
    assert kill("torch", home, seconds)[1] == []


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_killed_at_full_speed(framework: str, home: Path) -> None:
    there, left = kill(framework, home)
    assert there >= ALL
    assert left == []


def test_killed_while_all_its_processes_are_stopped(home: Path) -> None:
    assert kill("torch", home, stop=True)[1] == []


def test_killed_at_random_moments(home: Path) -> None:
    assert survivors(8, home) == []


def test_what_survives_its_parent_would_be_found(home: Path) -> None:
    environment = {**os.environ, "LOCKSTEP_HOME": str(home)}
    subprocess.run(["sh", "-c", "setsid sleep 5 &"], env=environment, check=True)
    assert any("sleep 5" in line for line in gone_within(str(home), 0.5))
    assert gone_within(str(home), 30.0) == []


def test_a_kernel_process_that_ends_by_itself_shows_nothing(home: Path) -> None:
    with pytest.raises(AssertionError, match="did you mean"):
        kill("tensorfow", home)
