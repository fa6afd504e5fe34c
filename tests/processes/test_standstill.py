"""A run that stands still: who holds it up is named within moments, and nobody is who goes on."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from course_lib import Run, start
from course_lib.cluster.task import Task
from course_lib.errors import Stalled, TaskFailed
from course_lib.record.events import Lifecycle, Phase
from tests import own_collectives
from tests.helpers import until

SOON = 15.0  # seconds: the frameworks themselves take 10 s or 60 s, or never say a word


def pid_of(run: Run, task: str) -> int:
    return run.trace.all(Lifecycle, task, state="starting")[-1].pid


def stalled(run: Run) -> Stalled:
    """What `wait` raises, soon and not because its time is over."""
    began = time.monotonic()
    with pytest.raises(Stalled) as caught:
        run.wait(60)
    assert time.monotonic() - began < SOON
    assert caught.value.standing and run.state == "running"
    return caught.value


def steps_done(run: Run) -> int:
    return max((p.step for p in run.trace.all(Phase)), default=-1)


@pytest.mark.parametrize(
    ("strategy", "framework", "victim"),
    [
        ("multi_worker_mirrored", "torch", "worker:1"),
        ("multi_worker_mirrored", "tensorflow", "worker:0"),
        ("parameter_server", "torch", "ps:0"),
        ("sync_parameter_server", "torch", "worker:1"),
        ("parameter_server", "tensorflow", "chief:0"),
        ("sync_parameter_server", "tensorflow", "ps:0"),
        ("sync_parameter_server", "tensorflow", "worker:1"),
    ],
)
def test_a_task_that_is_stopped_from_outside_is_named_and_the_run_goes_on_when_it_does(
    strategy: str, framework: str, victim: str
) -> None:
    fields: dict[str, Any] = {"workers": 2, "steps": 1_000_000, "framework": framework}
    with start(strategy, **fields) as run:
        until(lambda: steps_done(run) > 20, "some steps")
        os.kill(pid_of(run, victim), signal.SIGSTOP)
        error = stalled(run)
        assert next(iter(error.waiting_for)) == victim
        assert f"{victim} is paused (run.resume('{victim}') lets it go on)" in str(error)
        others = [task for task in run.spec.tasks if task.startswith(("chief", "worker"))]
        waiting = [task for task in others if task != victim and task in error.waiting_for]
        assert all(error.waiting_for[task].startswith(f"waits for {victim}") for task in waiting)
        assert waiting or victim == "chief:0"
        os.kill(pid_of(run, victim), signal.SIGCONT)
        before = steps_done(run)
        until(lambda: steps_done(run) > before + 5, "steps after the pause")
        assert run.standstill() is None


def test_a_supervisor_that_is_stopped_is_named() -> None:
    with start(lambda task: time.sleep(600), workers=2) as run:
        run.wait_running(60)
        supervisor = psutil.Process(pid_of(run, "worker:0")).parent()
        assert supervisor
        supervisor.suspend()
        try:
            error = stalled(run)
        finally:
            supervisor.resume()
        says = rf"the supervisor is paused (kill -CONT {supervisor.pid} lets it go on)"
        assert says in str(error)


def test_stragglers_and_long_hiccups_are_no_standstill() -> None:
    fields: dict[str, Any] = {"jitter": "one_in:2:1300ms", "slow": {"worker:1": 3}, "steps": 6}
    run = start("multi_worker_mirrored", framework="torch", workers=2, device_ms=5, **fields)
    run.wait(60)
    assert run.state == "finished"


def test_a_straggler_beside_a_paused_task_that_others_do_not_need_is_no_standstill() -> None:
    fields: dict[str, Any] = {"workers": 3, "steps": 1_000_000, "device_ms": 5}
    with start("parameter_server", framework="torch", **fields) as run:
        until(lambda: steps_done(run) > 20, "some steps")
        run.pause("worker:2")
        with pytest.raises(Stalled) as caught:
            run.wait(3)
        assert not caught.value.standing


def endless(function: Callable[[Task], Any]) -> Stalled | TaskFailed:
    """What a run of three ranks that can never end is ended with."""
    with start(function, framework="torch", workers=3) as run:
        began = time.monotonic()
        with pytest.raises((Stalled, TaskFailed)) as caught:
            run.wait(60)
        assert time.monotonic() - began < SOON
    return caught.value


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            own_collectives.other_shape,
            "worker:2 calls all_reduce of (10, 4) float32 at own_collectives.py:{} as number 2 of"
            " its group; worker:0 and worker:1 call all_reduce of (10, 5) float32 at"
            " own_collectives.py:{} instead",
        ),
    ],
)
def test_calls_that_do_not_fit_are_named_with_rank_shape_and_line(
    function: Callable[[Task], Any], says: str
) -> None:
    assert says in str(endless(function))
