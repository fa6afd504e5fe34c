"""When the kernel process is killed nothing of its clusters is left a second later.

`make bench` does it a hundred times.
"""

from pathlib import Path

import pytest

from tests.processes.kernel_kill import kill_after, survivors


@pytest.mark.parametrize("seconds", [0.05, 0.4, 0.8, 1.5])
def test_killed_while_starting(seconds: float, home: Path) -> None:
    assert kill_after(seconds, "torch", home) == []


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_killed_at_full_speed(framework: str, home: Path) -> None:
    assert kill_after(12, framework, home) == []


def test_killed_at_random_moments(home: Path) -> None:
    assert survivors(8, home) == []
