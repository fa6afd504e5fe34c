"""Tasks that are started again: what is the same after it, what it costs, and what it leaves."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from course_lib import start
from course_lib.errors import StartTimeout, TaskFailed
from course_lib.record.digest import Digest
from course_lib.record.events import Lifecycle, Phase
from tests.helpers import until


def killed_once(task: Any) -> Any:
    """Worker 1 is killed in its first attempt; the others would wait for ever."""
    if task.attempt == 0:
        if task.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return task.attempt, task.spec.workers


def test_all_tasks_of_a_function_start_again_together(start_method: str) -> None:
    run = start(killed_once, workers=3, max_restarts=1).wait(60)
    assert run.result == {f"worker:{i}": (1, 3) for i in range(3)}
    states = [e.state for e in run.trace.all(Lifecycle, "worker:1")]
    assert states == ["starting", "failed", "restarting", "starting", "running", "done"] or (
        states == ["starting", "running", "failed", "restarting", "starting", "running", "done"]
    )
    assert {e.attempt for e in run.trace.all(Lifecycle, state="done")} == {1}
    assert "restarts: at most 1. When a task is lost, all are started again" in str(run.plan)


def test_when_no_restart_is_left_the_failure_of_the_last_attempt_is_told() -> None:
    def work(task: Any) -> None:
        if task.index == task.attempt:
            raise ValueError(f"attempt {task.attempt}")
        time.sleep(60)

    with pytest.raises(TaskFailed, match="ValueError: attempt 2") as caught:
        start(work, workers=3, max_restarts=2).wait(60)
    assert caught.value.task == "worker:2"


def test_a_restart_that_never_arrives_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_START", "spawn")
    monkeypatch.setattr("course_lib.cluster.run.START", 12)
    run = start(killed_once, workers=2, max_restarts=1)
    until(lambda: run.trace.all(Lifecycle, state="starting", attempt=1), "the restart")
    run.pause("worker:0")
    with pytest.raises(StartTimeout) as caught:
        run.wait(60)
    assert caught.value.waiting_for == ("worker:0",)


def test_nothing_of_an_attempt_is_left_in_the_next(tmp_path: Path) -> None:
    def work(task: Any) -> bool:
        mark = tmp_path / f"pid-{task.index}"
        if task.attempt == 0:
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            mark.write_text(str(child.pid))
            until((tmp_path / "pid-0").exists, "the other")
            until((tmp_path / "pid-1").exists, "the other")
            (task.files.meetings / "stale").mkdir(parents=True, exist_ok=True)
            if task.index:
                raise RuntimeError("on purpose")
            time.sleep(60)
        child_lives = psutil.pid_exists(int(mark.read_text()))
        return child_lives or (task.files.meetings / "stale").exists()

    run = start(work, workers=2, max_restarts=1).wait(60)
    assert run.result == {"worker:0": False, "worker:1": False}


def test_a_task_is_as_slow_after_a_restart_as_it_was_made_before() -> None:
    def work(task: Any) -> float:
        until(lambda: task.slow_factor == 3, "the order")
        if task.attempt == 0:
            time.sleep(60)
        return float(task.slow_factor)

    with start(work, workers=1, max_restarts=1).wait_running(30) as run:
        run.slow("worker:0", 3)
        until(lambda: run.trace.all(Lifecycle, state="slowed"), "the order")
        run.kill("worker:0")
        assert run.wait(60).result == {"worker:0": 3.0}


@pytest.mark.parametrize("all_reduce", ["native", "ring"])
def test_a_synchronous_run_starts_again_and_ends_as_if_nothing_had_happened(
    all_reduce: str,
) -> None:
    fields: dict[str, Any] = {"framework": "torch", "workers": 2, "steps": 40}
    fields |= {"all_reduce": all_reduce, "device_ms": 5}
    calm = start("multi_worker_mirrored", **fields).wait(120).result
    run = start("multi_worker_mirrored", **fields, max_restarts=1).wait_running(60)
    until(lambda: run.trace.all(Phase, "worker:1", what="apply", step=9), "ten steps")
    run.kill("worker:1")
    result = run.wait(120).result
    assert result["parameter_digest"] == calm["parameter_digest"]
    assert (result["restarts"], calm["restarts"], calm["steps_again"]) == (1, 0, 0)
    assert 10 <= result["steps_again"] <= 40
    assert result["staleness"]["updates"] == {"0": 40}
    digest = Digest(run.spec, run.trace).update(over=True)
    assert (digest.steps_done, len(digest.losses.values)) == (40, 40)


def test_a_run_that_restarts_can_be_stopped() -> None:
    def work(task: Any) -> None:
        if task.index:
            raise RuntimeError("again and again")
        time.sleep(60)

    with start(work, workers=2, max_restarts=100) as run:
        until(lambda: run.trace.all(Lifecycle, state="starting", attempt=2), "two restarts")
    assert run.state == "stopped"
    pids = [e.pid for e in run.trace.all(Lifecycle, state="starting")]
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
