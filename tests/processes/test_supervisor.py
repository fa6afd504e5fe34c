"""What becomes of a run when its own machinery is killed, stopped or short of something; and who is
named when a task is killed from outside.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from course_lib import Run, start
from course_lib.cluster import nursery
from course_lib.errors import SupervisorLost, TaskFailed
from course_lib.record.events import Lifecycle, Phase
from course_lib.record.rundir import RunDir, RunFacts
from course_lib.spec.run_spec import RunSpec
from tests.helpers import until

DAEMON = """
import os, sys, time
if os.fork() or os.setsid() and os.fork():
    os._exit(0)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


def with_daemon(task: Any) -> None:
    """A task with a child that has left its session and its parent."""
    mark = task.run_dir / "daemon"
    subprocess.run([sys.executable, "-c", DAEMON, str(mark)], check=True)
    until(lambda: mark.exists() and mark.read_text(), "the daemon")
    (task.run_dir / "ready").touch()
    if task.spec.seed:
        return
    time.sleep(600)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def pids_of(run: Run) -> list[int]:
    """A run's tasks and the daemon of one of them."""
    daemon = int((run.run_dir / "daemon").read_text())
    return [e.pid for e in run.trace.all(Lifecycle, state="starting")] + [daemon]


def supervisor_of(run: Run) -> psutil.Process:
    [first, *_] = run.trace.all(Lifecycle, state="starting")
    parent = psutil.Process(first.pid).parent()
    assert parent is not None
    return parent


def test_a_daemon_that_a_task_has_started_ends_with_the_run(start_method: str) -> None:
    run = start(with_daemon, workers=1, seed=1).wait(60)
    assert [pid for pid in pids_of(run) if alive(pid)] == []


def test_a_supervisor_that_is_killed_leaves_nothing_and_is_named(start_method: str) -> None:
    run = start(with_daemon, workers=1).wait_running(60)
    until((run.run_dir / "ready").exists, "the daemon")
    there = pids_of(run)
    supervisor_of(run).kill()
    with pytest.raises(SupervisorLost, match=r"was killed by SIGKILL .* Start the run again"):
        run.wait(30)
    until(lambda: not any(map(alive, there)), "the end of all")
    assert not any(run.run_dir.glob("tasks/*/tmp"))


def test_a_supervisor_that_is_stopped_goes_on() -> None:
    with start(lambda: time.sleep(600), workers=2).wait_running(60) as run:
        supervisor_of(run).suspend()
    assert run.state == "stopped"


def test_a_supervisor_starts_no_task_once_the_kernel_process_is_gone(tmp_path: Path) -> None:
    """Of a temporary run it leaves nothing."""
    spec, work = RunSpec(strategy="work()", framework="python"), {"worker": "time:time"}
    runs = [RunDir(tmp_path / name) for name in ("usual", "temporary")]
    for files, temporary in zip(runs, (False, True), strict=True):
        files.path.mkdir()
        files.describe(spec, RunFacts(origin=0.0, temporary=temporary), {}, work)
        channel = nursery.supervisor("python", "spawn", 10.0)
        channel.post(start=str(files.path))
        channel.close()  # as the kernel process's end would, before the supervisor has read it
    usual, temporary = runs
    until(lambda: usual.lifecycle.exists() and not usual.goes_on(), "the end of the first")
    assert usual.lifecycle.read_bytes() == b""
    until(lambda: not temporary.path.exists(), "the end of the second")


def test_a_keeper_that_is_killed_costs_nothing() -> None:
    def work(task: Any) -> int:
        until((task.run_dir / "go").exists, "the kill")
        return 1

    run = start(work, workers=1).wait_running(60)
    keeper = supervisor_of(run).parent()
    assert keeper is not None
    keeper.kill()
    (run.run_dir / "go").touch()
    assert run.wait(30).result == {"worker:0": 1}


def test_any_number_of_orders_to_a_task_that_is_stopped_leave_the_supervisor_free() -> None:
    def work(task: Any) -> float:
        until(lambda: task.slow_factor == 7, "the last order", every=0.005)
        return float(task.slow_factor)

    run = start(work, workers=1).wait_running(60)
    run.pause("worker:0")
    for i in range(1500):
        run.slow("worker:0", 2 + i % 5)
    run.slow("worker:0", 7)
    run.resume("worker:0")
    assert run.wait(30).result == {"worker:0": 7.0}


@pytest.mark.parametrize(
    ("framework", "all_reduce", "hosts"),
    [("torch", "native", 1), ("torch", "hierarchical", 2), ("torch", "ring", 1)],
    ids=["gloo", "hierarchical", "ring"],
)
def test_a_worker_that_is_killed_from_outside_is_named(
    framework: str, all_reduce: str, hosts: int
) -> None:
    """`LOCKSTEP_KILLS=20` kills as often; usually two have to do."""
    dice = random.Random(all_reduce)
    for _ in range(int(os.environ.get("LOCKSTEP_KILLS", "2"))):
        fields: dict[str, Any] = {"all_reduce": all_reduce, "hosts": hosts}
        run = start(
            "multi_worker_mirrored", framework=framework, workers=4, steps=100_000, **fields
        ).wait_running(60)
        first_steps(run)
        time.sleep(dice.uniform(0, 0.1))
        victim = dice.choice(run.spec.tasks)
        [pid] = [e.pid for e in run.trace.all(Lifecycle, victim, state="starting")]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TaskFailed, match="killed by SIGKILL") as caught:
            run.wait(30)
        assert caught.value.task == victim


def first_steps(run: Run) -> None:
    until(lambda: run.trace.all(Phase, what="apply", step=3), "the first steps", every=0.002)


SHORT = """
import resource, sys
from course_lib import start
from course_lib.errors import LockstepError

start(lambda: 1, workers=1).wait(60)  # so that there is a zygote
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 20000))
try:
    print(start(lambda: 1, workers=4).wait(60).result)
except LockstepError as error:
    print(type(error).__name__, str(error).splitlines()[0])
"""


@pytest.mark.parametrize("descriptors", [12, 14, 16, 18])
def test_a_notebook_with_few_descriptors_left_is_told_so(descriptors: int, home: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", SHORT, str(descriptors)],
        env={**os.environ, "LOCKSTEP_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "Traceback" not in out.stderr
    assert "worker:3" in out.stdout or "Too many open files" in out.stdout, out
