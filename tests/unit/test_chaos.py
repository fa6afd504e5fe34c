"""How chaos judges what it sees, without a process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from course_lib.activity import Activity
from course_lib.errors import LockstepError, SpecError, Stalled, TaskFailed
from course_lib.spec.faults import Fault
from course_lib.spec.run_spec import RunSpec
from tests.chaos import _judged, episodes, spec_of

HOSTS = RunSpec(workers=2, hosts=2)
RESTARTS = RunSpec(workers=2, max_restarts=1)


def judged(fault: str, raised: LockstepError | None, happened: bool = True, **run: Any) -> str:
    """The kind of problem; "" for none."""
    spec = run.get("spec", RunSpec(workers=2))
    found = _judged(SimpleNamespace(spec=spec), Fault.of(fault), happened, raised)  # type: ignore[arg-type]
    return found[0].partition(":")[0] if found else ""


def paused(task: str) -> Stalled:
    return Stalled({task: Activity("is paused"), "worker:0": Activity("waits", 3, (task,))}, 1.0)


@pytest.mark.parametrize("do", ["kill", "raise", "exit", "oom"])
def test_an_error_has_to_name_whom_it_happened_to(do: str) -> None:
    fault = f"{do} worker:1 at step 3"
    assert judged(fault, TaskFailed("worker:1", 3, "it was killed")) == ""
    assert judged(fault, TaskFailed("worker:0", 3, "its peer worker:1 is gone")) == "wrong"
    assert judged(fault, LockstepError("something broke")) == "wrong"
    assert judged(fault, paused("worker:1")) == "hung"


def test_a_lost_host_is_named_by_any_of_its_tasks() -> None:
    fault = "kill host:1 at step 3"
    assert judged(fault, TaskFailed("worker:1", 3, "it was killed"), spec=HOSTS) == ""
    assert judged(fault, TaskFailed("worker:0", 3, "it was killed"), spec=HOSTS) == "wrong"
    assert judged("cut host:1 at step 3", paused("host:1"), spec=HOSTS) == ""


def test_who_is_paused_for_good_has_to_be_named_by_a_standstill() -> None:
    assert judged("pause worker:1 at step 3", paused("worker:1")) == ""
    assert (
        judged("pause worker:1 at step 3", Stalled({"worker:0": Activity("waits")}, 30.0)) == "hung"
    )


@pytest.mark.parametrize(
    "fault",
    [
        "pause worker:1 at step 3 for 1s",
        "slow worker:1=4 at step 3",
        "link host:1=5,0,0.1 at step 3",
    ],
)
def test_what_ends_by_itself_must_not_end_the_run(fault: str) -> None:
    assert judged(fault, TaskFailed("worker:1", 3, "gave up")) == "wrong"
    assert judged(fault, paused("worker:1")) == "hung"
    assert judged(fault, None) == ""


@pytest.mark.parametrize("fault", ["slow worker:1=4", "jitter worker:1=exponential:9ms"])
def test_a_run_that_is_only_slow_must_not_be_said_to_stand_still(fault: str) -> None:
    run: Any = SimpleNamespace(spec=RunSpec(workers=2))
    assert _judged(run, Fault.of(fault), True, None, "worker:1 waits") == ["alarm: worker:1 waits"]
    assert _judged(run, Fault.of(fault), True, None) == []
    assert _judged(run, Fault.of("pause worker:1 for 2s"), True, None, "worker:1 is paused") == []


def test_kinds_of_faults_are_chosen_by_name() -> None:
    kinds = {spec_of(text).faults[0].do for text in episodes(30, 1, faults=["slow", "jitter"])}
    assert kinds == {"slow", "jitter"}
    with pytest.raises(SpecError, match=r"faults='slows': did you mean 'slow'\?"):
        next(episodes(1, 1, faults=["slows"]))
    with pytest.raises(SpecError, match="faults='link': none can happen under these strategies"):
        next(episodes(1, 1, ["one_device"], faults=["link"]))


def test_with_a_restart_left_nothing_ends_the_run_and_without_a_fault_nothing_does() -> None:
    failed = TaskFailed("worker:1", 3, "it was killed")
    assert judged("kill worker:1 at step 3", failed, spec=RESTARTS) == "wrong"
    assert judged("kill worker:1 at step 3", failed, happened=False) == "wrong"
