"""The run directory: what it holds and how that is written."""

from __future__ import annotations

import functools
import os
import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cloudpickle
import numpy as np
import pytest

from course_lib import workloads
from course_lib.errors import LockstepError
from course_lib.record.rundir import RunDir, RunFacts
from course_lib.spec.run_spec import RunSpec
from course_lib.workloads import order

SPEC = RunSpec(strategy="work()", framework="python", workers=1)


def test_what_is_described_is_read_back(tmp_path: Path) -> None:
    secret = 42
    facts = RunFacts(
        origin=3.0, kernel=os.getpid(), devices={"worker:0": "cpu"}, services=("ps", "worker")
    )
    RunDir(tmp_path).describe(SPEC, facts, {"cores": 2}, {"worker": lambda: secret}, schedule=[1])
    again = RunDir(tmp_path)
    assert (again.spec, again.facts, again.schedule()) == (SPEC, facts, [1])
    work = again.programs()["worker"]
    assert callable(work) and work() == 42
    assert again.goes_on()
    with patch("psutil.pid_exists", return_value=False):
        assert not again.goes_on(), "whoever was to start it has gone"
    again.clear()
    assert not again.goes_on()


def test_the_weights_of_a_run_are_those_of_all_its_stages_in_their_order(tmp_path: Path) -> None:
    files = RunDir(tmp_path)
    with pytest.raises(LockstepError, match="no trained weights"):
        files.trained_weights()
    files.describe(RunSpec(strategy="work()", workers=2), RunFacts(origin=0.0), {}, {})
    files.leave_weights("worker:1", {"2.weight": np.ones((2, 3))})
    files.leave_weights("worker:0", {"0.weight": np.zeros(2), "0.bias": np.float32(3)})
    found = files.trained_weights()
    assert list(found) == ["0.weight", "0.bias", "2.weight"]
    assert found["2.weight"].shape == (2, 3) and found["0.bias"] == 3
    assert not [*tmp_path.rglob(".*")]
    with pytest.raises(LockstepError, match=r"trained digits: .*Workload"):
        workloads.find("digits_cnn")().trained(tmp_path)


def test_a_class_inside_a_function_finds_global_names_in_the_tasks() -> None:
    names: dict[str, Any] = {"__name__": "file_of_a_learner"}
    exec("from numbers import Number\ndef made():\n class A:\n  x = Number\n return A", names)
    again = pickle.loads(cloudpickle.dumps(names["made"]))
    assert again().x is names["Number"]


def test_a_cached_function_of_a_notebook_goes_to_the_tasks_and_one_of_a_module_by_its_name() -> (
    None
):
    @functools.lru_cache(maxsize=7)
    def sum_to(n: int) -> int:
        return n and n + sum_to(n - 1)

    again = pickle.loads(cloudpickle.dumps(sum_to))
    assert again(4) == 10 and again.cache_parameters() == {"maxsize": 7, "typed": False}
    assert pickle.loads(cloudpickle.dumps(order._orders)) is order._orders
