"""Faults that are planned or ordered, in real runs; and chaos."""

from __future__ import annotations

import threading
import time
from typing import Any

import psutil
import pytest

from course_lib import hardware, start
from course_lib.errors import SpecError, TaskFailed, Unavailable
from course_lib.record.events import Lifecycle, Phase
from course_lib.record.ledger import ledger
from tests.chaos import episodes, play
from tests.helpers import lockstep, until

HOSTS = hardware.machine.network_parts(hardware.probe().private_network)["hosts"].ok
STEPS, SECONDS = 30, 0.02


def steps(task: Any) -> int:
    for n in range(STEPS):
        with task.phase("compute", n):
            task.pace()
            time.sleep(SECONDS)
    return STEPS


def waiting(task: Any) -> None:
    threading.Event().wait()


def ended(*faults: str, **fields: Any) -> Any:
    """A run of `steps` in two workers, with these faults, that is over; and the error, if any."""
    with start(steps, workers=2, faults=faults, **fields) as run:
        try:
            run.wait(60)
        except TaskFailed as error:
            return run, error
        return run, None


def noted(run: Any) -> list[tuple[str, str, str]]:
    return [(e.task, e.state, e.fault) for e in run.trace.all(Lifecycle) if e.fault]


@pytest.mark.parametrize(
    ("do", "state", "says"),
    [
        ("kill", "killed", "killed as planned (kill"),
        ("raise", "raised", "raised as planned (raise"),
        ("exit", "left", "as planned (exit"),
        ("oom", "exhausted", "MemoryError: "),
    ],
)
def test_a_fault_ends_the_task_as_it_begins_the_step(do: str, state: str, says: str) -> None:
    run, error = ended(f"{do} worker:1 at step 5")
    assert (error.task, says in error.reason) == ("worker:1", True), error
    assert error.step == 5
    assert (*noted(run),)[0] == ("worker:1", state, f"{do} worker:1 at step 5")
    # and nothing that it had done before is lost
    assert [p.step for p in run.trace.all(Phase, "worker:1")] == list(range(5))


def test_memory_runs_out_at_a_limit_of_the_task() -> None:
    _, error = ended("oom worker:1 at step 5")
    assert "as planned (oom" in error.reason


def test_what_lasts_for_a_while_is_undone_and_the_run_finishes() -> None:
    faults = (
        "pause worker:1 at step 5 for 300ms",
        "slow worker:0=3 at step 5 for 200ms",
        "jitter worker:0=exponential:2ms at 100ms for 50ms",
    )
    run, error = ended(*faults)
    assert error is None and run.state == "finished"
    assert sorted(noted(run)) == [
        ("worker:0", "jittered", faults[2]),
        ("worker:0", "jittered", faults[2]),
        ("worker:0", "slowed", faults[1]),
        ("worker:0", "slowed", faults[1]),
        ("worker:1", "paused", faults[0]),
        ("worker:1", "resumed", faults[0]),
    ]
    life = run.trace.all(Lifecycle)
    assert [e.factor for e in life if e.state == "slowed"] == [3.0, 1.0]
    paused, resumed = (next(e for e in life if e.state == s) for s in ("paused", "resumed"))
    assert resumed.at - paused.at > 0.29
    assert not any(paused.at + 0.05 < p.end < resumed.at for p in run.trace.all(Phase, "worker:1"))
    assert f"paused as planned ({faults[0]})" == paused.words
    assert (
        run.reality.word == "emulated"
        and "worker:0 is slowed to 3 times its time" in run.reality.why
    )


def test_a_fault_for_which_the_run_is_over_too_soon_does_not_happen() -> None:
    run, error = ended("kill worker:1 at 60s")
    assert error is None and noted(run) == []


@pytest.mark.parametrize("do", ["raise", "exit", "oom", "kill"])
def test_a_fault_is_ordered_while_the_task_waits_for_something(do: str) -> None:
    with start({"worker": waiting, "ps": waiting}, workers=1, ps=1) as run:
        run.wait_running(60)
        run.inject(f"{do} ps:0")
        with pytest.raises(TaskFailed) as raised:
            run.wait(20)
    assert raised.value.task == "ps:0"
    assert noted(run)[0][2] == f"{do} ps:0"


def test_orders_are_checked_and_those_that_come_too_late_cost_nothing() -> None:
    with start(waiting, workers=2) as run:
        run.wait_running(60)
        for fault, says in (
            ("kill worker:1 at step 4", "it happens now"),
            ("kill worker:4", "this run has"),
            ("cut host:0", "set hosts"),
        ):
            with pytest.raises(SpecError, match=says):
                run.inject(fault)
        run.inject("pause worker:1 for 100ms")
        until(lambda: run.trace.all(Lifecycle, state="resumed"), "the pause is over")
        assert run.trace.all(Lifecycle, state="paused")[0].why == (
            "by run.inject('pause worker:1 for 100ms')"
        )


def test_the_end_of_a_slowing_reads_as_one() -> None:
    fault = "slow worker:1=3 at step 2 for 100ms"
    fields = {"framework": "torch", "workers": 2, "steps": 20, "device_ms": 20}
    run = start("multi_worker_mirrored", faults=fault, **fields)
    begun, ended = run.wait(60).result["faults"]
    assert begun.startswith("worker:1 slowed after ")
    assert ended.startswith("worker:1 full speed after ")


@pytest.mark.skipif(not HOSTS, reason=hardware.probe().private_network.why)
def test_hosts_are_cut_off_and_their_links_change_for_a_while() -> None:
    fields = {"framework": "torch", "workers": 2, "hosts": 2, "steps": 12, "device_ms": 20}
    faults = ("cut host:1 at step 3 for 200ms", "link host:1=50,1 at step 8 for 100ms")
    with start("multi_worker_mirrored", faults=faults, **fields) as run:
        result = run.wait(60).result
    states = [state for _, state, _ in noted(run)]
    assert sorted(states) == ["cut", "healed", "linked", "linked"][: len(states)]
    assert states[:2] == ["cut", "healed"]
    assert any(said.startswith("host:1 healed after ") for said in result["faults"])
    run = start(waiting, workers=4, hosts=2, faults="kill host:1 at 50ms")
    with run, pytest.raises(TaskFailed) as raised:
        run.wait(20)
    assert raised.value.task in ("worker:2", "worker:3")


def test_a_host_that_is_not_real_cannot_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_NETWORK", "loopback")
    with pytest.raises(Unavailable, match="cut"):
        start(waiting, workers=2, hosts=2, faults="cut host:1 at step 3")


@pytest.mark.parametrize(
    ("name", "framework", "fault"),
    [
        ("multi_worker_mirrored", "torch", "kill worker:1 at step 4"),
        ("parameter_server", "torch", "raise ps:0 at step 4"),
        ("multi_worker_mirrored", "tensorflow", "exit worker:0 at step 4"),
        ("parameter_server", "tensorflow", "kill ps:0 at step 4"),
        ("sync_parameter_server", "tensorflow", "raise worker:1 at step 4"),
    ],
)
def test_strategies_end_with_the_name_of_whom_it_happened_to(
    name: str, framework: str, fault: str
) -> None:
    fields = {"workers": 2, "steps": 10, "device_ms": 20}
    run = start(name, framework=framework, faults=fault, **fields)
    with run, pytest.raises(TaskFailed) as raised:
        run.wait(60)
    assert raised.value.task == fault.split()[1], raised.value
    assert noted(run)
    found = ledger(run.trace)
    assert found.balanced, found
    assert found.computed == found.applied + sum(found.dropped.values()) > 0


@pytest.mark.parametrize("times", [1, 2])
def test_a_fault_happens_once_also_where_the_step_is_done_again(times: int) -> None:
    run, error = ended(*["kill worker:1 at step 5"] * times, max_restarts=2)
    assert error is None and run.state == "finished"
    assert [state for _, state, _ in noted(run)] == ["killed"] * times
    done = [p.step for p in run.trace.all(Phase, "worker:1")]
    assert done == [*range(5)] * times + [*range(STEPS)]


def test_a_restarted_run_has_the_model_and_the_ledger_of_one_without_faults() -> None:
    fields = {"framework": "torch", "workers": 2, "steps": 10, "checkpoint_every": 3}
    name, fault = "multi_worker_mirrored", "kill worker:1 at step 5"
    with start(name, **fields) as run:
        usual = run.wait(60).result
    with start(name, faults=fault, max_restarts=1, **fields) as run:
        result = run.wait(60).result
    assert result["parameter_digest"] == usual["parameter_digest"]
    assert usual["ledger"] == {
        "computed": 20,
        "applied": 20,
        "dropped": {},
        "repeated": 0,
        "wrong": [],
        "balanced": True,
    }
    found = result["ledger"]
    assert found["balanced"], found["wrong"]
    assert found["repeated"] == 2, "steps 3 and 4, after the checkpoint"
    assert found["computed"] == found["applied"] + sum(found["dropped"].values())
    (said,) = result["faults"]
    assert said.startswith("worker:1 killed after ") and said.endswith(f" s ({fault})")


def test_runs_that_are_over_hold_no_descriptors() -> None:
    kept = [start(steps, workers=1).wait(60)]  # the first one leaves a zygote
    before = psutil.Process().num_fds()
    kept += [start(steps, workers=1).wait(60) for _ in range(3)]
    until(lambda: psutil.Process().num_fds() <= before, "the descriptors are closed")


# --- chaos ---


def test_episodes_are_the_same_for_a_seed_and_possible() -> None:
    first = list(episodes(40, 1))
    assert first == list(episodes(40, 1)) != list(episodes(40, 2))
    assert len({episode.partition(",")[0] for episode in first}) > 5
    (only,) = {e.split(",")[0] for e in episodes(3, 1, ["one_device"], "torch")}
    assert only == "one_device"


FIELDS = "framework=torch,workers=2,steps=8,device_ms=30"


@pytest.mark.parametrize(
    ("fault", "ends"),
    [
        ("kill worker:1 at step 3", "worker:1 failed in step 3"),
        ("pause worker:1 at step 3 for 300ms", "finished"),
        ("slow worker:0=3 at 100ms", "finished"),
    ],
)
def test_an_episode_in_which_all_is_well(fault: str, ends: str) -> None:
    outcome = play(f"multi_worker_mirrored,{FIELDS},fault={fault}")
    assert outcome.problems == ()
    assert outcome.ended.startswith(ends)
    assert (outcome.seconds is None) == (ends == "finished")


def test_the_command_plays_an_episode_and_says_how_it_ended() -> None:
    one = "one_device,framework=torch,steps=8,fault=raise worker:0 at step 2"
    found = lockstep("--replay", one, module="tests.chaos")
    assert found.returncode == 0, found.stderr
    assert "raised as planned" in found.stdout
    one = "one_device,framework=torch,fault=kil worker:0 at step 2"
    wrong = lockstep("--replay", one, module="tests.chaos")
    assert wrong.returncode == 2 and "did you mean 'kill'" in wrong.stderr
