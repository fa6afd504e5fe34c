"""Races between real clusters: everybody starts together, learns the same, and is compared by what
its own trace says.
"""

import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import pytest

from course_lib import Run, hardware
from course_lib.errors import LockstepError, SpecError, Stalled, TaskFailed
from course_lib.racing.entrants import divide
from course_lib.racing.race import Race, race
from course_lib.record.events import Lifecycle, Phase, Update
from course_lib.record.trace import Trace
from course_lib.strategies import catalog
from course_lib.strategies.strategy import Strategy
from tests.helpers import SUM_ORDER, compares_times, losses, of_times, until

STEPS = 35


@functools.cache
def with_straggler() -> Race:
    """A race that is over: synchronous workers, one of them slow, against one device."""
    own = {"workers": 2, "slow": {"worker:1": 4}}
    slowed = ("multi_worker_mirrored", "multi_worker_mirrored", own)
    with race(slowed, "one_device", steps=STEPS, device_ms=20, framework="torch") as found:
        return found.wait(120)


def starts_together(*traces: Trace) -> bool:
    """Nobody begins its second step before everybody has done the first.

    All traces of a race have one clock.
    """
    phases = [p for trace in traces for p in trace.all(Phase)]
    return max(p.end for p in phases if p.step == 0) <= min(p.start for p in phases if p.step > 0)


def test_all_entrants_start_their_second_step_together_after_all_have_done_their_first() -> None:
    assert starts_together(*(run.trace for run in with_straggler().runs.values()))


def test_all_entrants_learn_the_same_from_the_same_examples() -> None:
    first, second = (run.trace for run in with_straggler().runs.values())
    np.testing.assert_allclose(losses(first), losses(second), **SUM_ORDER)
    shown = with_straggler().comparison.entrants.values()
    assert {f.examples for f in shown} == {STEPS * 128}
    first_accuracy, second_accuracy = (f.tested["test_accuracy"] for f in shown)
    assert first_accuracy == pytest.approx(second_accuracy, abs=0.01)
    # the same loss after the same examples, whoever is faster
    assert len({f.examples_to_target for f in shown}) == 1


@compares_times(with_straggler)
def test_a_straggler_costs_the_synchronous_entrant_time_and_its_other_workers_idle() -> None:
    comparison = with_straggler().comparison
    slowed, alone = comparison.entrants["multi_worker_mirrored"], comparison.entrants["one_device"]
    with of_times():
        assert alone.examples_per_second > 2 * slowed.examples_per_second  # type: ignore[operator]  # four times the device time for a step
        assert alone.seconds_to_target < slowed.seconds_to_target  # type: ignore[operator]
        assert slowed.idle_share["worker:0"] > 0.5 > slowed.idle_share["worker:1"]
    assert slowed.staleness["updates"] == {"0": STEPS}  # both replicas apply each


def test_a_race_of_unequals_says_how_they_differ_and_names_no_winner() -> None:
    found = with_straggler()
    words = " ".join(found.comparison.words())
    for part in (
        "NOT FAIR: the entrants do not have the same workers (multi_worker_mirrored 2, one_device"
        " 1) and stragglers (multi_worker_mirrored worker:1=4.0, one_device none).",
        "No winner can be named, as the race was not fair. Time to loss",
        "a device_ms of its own: 40",
        "second step",
    ):
        assert part in words
    assert "to itself" in words or "share" in words
    assert found.comparison.winner is None


def test_a_race_of_equals_is_fair_if_nobody_waited_for_a_core_and_then_has_a_winner() -> None:
    pair = ("multi_worker_mirrored", ("twice as long", "multi_worker_mirrored", {"device_ms": 40}))
    with race(*pair, workers=2, steps=25, device_ms=20, framework="torch") as found:
        shown = found.wait(120).comparison
    verdict = shown.fairness
    assert verdict.fair is (max(verdict.lost.values()) <= 0.2)  # type: ignore[type-var]  # with emulated devices it can be told on every system
    assert verdict.why in shown.words()
    assert bool(verdict.advice) is not verdict.fair
    assert shown.winner == ("multi_worker_mirrored" if verdict.fair else None)
    assert "multi_worker_mirrored " in shown.standing.verdict


def test_a_race_is_plain_json_and_a_table() -> None:
    found = with_straggler()
    told = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert told["state"] == "finished"
    assert (
        list(told["entrants"]) == list(told["run_dirs"]) == ["multi_worker_mirrored", "one_device"]
    )
    assert all(Path(path, "result.json").exists() for path in told["run_dirs"].values())
    assert told["entrants"]["one_device"]["curve"]["examples"] == [
        128 * (n + 1) for n in range(STEPS)
    ]
    assert "examples per second" in str(found.comparison) and f"{STEPS} of staleness 0" in str(
        found.comparison
    )


def test_frameworks_race_each_other_and_the_one_that_compiles_longer_is_waited_for() -> None:
    other = {"strategy": "one_device", "framework": "torch", "label": "torch"}
    with race(("tensorflow", "one_device"), other, steps=8, device_ms=5) as found:
        first, second = (run.trace for run in found.wait(120).runs.values())
    assert starts_together(first, second)
    np.testing.assert_allclose(losses(first), losses(second), **SUM_ORDER)


@compares_times()
def test_synchronous_entrants_reach_an_accuracy_after_as_many_examples_each_in_its_time() -> None:
    own = {"workers": 2, "slow": {"worker:1": 4}}
    entrants = (
        ("slowed", "multi_worker_mirrored", own),
        ("alone", "one_device"),
        ("servers", "sync_parameter_server", own),
    )
    common: dict[str, Any] = {"steps": 40, "device_ms": 10, "framework": "torch"}
    with race(
        *entrants, target_accuracy=0.6, evaluate_every=5, global_batch=128, **common
    ) as found:
        shown = found.wait(120).comparison
    assert shown.target_accuracy == 0.6
    assert {f.examples_to_accuracy for f in shown.entrants.values()} <= {
        5 * 128 * n for n in range(1, 9)
    }
    slowed, alone, servers = shown.entrants.values()
    assert slowed.examples_to_accuracy == alone.examples_to_accuracy == servers.examples_to_accuracy
    with of_times():
        assert alone.seconds_to_accuracy < min(
            slowed.seconds_to_accuracy, servers.seconds_to_accuracy
        )  # type: ignore[type-var, operator]
        assert shown.standing.ranked[0][0] == "alone"
    for f in shown.entrants.values():
        curve = f.accuracy_curve
        first = int(np.argmax(curve.values >= 0.6))
        assert (f.seconds_to_accuracy, f.examples_to_accuracy) == (
            curve.seconds[first],
            curve.examples[first],
        )
    assert "seconds to accuracy 0.600" in str(shown)


def test_on_any_number_of_servers_a_synchronous_step_is_one_update_an_asynchronous_several() -> (
    None
):
    entrants = ("sync_parameter_server", "backup_workers", "parameter_server")
    with race(*entrants, workers=2, ps=2, steps=20, device_ms=5, framework="torch") as found:
        shown = found.wait(120).comparison.entrants
    written = {label: len(run.trace.all(Update)) for label, run in found.runs.items()}
    assert written == dict(zip(entrants, (40, 40, 80), strict=True))  # both servers write each
    assert {label: sum(f.staleness["updates"].values()) for label, f in shown.items()} == dict(
        zip(entrants, (20, 20, 40), strict=True)
    )
    assert set(shown["parameter_server"].staleness["by_worker"]) == {"worker:0", "worker:1"}


# --- strategies of this file's own ---


def independent(task: Any) -> dict[str, Any]:
    """Two workers, each at its own pace on a model of its own, that tell of updates as if a server
    had made them to one.
    """
    for n in range(8 if task.index else 16):
        start = time.monotonic()
        task.pace()
        task.record("compute", n, start, time.monotonic())
        task.recorder.add(
            Update(
                "ps:0", n, "all", "cpu", n, n + 1 + task.index, time.monotonic(), workers=task.name
            )
        )
        task.metric("loss", 1 / (n + 1), n, (2 * n + task.index) * 64)
        task.at_step_end()
    return {"final_loss": 0.1, "test_accuracy": 0.5, "parameters": 1}


def broken(task: Any) -> None:
    """Fails in its first step."""
    with task.phase("compute", 0):
        raise ValueError("no use")


class Ours(Strategy):
    """A strategy whose role function is in this file."""

    @property
    def programs(self) -> dict[str, dict[str, str]]:
        return {"torch": {"worker": f"{__name__}:{self.name}"}}


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    facts = catalog.find("one_device").facts
    for role in (independent, broken):
        workers = 1 if role is broken else 2
        given = {"name": role.__name__, "jobs": {"torch": ("worker",)}, **facts}
        strategy = Ours(**given, default_workers=workers)
        monkeypatch.setitem(catalog.STRATEGIES, role.__name__, strategy)
    yield


def test_workers_that_wait_for_nobody_are_compared_by_examples_and_show_their_staleness(
    ours: None,
) -> None:
    slowed = ("independent", "independent", {"slow": {"worker:1": 3}})
    with race(slowed, "one_device", steps=8, device_ms=15, framework="torch") as found:
        shown = found.wait(60).comparison.entrants["independent"]
    trace = found.runs["independent"].trace
    assert starts_together(trace, found.runs["one_device"].trace)
    assert (
        shown.staleness["updates"]
        == {"0": 16, "1": 8}
        == {str(n): len([u for u in trace.all(Update) if u.staleness == n]) for n in (0, 1)}
    )
    assert len(shown.curve.values) == 24
    assert shown.examples == 30 * 64
    assert shown.idle_share == {"worker:0": 0.0, "worker:1": 0.0}


# --- while it goes on ---


def test_the_others_go_on_when_an_entrant_is_killed_and_wait_says_which_one(tmp_path: Path) -> None:
    two = {"strategy": "multi_worker_mirrored", "workers": 2, "label": "two workers"}
    with race(
        two, "one_device", steps=200, device_ms=5, framework="torch", run_dir=tmp_path / "race"
    ) as found:
        until(lambda: found.state == "running", "the race to run")
        found.runs["two workers"].kill("worker:1")
        with pytest.raises(TaskFailed, match=r"worker:1 failed.*killed by run\.kill\(\)"):
            found.wait(60)
    assert (found.state, found.comparison.entrants["two workers"].state) == ("failed", "failed")
    assert found.comparison.entrants["one_device"].examples == 200 * 128
    assert sorted(path.name for path in (tmp_path / "race").iterdir()) == [
        "0-two-workers",
        "1-one_device",
    ]


def test_a_race_waits_for_results_that_take_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    two = {"strategy": "multi_worker_mirrored", "workers": 2, "label": "multi_worker_mirrored"}
    running = race("one_device", two, framework="torch", steps=5)
    run = running.runs["multi_worker_mirrored"]
    summarize = run._summarize
    assert summarize
    monkeypatch.setattr(run, "_summarize", lambda it: time.sleep(1) or summarize(it))
    with running:
        assert running.wait(60).runs["multi_worker_mirrored"].result["steps"] == 5


def test_nobody_waits_at_the_line_for_an_entrant_that_failed_on_the_way_to_it(ours: None) -> None:
    with (
        race("broken", "one_device", steps=5, framework="torch") as found,
        pytest.raises(TaskFailed, match=r"broken: worker:0.*no use"),
    ):
        found.wait(30)  # less than the line's patience
    assert found.comparison.entrants["one_device"].examples == 5 * 128
    assert found.comparison.entrants["broken"].began is None
    assert found.comparison.fairness.fair is None


def test_a_race_can_be_watched_slowed_and_stopped_while_it_goes_on() -> None:
    found = race(
        "one_device", ("another", "one_device"), steps=100_000, device_ms=2, framework="torch"
    )
    with found:
        assert found.state == "starting"
        until(lambda: found.state == "running", "the race to run")
        until(
            lambda: all(f.examples > 128 * 20 for f in found.comparison.entrants.values()),
            "20 steps of each",
        )
        assert found.comparison.target_loss < 2  # type: ignore[operator]
        found.slow("worker:0", 3)
        until(
            lambda: all(run.trace.all(Lifecycle, state="slowed") for run in found.runs.values()),
            "all to be slowed",
        )
        with pytest.raises(SpecError, match="worker:5"):
            found.slow("worker:5", 3)
        with pytest.raises(Stalled, match=r"another: worker:0"):
            found.wait(0.1)
        _each_has_its_cores(found)
        found.runs["another"].slow("worker:0", 4)
        said = "slowed to 3 times its time, worker:0 slowed to 4 times its time)"
        until(lambda: said in found.comparison.fairness.why, "it to be called unfair")
        assert found.comparison.fairness.fair is False
    assert found.state == "stopped"
    assert {run.state for run in found.runs.values()} == {"stopped"}
    assert found.stop() is found
    with pytest.raises(LockstepError, match="too late"):
        found.slow("worker:0", 1)


def test_an_interrupted_wait_says_that_the_race_goes_on_and_what_it_says_ends_it() -> None:
    found = race(
        "one_device", ("another", "one_device"), steps=100_000, device_ms=2, framework="torch"
    )
    try:
        until(lambda: found.state == "running", "the race to run")
        found.runs["another"].pause("worker:0")
        with pytest.raises(
            Stalled,
            match=(
                r"another: worker:0 is paused in step \d+ "
                r"\(race\.runs\['another'\]\.resume\('worker:0'\)"
            ),
        ):
            found.wait(2)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        somebody_types = patch("course_lib.record.progress.in_script", return_value=False)
        with (
            somebody_types,
            pytest.raises(
                KeyboardInterrupt,
                match=(
                    r"The race goes on, as long as this Python process does\. This ends it:"
                    r" .*for run in Run\.going\(\)"
                ),
            ),
        ):
            found.wait(20)
        assert found.state == "running" and set(found.runs.values()) <= set(Run.going())
    finally:
        found.stop()
    assert not set(found.runs.values()) & set(Run.going())


def _each_has_its_cores(found: Race) -> None:
    """The tasks of an entrant are on the cores that were handed out to it, all of their threads."""
    if sys.platform != "linux":
        return
    for cores, run in zip(divide(hardware.probe(), 2)[1], found.runs.values(), strict=True):
        (started,) = run.trace.all(Lifecycle, state="starting")
        allowed = psutil.Process(started.pid).cpu_affinity()
        assert sorted(allowed) == sorted(cores or os.sched_getaffinity(0))
