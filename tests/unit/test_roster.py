"""The roster: a run's state from what happened to its tasks, without a process."""

import signal

import pytest

from course_lib.cluster.roster import Attempt, Roster, death


def roster(*said: tuple[str, str], tasks: tuple[str, ...] = ("worker:0", "worker:1")) -> Roster:
    it = Roster(tasks)
    for task, state in said:
        it.report(task, state)
    return it


def test_a_run_is_finished_when_all_workers_are_done() -> None:
    it = roster(("worker:0", "running"), ("worker:1", "done"))
    assert it.outcome is None
    it.report("worker:0", "done")
    assert it.outcome == "finished"


def test_a_parameter_server_never_holds_up_the_end() -> None:
    assert roster(("worker:0", "done"), tasks=("worker:0", "ps:0")).outcome == "finished"


def test_where_workers_serve_the_run_is_finished_when_the_chief_is_done() -> None:
    roster = Roster(["chief:0", "worker:0", "ps:0"], services=["ps", "worker"])
    for task in roster.states:
        roster.report(task, "running")
    roster.report("chief:0", "done")
    assert roster.outcome == "finished"
    assert roster.exited("worker:0", 0) is None


def test_one_failure_is_the_failure_of_the_run() -> None:
    assert roster(("worker:0", "failed")).outcome == "failed"


def test_a_process_that_goes_before_it_is_done_has_failed() -> None:
    it = roster(("worker:0", "running"))
    assert it.exited("worker:0", -signal.SIGSEGV) == "its process was killed by SIGSEGV"
    assert it.outcome == "failed"


def test_a_kill_that_was_asked_for_is_called_so() -> None:
    assert (
        roster().exited("worker:0", -signal.SIGKILL, asked="by run.kill()")
        == "it was killed by run.kill()"
    )


def test_going_after_the_end_is_no_failure() -> None:
    it = roster(("worker:0", "done"), ("worker:1", "done"))
    assert it.exited("worker:0", 0) is None
    assert not it.over
    assert it.exited("worker:1", 0) is None
    assert it.over
    assert it.outcome == "finished"


def test_what_is_killed_at_a_stop_is_no_failure() -> None:
    it = roster(("worker:0", "running"))
    it.stop()
    assert it.exited("worker:0", -signal.SIGKILL) is None
    assert it.outcome == "stopped"


def test_a_stop_after_the_end_changes_nothing() -> None:
    it = roster(("worker:0", "done"), ("worker:1", "done"))
    it.stop()
    assert it.outcome == "finished"


def test_those_killed_because_of_the_first_failure_are_not_failures() -> None:
    it = roster(("worker:0", "failed"), ("worker:1", "running"))
    it.dismiss("worker:1")
    assert it.exited("worker:1", -signal.SIGKILL) is None


def test_a_death_that_nobody_here_has_caused_is_told_after_a_complaint_about_it() -> None:
    it = roster(("worker:0", "failed"), ("worker:1", "running"))
    assert "killed by SIGKILL" in str(it.exited("worker:1", -signal.SIGKILL))
    assert it.outcome == "failed"


def test_an_exit_code_is_told_in_words() -> None:
    assert death(3) == "its process ended with exit code 3 before its function returned"


@pytest.mark.parametrize(("status", "name"), [(-9, "SIGKILL"), (-37, "signal 37")])
def test_a_signal_is_told_by_its_name_or_its_number(status: int, name: str) -> None:
    assert death(status).startswith(f"its process was killed by {name}")


# --- restarts ---

WORKERS = ("worker:0", "worker:1", "worker:2")


def recovering(how: str, restarts: int = 1, ps: int = 0) -> Roster:
    """A roster of three workers that run, and parameter servers."""
    tasks = [*WORKERS, *(f"ps:{i}" for i in range(ps))]
    it = Roster(tasks, ("ps",), how, restarts)
    for task in tasks:
        it.report(task, "running")
    return it


def test_together_all_end_before_any_starts_again() -> None:
    it = recovering("together")
    assert "SIGKILL" in str(it.exited("worker:1", -signal.SIGKILL))
    assert (it.outcome, it.ready, it.over) == (None, [], False)
    assert it.news == [(task, "restarting") for task in WORKERS]
    assert it.ending == {"worker:0", "worker:2"}
    assert not it.report("worker:0", "failed")  # a complaint
    assert it.exited("worker:0", 1) is None
    it.dismiss("worker:2")
    assert (it.exited("worker:2", 0), it.ready) == (None, list(WORKERS))
    for task in it.ready:
        it.started(task)
    assert it.states == dict.fromkeys(WORKERS, "starting")
    assert it.attempts == dict.fromkeys(WORKERS, 1)
    for task in WORKERS:
        it.report(task, "done")
    assert it.outcome == "finished"


def test_a_cause_that_is_noticed_after_the_complaints_is_told_before_a_restart() -> None:
    it = recovering("together")
    assert it.report("worker:0", "failed")
    assert "SIGKILL" in str(it.exited("worker:1", -signal.SIGKILL))
    assert it.outcome is None


def test_without_restarts_left_a_failure_is_that_of_the_run() -> None:
    it = recovering("together", restarts=1)
    for task in WORKERS:
        it.exited(task, -signal.SIGKILL)
    for task in it.ready:
        it.started(task)
    it.exited("worker:2", 3)
    assert (it.outcome, it.ready, it.ending) == ("failed", [], {"worker:0", "worker:1"})


def test_done_tasks_start_again_with_the_others() -> None:
    it = recovering("together")
    it.report("worker:0", "done")
    it.exited("worker:1", 1)
    assert ("worker:0", "restarting") in it.news
    assert it.outcome is None


def test_alone_the_others_go_on_while_a_worker_starts_again() -> None:
    it = recovering("alone")
    it.exited("worker:1", -signal.SIGKILL)
    assert (it.ready, it.ending, it.states["worker:0"]) == (["worker:1"], set(), "running")
    it.started("worker:1")
    it.report("worker:0", "done")
    it.report("worker:2", "done")
    assert it.outcome is None
    it.report("worker:1", "done")
    assert it.outcome == "finished"


def test_alone_the_others_go_on_without_a_worker_once_no_restarts_are_left() -> None:
    it = recovering("alone", restarts=0)
    it.report("worker:1", "failed")
    assert (it.news, it.ending) == ([("worker:1", "lost")], {"worker:1"})
    assert it.exited("worker:1", 1) is None
    it.exited("worker:0", -signal.SIGKILL)
    assert it.outcome is None
    it.report("worker:2", "done")
    assert it.outcome == "finished"


def test_the_last_worker_that_is_lost_ends_the_run() -> None:
    it = recovering("alone", restarts=0)
    for task in WORKERS:
        it.exited(task, -signal.SIGKILL)
    assert it.outcome == "failed"


def test_alone_the_others_go_on_without_a_worker_whose_node_is_gone() -> None:
    it = recovering("alone", restarts=3)
    assert it.exited("worker:1", 1, homeless=True)
    assert (it.states["worker:1"], it.ending, it.ready) == ("lost", set(), [])
    assert it.exited("worker:2", 1)
    assert it.ready == ["worker:2"]
    assert it.attempt == Attempt(1, together=0)


def test_a_restart_on_a_node_that_was_gone_already_does_not_count() -> None:
    it = recovering("together", restarts=1)
    assert it.exited("worker:0", 1)  # it has noticed before anybody knows of the node
    for task in WORKERS[1:]:
        assert it.exited(task, 1) is None
    for task in WORKERS:
        it.started(task)
    assert it.exited("worker:1", 1, homeless=True)
    assert it.outcome is None
    for task in ("worker:0", "worker:2"):
        assert it.exited(task, 1) is None
    assert it.ready == list(WORKERS)
    for task in WORKERS:
        it.started(task)
    assert it.exited("worker:1", 1)
    assert it.outcome == "failed"


def test_a_lost_server_starts_all_again_also_where_workers_do_so_alone() -> None:
    it = recovering("alone", ps=1)
    it.exited("ps:0", -signal.SIGKILL)
    assert it.ending == set(WORKERS)
    assert {task for task, _ in it.news} == {*WORKERS, "ps:0"}


@pytest.mark.parametrize("restarts", [0, 1])
def test_while_tasks_still_connect_none_can_do_without_a_worker(restarts: int) -> None:
    it = Roster(WORKERS, ("ps",), "alone", restarts, connected=lambda: False)
    it.exited("worker:1", -signal.SIGKILL)
    assert (it.outcome, it.ending) == (None if restarts else "failed", {"worker:0", "worker:2"})
    assert it.news == [(task, "restarting") for task in WORKERS * restarts]


def test_a_stop_ends_a_run_that_restarts() -> None:
    it = recovering("together")
    it.exited("worker:1", -signal.SIGKILL)
    it.stop()
    assert it.ending == {"worker:0", "worker:2"}
    for task in ("worker:0", "worker:2"):
        it.exited(task, -signal.SIGKILL)
    assert (it.outcome, it.over) == ("stopped", True)
