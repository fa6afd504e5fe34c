"""The run directory: what is cleared away, and what is not."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from course_lib import workloads
from course_lib.errors import LockstepError
from course_lib.record import rundir, weights
from course_lib.record.events import Lifecycle, to_line
from course_lib.record.rundir import KEEP, RunDir, RunFacts
from course_lib.spec import RunSpec

SPEC = RunSpec(strategy="custom", framework="python", workers=1)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A home of its own, with one run more than are kept, all of them two hours old."""
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    for number in range(KEEP + 1):
        path = tmp_path / "runs" / f"20200101-{number:06}-custom-x"
        path.mkdir(parents=True)
        two_hours_old(path)
    yield tmp_path / "runs"


def two_hours_old(path: Path) -> None:
    os.utime(path, (time.time() - 7200,) * 2)


def began(path: Path, pid: int) -> None:
    """Make an old directory that of a run whose worker is the process `pid`."""
    files = RunDir(path)
    files.describe(SPEC, RunFacts(origin=0.0), {}, {"worker": "builtins:print"})
    files.lifecycle.write_bytes(to_line(Lifecycle("worker:0", "starting", "", 1.0, pid=pid)))
    two_hours_old(path)


def test_the_oldest_run_makes_room_for_a_new_one(runs: Path) -> None:
    oldest = min(runs.iterdir())
    new = RunDir.create(SPEC).path
    assert not oldest.exists() and new.exists() and len(list(runs.iterdir())) == KEEP + 1


def test_a_run_that_goes_on_is_not_cleared_away_however_old_it_is(runs: Path) -> None:
    oldest = min(runs.iterdir())
    began(oldest, os.getpid())
    RunDir.create(SPEC)
    assert oldest.exists()


def test_one_whose_processes_are_gone_is(runs: Path) -> None:
    oldest = min(runs.iterdir())
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    began(oldest, process.pid)
    RunDir.create(SPEC)
    assert not oldest.exists()


def test_what_another_process_clears_at_the_same_time_is_no_trouble(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rundir._made

    def clear_first(path: Path) -> float:
        path.rmdir()
        return real(path)

    monkeypatch.setattr(rundir, "_made", clear_first)
    assert RunDir.create(SPEC).path.exists()


def test_what_is_described_is_read_back(tmp_path: Path) -> None:
    secret = 42
    facts = RunFacts(origin=3.0, devices={"worker:0": "cpu"}, services=("ps", "worker"))
    RunDir(tmp_path).describe(SPEC, facts, {"cores": 2}, {"worker": lambda: secret}, schedule=[1])
    again = RunDir(tmp_path)
    assert (again.spec, again.facts, again.schedule()) == (SPEC, facts, [1])
    work = again.programs()["worker"]
    assert callable(work) and work() == 42
    assert again.goes_on()
    again.clear()
    assert not again.goes_on()


def test_the_weights_of_a_run_are_those_of_all_its_stages_in_their_order(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    with pytest.raises(LockstepError, match="left no trained weights: it has keep_model=False"):
        weights.found(files)
    files.describe(RunSpec(strategy="custom", workers=2), RunFacts(origin=0.0), {}, {})
    weights.leave(files, "worker:1", {"2.weight": np.ones((2, 3))})
    weights.leave(files, "worker:0", {"0.weight": np.zeros(2), "0.bias": np.float32(3)})
    found = weights.found(files)
    assert list(found) == ["0.weight", "0.bias", "2.weight"]
    assert found["2.weight"].shape == (2, 3) and found["0.bias"] == 3
    assert not [*tmp_path.rglob("*.draft")]
    with pytest.raises(LockstepError, match="trained digits: take its Workload, not this"):
        workloads.find("digits_cnn")().trained(tmp_path)


def test_a_class_inside_a_function_finds_global_names_in_the_tasks() -> None:
    names: dict[str, Any] = {"__name__": "file_of_a_learner"}
    exec("from numbers import Number\ndef made():\n class A:\n  x = Number\n return A", names)
    again = pickle.loads(cloudpickle.dumps(names["made"]))
    assert again().x is names["Number"]
