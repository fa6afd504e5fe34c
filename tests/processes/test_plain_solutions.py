"""The answers of exercises 03, 06, 11 and 12 are plain modules: they work without this library."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import plain_solutions

TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]


def succeeds(*command: str) -> None:
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=150)
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.sample(2)
@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_answers_work_in_processes_of_torch(tmp_path: Path, count: int) -> None:
    succeeds(plain_solutions.__file__, str(count), str(tmp_path / "store"))


def test_answers_work_under_torchrun(tmp_path: Path) -> None:
    how = ["--nproc-per-node", "4", "--log-dir", str(tmp_path)]  # else it leaves a folder
    succeeds(*TORCHRUN, *how, plain_solutions.__file__)
