"""The roster: a run's state from what happened to its tasks, without a process."""

import signal

from course_lib.cluster.supervisor import Roster, death


def roster(*said: tuple[str, str], tasks: tuple[str, ...] = ("worker:0", "worker:1")) -> Roster:
    it = Roster(tasks)
    for task, state in said:
        it.said(task, state)
    return it


def test_a_run_is_finished_when_all_workers_are_done() -> None:
    it = roster(("worker:0", "running"), ("worker:1", "done"))
    assert it.outcome is None
    it.said("worker:0", "done")
    assert it.outcome == "finished"


def test_a_parameter_server_never_holds_up_the_end() -> None:
    assert roster(("worker:0", "done"), tasks=("worker:0", "ps:0")).outcome == "finished"


def test_where_workers_serve_the_run_is_finished_when_the_chief_is_done() -> None:
    roster = Roster(["chief:0", "worker:0", "ps:0"], services=["ps", "worker"])
    for task in roster.states:
        roster.said(task, "running")
    roster.said("chief:0", "done")
    assert roster.outcome == "finished"
    assert roster.gone("worker:0", 0) is None


def test_one_failure_is_the_failure_of_the_run() -> None:
    assert roster(("worker:0", "failed")).outcome == "failed"


def test_a_process_that_goes_before_it_is_done_has_failed() -> None:
    it = roster(("worker:0", "running"))
    assert it.gone("worker:0", -signal.SIGSEGV) == "its process was killed by SIGSEGV"
    assert it.outcome == "failed"


def test_a_kill_that_was_asked_for_is_called_so() -> None:
    assert (
        roster().gone("worker:0", -signal.SIGKILL, asked="by kill()") == "it was killed by kill()"
    )


def test_going_after_the_end_is_no_failure() -> None:
    it = roster(("worker:0", "done"), ("worker:1", "done"))
    assert it.gone("worker:0", 0) is None
    assert not it.over
    assert it.gone("worker:1", 0) is None
    assert it.over
    assert it.outcome == "finished"


def test_what_is_killed_at_a_stop_is_no_failure() -> None:
    it = roster(("worker:0", "running"))
    it.stop()
    assert it.gone("worker:0", -signal.SIGKILL) is None
    assert it.outcome == "stopped"


def test_a_stop_after_the_end_changes_nothing() -> None:
    it = roster(("worker:0", "done"), ("worker:1", "done"))
    it.stop()
    assert it.outcome == "finished"


def test_those_killed_because_of_the_first_failure_are_not_failures() -> None:
    it = roster(("worker:0", "failed"), ("worker:1", "running"))
    assert it.gone("worker:1", -signal.SIGKILL) is None


def test_an_exit_code_is_told_in_words() -> None:
    assert death(3) == "its process ended with exit code 3 before its function returned"
