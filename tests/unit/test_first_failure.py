"""The first failure of a run: a cause comes before what it causes, whichever is told first."""

import itertools
from pathlib import Path

import pytest

from course_lib.record.events import Lifecycle, to_line
from course_lib.record.rundir import RunDir, RunFacts, TaskError
from course_lib.record.saved import SavedRun, first_failure
from course_lib.spec.run_spec import RunSpec

KILLED = "its process was killed by SIGKILL (the system may have run out of memory)"
RESET = "RuntimeError: Connection reset by peer"


def run_of(path: Path, *happened: Lifecycle | TaskError) -> SavedRun:
    """A run of three workers to which these things happened."""
    path.mkdir(exist_ok=True)
    files = RunDir(path)
    spec = RunSpec(strategy="work()", framework="python", workers=3).complete()
    files.describe(spec, RunFacts(origin=0.0), {}, {})
    births = [Lifecycle(task, "starting", "", 0.1) for task in spec.tasks]
    for event in happened:
        if isinstance(event, TaskError):
            files.leave_error(event)
    lives = [event for event in happened if isinstance(event, Lifecycle)]
    files.lifecycle.write_bytes(b"".join(map(to_line, (*births, *lives))))
    files.clear()
    return SavedRun(path)


def error(task: str, at: float, reason: str = RESET, echo: bool = True) -> TaskError:
    return TaskError(task=task, step=7, reason=reason, traceback="in line 1", at=at, echo=echo)


def blamed(run: SavedRun) -> str:
    return first_failure(run, run.digest).task


@pytest.mark.parametrize("order", list(itertools.permutations((2.0, 2.1, 3.2))))
def test_a_death_comes_before_the_complaints_about_it_whenever_it_is_noticed(
    order: tuple[float, ...], tmp_path: Path
) -> None:
    noticed, *complained = order
    run = run_of(
        tmp_path,
        Lifecycle("worker:1", "failed", KILLED, noticed),
        error("worker:0", complained[0]),
        error("worker:2", complained[1]),
    )
    assert blamed(run) == "worker:1"


def test_an_error_of_its_own_comes_before_those_that_tell_of_a_lost_peer(tmp_path: Path) -> None:
    run = run_of(
        tmp_path, error("worker:0", 2.0), error("worker:2", 2.3, "ValueError: wrong", echo=False)
    )
    assert blamed(run) == "worker:2"


def test_where_all_only_lost_a_peer_the_first_of_them_is_named(tmp_path: Path) -> None:
    assert blamed(run_of(tmp_path, error("worker:1", 2.0), error("worker:0", 2.3))) == "worker:1"


def test_a_task_that_was_told_to_leave_failed_as_planned_in_the_step_of_the_plan(
    tmp_path: Path,
) -> None:
    plan = "exit worker:1 at step 40"
    run = run_of(
        tmp_path,
        Lifecycle("worker:1", "left", f"as planned ({plan})", 2.0, fault=plan),
        Lifecycle("worker:1", "failed", "its process ended with exit code 0", 2.1),
    )
    failure = first_failure(run, run.digest)
    assert failure.step == 40
    assert failure.reason == f"its process ended with exit code 0, as planned ({plan})"


def test_what_came_before_a_restart_did_not_end_the_run(tmp_path: Path) -> None:
    again = [Lifecycle(f"worker:{i}", "starting", "", 2.2, attempt=1) for i in range(3)]
    run = run_of(
        tmp_path,
        Lifecycle("worker:1", "killed", "it was killed by run.kill()", 2.0),
        error("worker:0", 2.4, "TimeoutError: no answer", echo=False),
        *again,
        Lifecycle("worker:2", "failed", KILLED, 4.0, attempt=1),
    )
    assert blamed(run) == "worker:2"
    assert run.state == "failed"


def test_a_task_that_the_run_went_on_without_did_not_end_it(tmp_path: Path) -> None:
    lost = Lifecycle("worker:1", "failed", KILLED, 2.0), Lifecycle("worker:1", "lost", "", 2.1)
    done = [Lifecycle(f"worker:{i}", "done", "", 3.0) for i in (0, 2)]
    assert run_of(tmp_path / "finished", *lost, *done).state == "finished"
    failed = run_of(tmp_path / "failed", *lost, Lifecycle("worker:2", "failed", KILLED, 4.0))
    assert (blamed(failed), failed.state) == ("worker:2", "failed")


def test_an_error_may_come_before_it_is_told_that_its_task_has_begun(tmp_path: Path) -> None:
    assert blamed(run_of(tmp_path, error("worker:1", 0.05, "ValueError: boom"))) == "worker:1"
