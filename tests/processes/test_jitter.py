"""Delays that change, in real runs: where they are slept, that they come again, who suffers."""

from __future__ import annotations

import functools
import itertools
import statistics
from typing import Any

import pytest

from course_lib import Trace, start
from course_lib.cluster.run import Run
from course_lib.errors import SpecError
from course_lib.record.events import Lifecycle, Phase
from course_lib.record.measures import step_spans
from course_lib.record.saved import SavedRun
from course_lib.spec.fields import Jitter
from course_lib.widgets import Timeline
from tests.helpers import compares_times, of_times, until

BOTH = [
    ("multi_worker_mirrored", "torch"),
    ("sync_parameter_server", "torch"),
    ("multi_worker_mirrored", "tensorflow"),
    ("sync_parameter_server", "tensorflow"),
    ("mirrored", "tensorflow"),
]


def computed(trace: Trace, task: str) -> dict[int, float]:
    """Step -> how long the task computed, its emulated device time included."""
    return {p.step: p.end - p.start for p in trace.all(Phase, task, what="compute")}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "framework"), BOTH)
@compares_times()
def test_each_step_takes_the_delay_that_was_drawn_for_it(name: str, framework: str) -> None:
    form, seed, ms = "one_in:4:300ms", 3, 10
    fields = {"workers": 2, "steps": 16, "seed": seed, "device_ms": ms}
    with start(name, framework=framework, jitter=form, **fields) as run:
        run.wait(120)
    late = {
        task: [Jitter.of(form).of_step(seed, task, step)[1] for step in range(16)]
        for task in ("worker:0", "worker:1")
    }
    assert all(0 < sum(map(bool, each)) < 16 for each in late.values())
    workers = [task for task in late if computed(run.trace, task)]
    for task in workers:
        took = computed(run.trace, task)
        for step in range(1, 16):  # the first one may compile
            assert took[step] > late[task][step] + ms / 1000
        with of_times():
            # and nothing else does
            assert statistics.median(took[n] for n in range(1, 16) if not late[task][n]) < 0.25
    assert run.reality.word == run.result["reality"] == "emulated"
    assert f"jittered by {form}" in run.reality.why


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@compares_times()
def test_device_time_is_multiplied_by_what_was_drawn(framework: str) -> None:
    fields = {"workers": 2, "steps": 12, "device_ms": 50, "jitter": {"worker:1": "lognormal:1"}}
    with start("sync_parameter_server", framework=framework, **fields) as run:
        run.wait(120)
    took = computed(run.trace, "worker:1")
    jitter = Jitter.of("lognormal:1")
    expected = [0.05 * jitter.of_step(0, "worker:1", n)[0] for n in range(12)]
    assert all(took[n] >= expected[n] for n in range(12))
    with of_times():
        assert statistics.median(took[n] - expected[n] for n in range(1, 12)) < 0.1
    assert "worker:1 is jittered by lognormal:1" in run.reality.why


@pytest.mark.parametrize(
    ("name", "framework"),
    [("multi_worker_mirrored", "torch"), ("parameter_server", "tensorflow")],
)
def test_jitter_is_ordered_and_ended_while_a_run_goes_on(name: str, framework: str) -> None:
    with start(name, framework=framework, workers=2, steps=100_000) as run:
        run.wait_running(60)
        for text, says in (("soon", "one_in:100:200ms"), ("lognormal:1", "set device_ms")):
            with pytest.raises(SpecError, match=says):
                run.jitter("worker:1", text)
        run.jitter("worker:1", "one_in:2:400ms")
        until(lambda: len(since(run, 0)) > 3 and max(since(run, 0)[3:]) > 0.4, "a delay")
        run.jitter("worker:1", None)
        until(lambda: len(run.trace.all(Lifecycle, state="jittered")) == 2, "the second order")
        steady = run.trace.all(Lifecycle, state="jittered")[1].at + 1.0
        until(lambda: len(since(run, steady)) > 20, "steps without delays")
        assert max(since(run, steady)) < 0.4
        run.stop()
    words = [e.words for e in run.trace.all(Lifecycle, state="jittered")]
    assert words == ["jittered by one_in:2:400ms", "no longer jittered"]
    assert "worker:1 is jittered by one_in:2:400ms from " in run.reality.why
    assert SavedRun(run.run_dir).reality == run.reality
    assert "jittered by one_in:2:400ms" in Timeline(run).table()


def since(run: Run, at: float) -> list[float]:
    """How long worker 1 computed, each time that it began to after `at`."""
    phases = run.trace.all(Phase, "worker:1", what="compute")
    return [p.end - p.start for p in phases if p.start > at]


# --- who suffers ---

WORKERS, STEPS, FORM, MS = 4, 60, "one_in:20:250ms", 40


@functools.cache
def seconds(name: str, **fields: Any) -> float:
    """Seconds from the end of the fifth step of a run with hiccups to the end of its last."""
    usual = {"workers": WORKERS, "steps": STEPS, "device_ms": MS, "global_batch": 120}
    with start(name, framework="torch", jitter=FORM, **usual | fields) as run:
        run.wait(120)
    ends = [last for _, last in step_spans(run.trace).values()]
    return ends[-1] - ends[4]


@compares_times(seconds)
def test_backup_workers_and_bounded_staleness_do_not_wait_for_every_hiccup() -> None:
    """A step of synchronous training has the delay of whoever is delayed in it."""
    late = [
        max(Jitter.of(FORM).of_step(0, f"worker:{k}", n)[1] for k in range(WORKERS))
        for n in range(5, STEPS)
    ]
    assert len([each for each in late if each]) >= 5
    least = sum(late) + len(late) * MS / 1000
    together = seconds("sync_parameter_server")
    assert together >= least
    with of_times():
        assert seconds("backup_workers") < 0.85 * together
        assert seconds("stale_synchronous", staleness_bound=8) < 0.85 * together


def test_two_runs_have_the_same_delays() -> None:
    fields = {"workers": 2, "steps": 12, "jitter": "one_in:4:400ms", "seed": 7}
    found = []
    for name in ("multi_worker_mirrored", "multi_worker_mirrored", "sync_parameter_server"):
        with start(name, framework="torch", **fields) as run:
            run.wait(60)
        took = (computed(run.trace, f"worker:{k}") for k in range(2))
        found.append([[n for n in range(1, 12) if each[n] > 0.4] for each in took])
    assert all(a == b for a, b in itertools.pairwise(found))
    assert all(found[0])
