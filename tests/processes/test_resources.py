"""A machine that runs short or stands still: full disks, logs without end, many runs, a laptop that
sleeps.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from course_lib import start
from course_lib.errors import LockstepError, Unavailable
from course_lib.record import files
from course_lib.record.events import Metric, Phase
from tests.conftest import processes_of
from tests.helpers import until

FULL = """
import time
from course_lib import start

def records_on(task):
    for step in range(100_000):
        with task.phase("compute", step):
            time.sleep(0.001)

def keeps_much(task):
    return list(range(200_000))

run = start({work}, workers=2)
try:
    run.wait(60)
except Exception as error:
    print(type(error).__name__, error)
print(len(run.trace))
"""


@pytest.mark.parametrize("work", ["records_on", "keeps_much"])
def test_a_disk_that_is_full_ends_the_run_with_one_line(work: str, home: Path) -> None:
    """Files that may not grow beyond 20 kB stand for it: tasks inherit that limit."""
    limit = (20_000, resource.RLIM_INFINITY)
    done = subprocess.run(
        [sys.executable, "-c", FULL.format(work=work)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LOCKSTEP_HOME": str(home)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    said, *_, events = done.stdout.splitlines()
    assert done.stderr == "" and "File too large" in said
    if work == "records_on":
        assert said.startswith("Unavailable the record of the run is unavailable here: File too")
        assert str(home) in said and "MiB free" in said and "is kept there" in said
        assert int(events) > 100
    assert processes_of(str(home)) == []


def test_a_start_on_a_full_disk_is_refused_and_starts_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(Unavailable, match="No process was started; free some space"):
            start(lambda: 1, workers=2, run_dir=tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "run").exists()


def test_a_task_that_prints_without_end_does_not_fill_the_disk() -> None:
    def flood(task: Any) -> None:
        print("the beginning")
        line = "x" * 999
        until_there = files.MOST_LOG * 3
        for _ in range(until_there // 1000):
            print(line)
        print("the end")
        until(lambda: logs_of(task) < files.MOST_LOG, "the log to be cut")
        print("and on")

    def logs_of(task: Any) -> int:
        return sum(path.stat().st_size for path in task.files.logs(task.name))

    run = start(flood, workers=1).wait(60)
    path = run.files.logs("worker:0")[0]
    assert path.stat().st_size < files.MOST_LOG
    text = path.read_text()
    assert text.startswith("the beginning\n") and text.endswith("the end\nand on\n")
    assert "bytes were cut: a log keeps its first and last MiB" in text


def test_numbers_of_numpy_as_steps_and_phases_with_ones_own_names_lose_no_trace() -> None:
    def work(task: Any) -> None:
        import numpy as np

        for step in np.arange(5):
            with task.phase("tokenize", step):
                pass
            task.metric("loss", np.float32(1.0), step, step)

    trace = start(work, workers=1).wait(30).trace
    assert [p.step for p in trace.all(Phase, what="tokenize")] == [0, 1, 2, 3, 4]
    assert len(trace.all(Metric)) == 5


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere malloc is not glibc's")
def test_a_step_gets_the_memory_that_the_last_one_freed() -> None:
    def work() -> int:
        import numpy as np

        def steps(count: int) -> int:
            for _ in range(count):
                tensors = [np.ones(1 << 17) for _ in range(8)]  # 8 MiB
                del tensors
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        before = steps(3)
        return steps(10) - before

    (faults,) = start(work, workers=1).wait(30).values.values()
    assert faults < 2048, "Linux gave the 8 MiB to more than one step of ten"  # 4 KiB at a time


@pytest.mark.nightly
def test_runs_one_after_another_keep_no_descriptor_and_no_thread(count: int = 100) -> None:
    def work(task: Any) -> None:
        if task.spec.seed % 3 == 1:
            raise ValueError("on purpose")
        if task.spec.seed % 3 == 2:
            time.sleep(60)

    def one(seed: int) -> None:
        run = start(work, workers=1, seed=seed)
        if seed % 3 == 2:
            run.wait_running(30).stop()
        else:
            try:
                run.wait(30)
            except LockstepError:
                assert seed % 3 == 1

    one(0)
    here = psutil.Process()
    before = here.num_fds(), threading.active_count(), len(here.children(recursive=True))
    for seed in range(count):
        one(seed)
    until(lambda: threading.active_count() <= before[1], "threads to end")
    until(lambda: len(here.children(recursive=True)) <= before[2], "processes to end")
    assert here.num_fds() <= before[0]


SLEEPER = """
from course_lib import start
def work(task):
    import time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    for step in range(60):
        with task.phase("compute", step):
            time.sleep(0.05)
        with task.phase("reduce", step):
            dist.all_reduce(torch.ones(3))
    return step
run = start(work, framework="torch", workers=2).wait_running(60)
print("running", flush=True)
print(run.wait(60).result, run.refused)
"""


def test_a_machine_that_sleeps_and_wakes_goes_on_with_its_runs(home: Path) -> None:
    """All processes of a run, the kernel and the supervisor too, stand still together."""
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LOCKSTEP_HOME": str(home)},
    ) as kernel:
        assert kernel.stdout and kernel.stdout.readline() == "running\n"
        time.sleep(1)
        everyone = sorted(processes_of(str(home)), key=lambda process: process.pid)
        assert len(everyone) >= 5  # kernel, zygote, supervisor, two tasks
        for process in everyone:
            process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        for process in reversed(everyone):  # nobody wakes to find others asleep
            process.send_signal(signal.SIGCONT)
        said = kernel.stdout.read()
    assert said == "{'worker:0': 59, 'worker:1': 59} []\n"
