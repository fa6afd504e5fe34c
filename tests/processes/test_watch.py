"""`lockstep watch` beside a real run: it ends by itself when the run does, and says how the run
ended.
"""

import time

import pytest

from course_lib import start
from course_lib.cluster.task import Task
from course_lib.commands.watch import watch
from course_lib.record.saved import SavedRun
from tests.helpers import until


def work(task: Task) -> None:
    for n in range(10**6 if task.spec.steps == 200 else task.spec.steps):
        with task.phase("compute", n):
            time.sleep(0.02)
        task.metric("loss", 1 / (n + 1), n, (n + 1) * task.spec.batch)


def test_watching_ends_with_the_run_and_leaves_the_run_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with start(work, workers=2, steps=40, device_ms=1) as run:
        run.wait_running(30)
        watch(run.run_dir, timeout=60)
        assert run.wait(10).state == "finished"
    assert "is finished: step 40 of 40" in capsys.readouterr().out


@pytest.mark.parametrize("end, words", [("stop", "is stopped"), ("kill", "worker:1 failed")])
def test_watching_says_how_a_run_ended(
    end: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(work, workers=2) as run:
        run.wait_running(30)
        watching = SavedRun(run.run_dir)
        assert watching.state == "running"
        watch(run.run_dir, timeout=0.5)  # it goes on: who watches may leave
        assert run.state == watching.state == "running"
        run.stop() if end == "stop" else run.kill("worker:1")
        watch(run.run_dir, timeout=60)
        until(lambda: run.state == watching.state != "running", "both to say that it is over")
    assert words in capsys.readouterr().out
