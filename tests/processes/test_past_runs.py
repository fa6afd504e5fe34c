"""Runs that the end of their program stops, as `runs()` shows them later."""

import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import runs
from tests.helpers import until

SCRIPT = (
    'from course_lib import start\nrun = start("multi_worker_mirrored", framework="torch"{})\n{}'
)


@pytest.mark.parametrize(
    ("fields", "then", "state"),
    [("", "", "starting"), (", steps=100_000", "run.wait_running()", "running")],
)
def test_a_script_that_ends_before_its_run_says_so_and_the_run_counts_as_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: str, then: str, state: str
) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    program = [sys.executable, "-c", SCRIPT.format(fields, then)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout == ""
    assert f"multi_worker_mirrored is {state}" in ended.stderr
    assert "run.wait() waits for the end of a run" in ended.stderr
    until(lambda: [row.state for row in runs().rows] == ["stopped"], "its processes are gone")


def test_a_script_that_waits_says_nothing() -> None:
    program = [sys.executable, "-c", SCRIPT.format(", steps=5", "run.wait()")]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
