"""Parameter servers in PyTorch: who applies what, who waits for whom and how stale gradients
are, from the traces of runs.
"""

import functools
import importlib
import itertools
import statistics
from collections import Counter
from typing import Any

import numpy as np
import pytest

from course_lib import Trace, start
from course_lib.errors import SpecError, TaskFailed
from course_lib.record.events import Dropped, Metric, Phase, Update
from course_lib.strategies.facts.parameter_servers import (
    BACKUP_WORKERS,
    PARAMETER_SERVER,
    STALE_SYNCHRONOUS,
    SYNC_PARAMETER_SERVER,
)
from tests.helpers import (
    SUM_ORDER,
    compares_times,
    keeping_weights,
    of_times,
    spec_for,
    until,
    updates,
    usual,
)

ALL = (PARAMETER_SERVER, SYNC_PARAMETER_SERVER, STALE_SYNCHRONOUS, BACKUP_WORKERS)
NAMES = [strategy.name for strategy in ALL]
PACKAGE = "course_lib.strategies.torch"

# long enough beside what two cores compute for four workers
WORKERS, STEPS, BATCH, DEVICE_MS = 4, 16, 120, 40
STRAGGLER = {"worker:3": 4.0}


@functools.cache
def finished(name: str, slow: bool = False, **fields: Any) -> tuple[dict[str, Any], Trace]:
    """Summary and trace of a run of four workers with emulated devices, one of them four times
    slower or not.
    """
    usual = {"workers": WORKERS, "steps": STEPS, "global_batch": BATCH, "device_ms": DEVICE_MS}
    with start(name, framework="torch", slow=STRAGGLER if slow else {}, **usual | fields) as run:
        return run.wait(60).result, run.trace


@functools.cache
def learned(name: str) -> tuple[dict[str, Any], Trace]:
    """Summary and trace of a short run of two workers and two parameter servers as fast as they
    can.
    """
    with start(name, framework="torch", workers=2, ps=2, steps=50, global_batch=128) as run:
        return run.wait(60).result, run.trace


def pushes(trace: Trace, task: str) -> list[Update]:
    """The updates that a worker's pushes brought about, without those that another's push of the
    same step may have brought about too.
    """
    spans = [p for p in trace.all(Phase, what="reduce")]
    found = []
    for u in updates(trace):
        who = {p.task for p in spans if p.step == u.step and p.start <= u.at <= p.end}
        if who == {task}:
            found.append(u)
    return found


def apart(times: list[float]) -> float:
    """Seconds that usually lie between one and the next."""
    return statistics.median(b - a for a, b in itertools.pairwise(times))


# --- what all of them do ---


@pytest.mark.parametrize("name", NAMES)
def test_each_learns_and_all_workers_end_with_the_parameters_of_the_servers(name: str) -> None:
    result, trace = learned(name)
    losses = [m.value for m in sorted(trace.all(Metric, name="loss"), key=lambda m: m.samples)]
    assert result["final_loss"] < losses[0] / 2
    assert losses[-1] == result["final_loss"]
    assert set(result["parameter_digest"]) == {"worker:0", "worker:1"}
    assert len(set(result["parameter_digest"].values())) == 1
    assert result["test_accuracy"] > 0.8


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_balances_on_every_shard_and_uses_every_batch_once(name: str) -> None:
    for result, trace in (learned(name), finished(name, slow=True)):
        steps, servers = result["steps"], [task for task in trace.tasks if task.startswith("ps:")]
        applied = {ps: sum(u.gradients for u in updates(trace, ps)) for ps in servers}
        computed = len(trace.all(Phase, what="compute"))
        assert sum(applied.values()) + len(trace.all(Dropped)) == computed * len(servers)
        assert len(set(applied.values())) == 1
        for ps in servers:
            assert [u.written for u in updates(trace, ps)] == list(
                range(1, len(updates(trace, ps)) + 1)
            )
            per_step = Counter[int]()
            for u in updates(trace, ps):
                per_step[u.step] += u.gradients
            assert per_step == dict.fromkeys(range(steps), applied[ps] // steps)
        assert (
            max(m.samples for m in trace.all(Metric, name="loss")) == steps * result["global_batch"]
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_servers_apply_the_updates_and_hold_equal_shares_of_the_bytes(name: str) -> None:
    result, trace = learned(name)
    assert result["update_applied_by"] == ["ps:0/cpu", "ps:1/cpu"]
    assert {(u.task, u.variables, u.device) for u in trace.all(Update)} == {
        ("ps:0", "shard 0", "cpu"),
        ("ps:1", "shard 1", "cpu"),
    }
    held = list(result["variables_on"].values())
    assert set(result["variables_on"]) == {"ps:0/cpu", "ps:1/cpu"}
    assert sum(held) == 4 * result["parameters"]
    assert max(held) - min(held) <= 4


def test_a_killed_server_or_worker_ends_the_run_with_an_error_that_names_it() -> None:
    for name, victim in (("parameter_server", "ps:0"), ("sync_parameter_server", "worker:1")):
        with start(name, framework="torch", workers=2, steps=100_000) as run:
            until(lambda: len(run.trace.all(Update)) >= 10, "ten updates")
            run.kill(victim)
            with pytest.raises(TaskFailed) as caught:
                run.wait(30)
            assert caught.value.task == victim


def test_who_waits_in_vain_says_for_whom() -> None:
    def impatient(task):
        server, strategy = (
            importlib.import_module(f"{PACKAGE}.{module}")
            for module in ("server", "sync_parameter_server")
        )
        server.PATIENCE = 2.0
        return strategy.worker(task)

    def serve(task):
        return importlib.import_module(f"{PACKAGE}.sync_parameter_server").ps(task)

    with start(
        {"worker": impatient, "ps": serve}, framework="torch", workers=2, ps=1, steps=100_000
    ) as run:
        until(lambda: len(run.trace.all(Update)) >= 10, "ten updates")
        run.pause("worker:1")
        until(lambda: run.state == "failed", "the patience of worker:0 to end")
        says = (
            r"worker:1 failed.*: it was paused.*"
            r"ps:0 did not answer the push of step \d+ by worker:0 in 2 s"
        )
        with pytest.raises(TaskFailed, match=says):
            run.wait(30)


def test_what_cannot_be_is_refused_before_it_starts() -> None:
    with pytest.raises(SpecError, match="backups=2: at most 1 of 2 workers"):
        spec_for("backup_workers", framework="torch", workers=2, backups=2)
    with pytest.raises(SpecError, match="slow='ps:0': only workers can be slowed"):
        spec_for("parameter_server", framework="torch", slow={"ps:0": 2.0})
    with pytest.raises(SpecError, match="ps=0: stale_synchronous with torch needs at least one"):
        spec_for("stale_synchronous", framework="torch", ps=0)


# --- sync_parameter_server ---


@functools.cache
def with_weights(name: str, workers: int, ps: int, workload: str) -> tuple[dict[str, Any], Trace]:
    """What each task returned, with the weights it ended with, and the trace."""

    worker = keeping_weights(f"{PACKAGE}.{name}:worker")

    def serve(task):
        importlib.import_module(f"{PACKAGE}.{name}").ps(task)

    programs = {"worker": worker, **({"ps": serve} if ps else {})}
    with start(
        programs,
        framework="torch",
        workers=workers,
        ps=ps,
        workload=workload,
        global_batch=96,
        steps=30,
    ) as run:
        return run.wait(60).result, run.trace


@pytest.mark.parametrize(("workers", "ps", "workload"), [(2, 1, "digits"), (3, 2, "digits_cnn")])
def test_synchronous_servers_learn_what_one_device_learns(
    workers: int, ps: int, workload: str
) -> None:
    alone, alone_trace = with_weights("one_device", 1, 0, workload)
    together, trace = with_weights("sync_parameter_server", workers, ps, workload)
    for k in range(workers):
        losses, expected = (
            [m.value for m in t.all(Metric, f"worker:{i}", name="loss")]
            for t, i in ((trace, k), (alone_trace, 0))
        )
        np.testing.assert_allclose(losses, expected, **SUM_ORDER)
        for ours, theirs in zip(
            together[f"worker:{k}"]["weights"], alone["worker:0"]["weights"], strict=True
        ):
            np.testing.assert_allclose(ours, theirs, **SUM_ORDER)
    for k in range(ps):
        made = [
            (u.step, u.read, u.written, u.staleness, u.gradients) for u in updates(trace, f"ps:{k}")
        ]
        assert made == [(n, n, n + 1, 0, workers) for n in range(30)]


# --- parameter_server ---


@compares_times(finished)
def test_asynchronous_gradients_are_as_stale_as_there_are_other_workers() -> None:
    result, trace = finished("parameter_server")
    stale = [u.staleness for u in updates(trace)]
    with of_times():
        # what comes between an answer and the next pull is in neither
        assert (WORKERS - 1) / 2 < statistics.mean(stale) <= WORKERS - 1
    assert result["staleness"]["mean"] == pytest.approx(statistics.mean(stale), abs=1e-4)
    assert not trace.all(Phase, what="wait")


@compares_times(finished)
def test_the_stale_gradients_are_those_of_the_straggler() -> None:
    _, trace = finished("parameter_server", slow=True)
    late = [u.staleness for u in pushes(trace, "worker:3")]
    others = [u.staleness for k in range(3) for u in pushes(trace, f"worker:{k}")]
    with of_times():
        assert statistics.median(late) > max(2 * statistics.median(others), WORKERS - 1)


# --- stale_synchronous ---


@pytest.mark.parametrize("bound", [0, 2])
def test_no_worker_begins_a_step_further_ahead_of_the_slowest_than_the_bound(bound: int) -> None:
    _, trace = finished(
        "stale_synchronous", slow=True, **({} if bound == 2 else {"staleness_bound": bound})
    )  # 2 is the default
    applied = updates(trace)
    lead = []
    for p in trace.all(Phase, what="read"):
        due = [u for u in applied if u.step < p.step - bound and u.at <= p.start]
        # all gradients of all steps before, of every worker
        assert len(due) == WORKERS * max(0, p.step - bound)
        done = Counter(u.step for u in applied if u.at <= p.start)
        lead.append(p.step - next(n for n in itertools.count() if done[n] < WORKERS))
    assert max(lead) == bound  # and the fast ones do use it
    assert max(u.staleness for u in applied) <= (WORKERS - 1) * (2 * bound + 1)


def test_the_fast_workers_wait_and_the_straggler_never_does() -> None:
    _, trace = finished("stale_synchronous", slow=True)
    waits = Counter(p.task for p in trace.all(Phase, what="wait"))
    assert all(waits[f"worker:{k}"] >= STEPS // 2 for k in range(3))
    assert not waits["worker:3"]


# --- backup_workers ---


@compares_times(finished)
def test_the_first_gradients_of_a_step_count_and_those_of_the_straggler_are_dropped() -> None:
    _, trace = finished("backup_workers", slow=True)
    made = [(u.step, u.read, u.written, u.staleness, u.gradients) for u in updates(trace)]
    assert made == [(n, n, n + 1, 0, WORKERS - 1) for n in range(STEPS)]
    dropped = Counter(m.task for m in trace.all(Dropped))
    computed = [p.step for p in trace.all(Phase, "worker:3", what="compute")]
    with of_times():
        assert dropped["worker:3"] > len(computed) / 2
        # another's only where the straggler's counts
        assert dropped.total() - dropped["worker:3"] <= len(computed) - dropped["worker:3"]
    assert computed == sorted(set(computed))
    with of_times():
        assert len(computed) < STEPS / 2  # it jumps to the step that the others are in


# --- a straggler, four times slower ---


@compares_times(finished)
def test_a_straggler_sets_the_pace_of_synchronous_servers_and_in_the_end_of_stale_ones() -> None:
    _, trace = finished("sync_parameter_server", slow=True)
    with of_times():
        assert usual(trace, "worker:3", "compute") > 2 * usual(trace, "worker:0", "compute")
        assert apart([u.at for u in updates(trace)]) > usual(trace, "worker:3", "compute")
    _, trace = finished("stale_synchronous", slow=True)
    begun = [p.start for p in trace.all(Phase, "worker:0", what="read")]
    with of_times():
        # the lead is used up
        assert apart(begun[STEPS // 2 :]) > 0.8 * usual(trace, "worker:3", "compute")


@compares_times(finished)
def test_a_straggler_takes_only_its_own_part_of_the_asynchronous_server_s_throughput() -> None:
    _, trace = finished("parameter_server", slow=True)
    done = Counter(p.task for p in trace.all(Phase, what="compute"))
    assert done.total() == STEPS * WORKERS
    others = statistics.mean(done[f"worker:{k}"] for k in range(3))
    with of_times():
        assert done.total() / (WORKERS * others) == pytest.approx(
            (WORKERS - 1 + 1 / 4) / WORKERS, abs=0.06
        )  # 1: all as fast as the others
        assert all(
            usual(trace, f"worker:{k}", "reduce") < usual(trace, f"worker:{k}", "compute") / 2
            for k in range(3)
        )  # nobody waits


def test_a_straggler_does_not_slow_the_others_down_where_there_is_a_backup() -> None:
    _, trace = finished("backup_workers", slow=True)
    assert usual(trace, "worker:3", "compute") > 2 * usual(trace, "worker:0", "compute")
    assert apart([u.at for u in updates(trace)]) < usual(trace, "worker:3", "compute") / 2
