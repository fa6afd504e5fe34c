"""The boards without a browser: what they make of traces, live and saved, what their controls
order, and what they cost.
"""

import io
import json
import math
import os
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from course_lib.activity import Activity
from course_lib.commands.watch import frame, watch
from course_lib.errors import LockstepError, SpecError, TaskFailed
from course_lib.racing.comparison import Comparison, Figures
from course_lib.racing.fairness import Fairness
from course_lib.record.curves import Curve, Readings
from course_lib.record.digest import Digest
from course_lib.record.events import (
    ACTIVE,
    Event,
    Lifecycle,
    Metric,
    Phase,
    Update,
    end_of,
    to_line,
)
from course_lib.record.saved import SavedRun, saved_runs
from course_lib.record.standstill import STEPLESS, Pulse, Standstill
from course_lib.record.trace import Trace
from course_lib.record.verdict import Goal
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec
from course_lib.widgets.board import RaceBoard, TrainingBoard, pictures
from course_lib.widgets.board.plots import (
    COLUMNS,
    NAMES,
    POINTS,
    Charts,
    Panel,
    TimeWindow,
    chart,
    lanes,
    throughput,
)
from course_lib.widgets.board.view import View
from course_lib.widgets.kit import svg
from tests.benchmarks.boards import LIMIT, Made, Wire, mean_delay
from tests.benchmarks.boards import board as board_of_made_up_runs
from tests.helpers import until
from tests.made_up import BATCH, EVENTS, SPEC, asynchronous, lockstep
from tests.screens import says


class SomeRun:
    """A run with a trace, and orders that are only written down."""

    def __init__(
        self,
        trace: Trace,
        state: str = "finished",
        spec: RunSpec = SPEC,
        error: LockstepError | None = None,
    ) -> None:
        self.spec, self.state, self.trace, self.error = spec, state, trace, error
        self.orders: list[tuple[Any, ...]] = []
        self.now: Pulse | None = None
        self._digest = Digest(spec, trace)

    @property
    def digest(self) -> Digest:
        return self._digest.update(over=self.state not in ACTIVE)

    def pulse(self) -> Pulse | None:
        return self.now

    @property
    def result(self) -> Any:
        if self.error:
            raise self.error
        return {}

    def _order(self, *order: Any) -> None:
        if self.error:
            raise self.error
        self.orders.append(order)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name in (
            "slow",
            "jitter",
            "pause",
            "resume",
            "kill",
            "link",
            "partition",
            "heal",
            "stop",
        ):
            return lambda *values: self._order(name, *values)
        raise AttributeError(name)


def race_of(
    runs: dict[str, SomeRun],
    fair: bool | None = True,
    why: str = "Fair: nobody queued.",
    **targets: float | None,
) -> Any:
    """A race of such runs."""
    shown = SimpleNamespace(fairness=Fairness(fair, why))
    goals = {"target_loss": None, "target_accuracy": None} | targets
    return SimpleNamespace(runs=runs, comparison=shown, stop=lambda: None, **goals)


def compared(race: Any) -> Comparison:
    """The comparison of such a race."""
    found = [Figures(label, run.digest, run.state) for label, run in race.runs.items()]
    targets = race.target_loss, race.target_accuracy
    return Comparison(found, race.comparison.fairness, (), *targets)


def view_of(*runs: SomeRun, **targets: float | None) -> View:
    race = race_of(dict(zip(("sync", "async"), runs, strict=True)), **targets)
    view = View(race.runs, race)
    view.update()
    return view


def with_a_backup(steps: int = 30, seconds: Sequence[float] = (0.1, 0.15, 0.13, 0.42)) -> Trace:
    """A step is over with the gradients of all workers but the last.

    Its own comes late and is dropped, and it joins the step that all are in.
    """
    events: list[Event] = []
    begun, at = [2.0] * len(seconds), [0] * len(seconds)
    for step in range(steps):
        arrived = {k: begun[k] + seconds[k] for k in range(len(seconds)) if at[k] == step}
        counted = sorted(arrived, key=lambda k: arrived[k])[: len(seconds) - 1]
        end = max(arrived[k] for k in counted) + 0.02
        whose = " ".join(f"worker:{k}" for k in sorted(counted))
        events.append(
            Update("ps:0", step, "all", "cpu", step, step + 1, end - 0.01, len(counted), whose)
        )
        for k in range(len(seconds)):
            if (done := begun[k] + seconds[k]) <= end or k in counted:
                over = max(end, done + 0.01)
                events += [
                    Phase(f"worker:{k}", at[k], "compute", begun[k], done),
                    Phase(f"worker:{k}", at[k], "reduce", done, over),
                ]
                begun[k], at[k] = over, step + 1
        events += [Metric("worker:0", "loss", 1 / (step + 1), step, (step + 1) * BATCH, end)]
    return Trace(sorted(events, key=end_of))


# --- the digest ---


FOUR = RunSpec(workers=4, global_batch=BATCH)


@pytest.mark.parametrize(
    ("spec", "trace", "idle", "updates"),
    [
        (SPEC, lockstep(40), {"worker:0": 0.3 / 0.46, "worker:1": 0}, {0: 40}),
        (SPEC, asynchronous(), {"ps:0": 0, "worker:0": 0, "worker:1": 0}, None),
        (FOUR, with_a_backup(), {"worker:0": 0.05 / 0.17, "worker:3": 0}, {0: 30}),
    ],
    ids=["lockstep", "asynchronous", "backup"],
)
@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_a_digest_read_in_pieces_says_what_one_read_at_once_says(
    spec: RunSpec,
    trace: Trace,
    idle: dict[str, float],
    updates: dict[int, int] | None,
    pieces: int,
) -> None:
    events = list(trace)
    digest, whole = Digest(spec, Trace()), Digest(spec, trace).update(over=True)
    for piece in np.array_split(np.arange(len(events)), pieces):
        digest.trace._add(events[i] for i in piece)
        digest.update()
    digest.update(over=True)
    assert digest.zero == whole.zero
    for found, expected in zip(digest.losses, whole.losses, strict=True):
        assert found == pytest.approx(expected)
    assert digest.idle == pytest.approx(whole.idle)
    assert {task: digest.idle[task] for task in idle} == pytest.approx(idle, abs=0.03)
    stale = Counter(u.staleness for u in trace.all(Update)) if updates is None else updates
    assert digest.updates.staleness == whole.updates.staleness == stale
    assert (digest.reductions.lockstep, digest.overhead) == (
        whole.reductions.lockstep,
        pytest.approx(whole.overhead),
    )


def test_with_backup_workers_lanes_show_who_waits_and_that_nobody_waits_for_the_straggler() -> None:
    trace = with_a_backup()
    digest = Digest(FOUR, trace).update(over=True)
    first, second, _, straggler = lanes(digest, TimeWindow(3.0, 6.0))
    idle = digest.idle
    assert (
        first.waited
        == pytest.approx(idle["worker:0"], abs=0.03)
        == pytest.approx(0.05 / 0.17, abs=0.03)
    )
    assert "wait" in {NAMES[what] for *_, what in svg.runs(first.cells)}
    assert second.waited == straggler.waited == 0


def test_readings_taken_in_pieces_and_out_of_order_make_the_curve_of_them_all() -> None:
    random = np.random.default_rng(0)
    metrics = [
        Metric(
            f"worker:{n % 3}", "loss", n // 2 % 50, n // 2, n // 2 * BATCH, n + 9 * random.random()
        )
        for n in range(5000)
    ]
    reports: dict[tuple[int, int, float], float] = {}  # the earliest of each
    for m in metrics:
        key = m.step, m.samples, m.value
        reports[key] = min(m.at, reports.get(key, m.at))
    ordered = sorted((at, *key) for key, at in reports.items())
    counts = np.maximum.accumulate([samples for _, _, samples, _ in ordered])
    means = [
        np.mean([ordered[k][3] for k in range(n + 1) if counts[k] > counts[n] - 10 * BATCH])
        for n in range(len(ordered))
    ]
    late = np.logical_or.accumulate([at > 20 and step >= 9 for at, step, *_ in ordered])
    seconds = [max(0.0, at - 20) * begun for (at, *_), begun in zip(ordered, late, strict=True)]
    readings = Readings(np.fmin, 10 * BATCH)
    for piece in np.array_split(np.arange(len(metrics)), 200):
        for n in piece:
            readings.add(metrics[n])
        curve = readings.curve(20.0, list(range(9)))
    assert np.allclose([curve.seconds, curve.examples, curve.means], [seconds, counts, means])
    assert curve.record == pytest.approx(min(means))
    first = next(n for n, mean in enumerate(means) if mean <= 1200.0)
    assert Goal("loss", 1200.0).reached(curve) == pytest.approx((seconds[first], counts[first]))


def test_nothing_new_is_no_news_and_no_event_is_read_twice() -> None:
    digest = Digest(SPEC, lockstep())
    assert digest.update().events
    seen = digest.events, digest.losses.values.tolist(), dict(digest.updates.staleness)
    digest.update()
    assert (digest.events, digest.losses.values.tolist(), dict(digest.updates.staleness)) == seen


def test_the_accuracy_on_the_way_is_a_curve_of_what_was_measured() -> None:
    trace = lockstep(20)
    trace._add(
        Metric("worker:0", "accuracy", n / 20, n, n * BATCH, 7.5 + n) for n in range(0, 20, 5)
    )
    digest = Digest(SPEC, trace).update(over=True)
    found = digest.accuracies
    assert found.values.tolist() == found.means.tolist() == [0, 0.25, 0.5, 0.75]
    assert found.examples.tolist() == [n * BATCH for n in range(0, 20, 5)]
    assert found.seconds == pytest.approx([7.5 + n - digest.zero for n in range(0, 20, 5)])


def test_a_board_says_what_the_memory_of_the_fullest_task_is_taken_by() -> None:
    trace = lockstep(20)
    trace._add(
        Metric(task, kind, value, 0, BATCH, 7.0)
        for task, kind, value in [
            ("worker:0", "parameters", 1024),
            ("worker:1", "parameters", 2048),
            ("worker:1", "activations", 512),
        ]
    )
    view = view_of(SomeRun(trace), SomeRun(lockstep(20)))
    said = "memory of worker:1: 2.5 KiB: 2 KiB parameters, 512 B activations"
    assert [side.memory() for side in view.sides] == [said, ""]
    assert said in view.table()
    assert pictures.document(view).count(f">{said}<") == 1


# --- lanes ---


def test_a_lane_holds_each_phase_and_never_more_than_its_columns() -> None:
    digest = Digest(SPEC, lockstep(2000)).update(over=True)
    end = digest.edge()
    slow, fast = (lane for lane in reversed(lanes(digest, TimeWindow(end - 4.6, end))))
    assert len(slow.cells) == COLUMNS and {NAMES[what] for *_, what in svg.runs(fast.cells)} == {
        "compute",
        "wait",
        "reduce",
        "apply",
    }
    assert fast.waited == pytest.approx(0.3 / 0.46, abs=0.05) and slow.waited == 0
    assert len(svg.runs(lanes(digest, TimeWindow(0, end))[0].cells)) <= COLUMNS


def test_a_pause_a_cut_and_a_kill_are_painted_over_the_lanes_that_they_hit() -> None:
    spec = RunSpec(workers=2, hosts=2, global_batch=BATCH)
    trace, at = lockstep(), 9.0
    life = [
        ("worker:0", "paused"),
        ("worker:0", "resumed"),
        ("host:1", "cut"),
        ("host:1", "healed"),
        ("worker:1", "killed"),
    ]
    trace._add(Lifecycle(task, state, "", at + 0.2 * i) for i, (task, state) in enumerate(life))
    digest = Digest(spec, trace).update()
    first, second = lanes(digest, TimeWindow(9.0, 10.0), columns=10)
    assert [
        (a, b, NAMES[what]) for a, b, what in svg.runs(first.cells) if NAMES[what] == "paused"
    ] == [(0, 2, "paused")]
    assert [
        NAMES[what] for *_, what in svg.runs(second.cells) if NAMES[what] in ("cut", "killed")
    ] == [
        "cut",
        "killed",
    ]
    assert (first.fate, second.fate, second.note) == ("", "killed", "killed")


def test_a_phase_with_a_name_of_ones_own_has_its_place_in_a_lane() -> None:
    trace = Trace([*EVENTS, Phase("worker:0", 1, "tokenize", 6.0, 8.0)])
    digest = Digest(SPEC, trace).update(over=True)
    first, _ = lanes(digest, TimeWindow(0.0, 8.0))
    assert "own" in {NAMES[what] for *_, what in svg.runs(first.cells)}


def test_whoever_is_stuck_in_a_phase_is_silent() -> None:
    digest = Digest(SPEC, lockstep()).update()
    lane = lanes(digest, TimeWindow(100, 101))[0]
    assert (lane.cells == svg.NOTHING).all() and lane.note == "silent"


@pytest.mark.parametrize("over", [False, True])
def test_a_function_of_ones_own_that_reports_no_phases_has_no_note(over: bool) -> None:
    trace = Trace(life(("worker:0", "running"), ("worker:1", "running")))
    digest = Digest(RunSpec(strategy="loop()", workers=2), trace).update(over)
    assert digest.spec.own
    assert [lane.note for lane in lanes(digest, TimeWindow(0.0, 9.0))] == ["", ""]
    trace._add(lockstep())
    digest.update(over)
    assert "" not in [lane.note for lane in lanes(digest, TimeWindow(100.0, 101.0))]


def test_a_worker_that_comes_late_has_an_empty_lane_until_then() -> None:
    trace = Trace([p for p in lockstep() if p.task == "worker:0"])
    digest = Digest(SPEC, trace)
    for _ in range(2):
        digest.update()
        span = digest.step_seconds()
        assert span > 0 and [lane.note for lane in lanes(digest, TimeWindow(8.0, 9.0))] == [
            "waits 0%",
            "no step yet",
        ]


# --- words ---


def test_the_verdict_says_who_was_first_to_what_all_reached_and_whether_it_was_fair() -> None:
    view = view_of(SomeRun(lockstep()), SomeRun(asynchronous()))
    shown = compared(view.race)
    target = shown.target_loss
    seconds = {label: f.seconds_to_target for label, f in shown.entrants.items()}
    fast, slow = sorted(seconds, key=lambda label: seconds[label] or 0)
    assert view.goal == ("loss", pytest.approx(target))
    assert slow in view.headline() and shown.winner == fast
    says("race_board", "the end of a race", f"{view.headline()}\n{view.detail()}")


@pytest.mark.parametrize(
    ("fair", "targets"),
    [(True, {}), (False, {}), (None, {}), (True, {"target_loss": 0.2})],
)
def test_a_board_and_a_comparison_give_the_same_verdict(
    fair: bool | None, targets: dict[str, float]
) -> None:
    """Also of a race in which the accuracy, which is measured but no target, is reached in another
    order than the loss.
    """
    sync, other = lockstep(), asynchronous()
    for trace, at in ((sync, 8.0), (other, 9.0)):
        trace._add([Metric("worker:0", "accuracy", 0.5, 5, 6 * BATCH, at)])
    race = race_of({"sync": SomeRun(sync), "async": SomeRun(other)}, fair, **targets)
    view = View(race.runs, race)
    view.update()
    shown = compared(race)
    accuracies = {label: f.seconds_to_accuracy or 0.0 for label, f in shown.entrants.items()}
    assert accuracies["sync"] < accuracies["async"]
    assert shown.standing.verdict == view.headline().replace("**", "")
    says("race_board", f"fair {fair} {targets or ''}", shown.standing.verdict)


@pytest.mark.parametrize(
    ("states", "targets"),
    [
        (("running", "running"), {}),
        (("running", "finished"), {"target_loss": 0.105}),
        (("running", "running"), {"target_loss": 1e-9}),
        (("finished", "finished"), {"target_loss": 1e-9}),
        (("finished", "finished"), {"target_loss": 0.105}),
        (("stopped", "finished"), {}),
        (("finished", "finished"), {"target_accuracy": 0.9}),
    ],
)
def test_the_headline_says_how_things_stand(
    states: Sequence[str], targets: dict[str, float]
) -> None:
    view = view_of(SomeRun(lockstep(), states[0]), SomeRun(asynchronous(), states[1]), **targets)
    says("race_board", f"{' and '.join(states)} {targets or ''}", view.headline())


def test_a_clock_that_is_started_late_counts_from_then_on_all_that_was_read_before() -> None:
    opened = 9.0  # later than the trace alone would tell
    run = SomeRun(lockstep())
    assert run.digest.zero < opened
    run._digest.begin(opened)
    found, whole = run.digest, Digest(SPEC, lockstep(), opened).update(over=True)
    assert (found.zero, found.idle) == (opened, whole.idle)
    assert found.losses.seconds.tolist() == whole.losses.seconds.tolist()
    assert found.losses.rate() == whole.losses.rate()


def test_a_race_without_losses_is_at_its_start() -> None:
    view = view_of(SomeRun(Trace(), "running"), SomeRun(asynchronous(), "running"))
    says("race_board", "no losses", view.headline())


END = lockstep().seconds
STILL = Standstill(
    END,
    4.23,
    {
        "worker:1": Activity("is paused", 7, cure="run.resume('worker:1') lets it go on"),
        "worker:0": Activity("waits", 7, ("worker:1",)),
    },
)


def standing() -> SomeRun:
    """A run whose steps have ended, and in which worker:1 is paused."""
    run = SomeRun(Trace([*lockstep(), Lifecycle("worker:1", "paused", "by run.pause()", END)]))
    run.state, now = "running", END + STILL.seconds
    inside = {"worker:0": "wait", "worker:1": "compute"}
    run.now = Pulse(now, STILL, [Phase(t, 10, what, END, now) for t, what in inside.items()])
    return run


def test_a_board_says_who_holds_up_a_run_that_stands_still() -> None:
    still, moving = standing(), SomeRun(lockstep(), "running")
    alone = View({"one": still})
    alone.update()
    says("race_board", "standing still", alone.headline())
    assert alone.detail().startswith("Step ")
    race = View({"one": still, "two": moving})
    race.update()
    says("race_board", "standing still in a race", race.detail())
    side = alone.sides[0]
    assert "4.2 s · loss" in side.summary()
    assert "examples/s" in race.sides[1].summary() and "examples/s" not in side.summary()
    still.state = "finished"
    alone.update()
    assert "is finished" in alone.headline() and side.still is None


def test_lanes_grow_grey_while_a_run_stands_still_and_say_who_waits() -> None:
    view = View({"one": standing()})
    view.update()
    window, lanes = view.lanes(view.sides[0], 100)
    assert (window.end, window.span) == (END + 4.23, 10.0)
    assert [lane.note for lane in lanes] == ["waits 4.2 s", "paused"]
    assert [NAMES[lane.cells[-1]] for lane in lanes] == ["wait", "paused"]
    assert lanes[1].events[-1][1] == "pause"


def test_a_board_says_which_tasks_are_on_which_host() -> None:
    spec = SPEC.model_copy(update={"hosts": 2})
    view = View({"one": SomeRun(lockstep(), spec=spec)})
    view.update()
    assert view.sides[0].hosts() == "host:0: worker:0 \u00b7 host:1: worker:1"
    assert view.sides[0].hosts() in view.table()
    assert view.sides[0].hosts() in pictures.facts(view)
    assert View({"one": SomeRun(lockstep())}).sides[0].hosts() == ""


def test_lanes_never_go_back_when_a_run_goes_on() -> None:
    run = standing()
    view = View({"one": run})
    view.update()
    before = view.lanes(view.sides[0], 100)[0].end
    run.now = Pulse(END + 5.0, None)
    view.update()
    assert view.lanes(view.sides[0], 100)[0].end == before


def test_the_throughput_falls_to_0_while_a_run_stands_still() -> None:
    run = standing()
    view = View({"one": run, "two": SomeRun(lockstep(), "running")})
    view.update()
    (xs, ys), (_, moves) = view.panels()[-1].lines
    assert ys[-2:].tolist() == [0.0, 0.0] and moves[-1] > 0
    zero = view.sides[0].digest.zero
    assert xs[-1] == pytest.approx(END + 4.23 - zero)


def test_before_the_first_step_a_board_says_what_takes_so_long() -> None:
    compiling = {f"worker:{n}": Activity("has been in compute of step 0 for 2 s") for n in range(4)}
    run = SomeRun(Trace(), "running")
    run.now = Pulse(2.0, Standstill(0.0, 2.0, compiling, certain=False, kind=STEPLESS))
    view = View({"one": run})
    view.update()
    says("race_board", "no step yet", view.headline())


def test_a_failure_is_told_in_one_line_and_the_other_goes_on() -> None:
    failed = SomeRun(
        lockstep(),
        "failed",
        error=TaskFailed("worker:1", 3, "it was killed by run.kill()", "Traceback\n  much"),
    )
    view = view_of(failed, SomeRun(asynchronous(), "running"))
    why = view.sides[0].failure
    assert "failed in step 3" in why and "Traceback" not in why
    assert view.detail().startswith(f"sync: {why}")
    says("race_board", "a failure", f"{view.headline()}\n{why}")
    assert why in pictures.head(view) and "lk-unfair" in pictures.head(view)
    assert why in view.table() and "Traceback" not in view.table()


# --- boards ---


@pytest.fixture
def board() -> Any:
    spec = RunSpec(
        workers=2, hosts=2, link=Link(mbit=100), global_batch=BATCH, steps=10, device_ms=100
    )
    runs = {
        "sync": SomeRun(lockstep(), "running", spec),
        "async": SomeRun(asynchronous(), "running", spec),
    }
    board = RaceBoard(race_of(runs))
    yield board
    board.close()


def test_the_controls_order_what_is_chosen_of_whom_is_chosen(board: RaceBoard) -> None:
    sync, other = board.race.runs.values()
    controls = board.controls
    controls.factor.value = 4.0  # of the last worker, in both
    controls.run.value = "sync"
    controls.task.value = "worker:0"
    until(lambda: not controls.buttons["pause"].disabled, "the controls are alive")
    controls.buttons["pause"].click()
    controls.buttons["kill"].click()
    controls.delays.value = "lognormal:0.5"
    controls.delays.value = "none"
    controls.host.value = 1
    controls.speed.value = 10.0
    controls.buttons["partition"].click()
    controls.buttons["heal"].click()
    until(lambda: len(sync.orders) == 8, "all orders are carried out")
    assert sync.orders[:5] == [
        ("slow", "worker:1", 4.0),
        ("pause", "worker:0"),
        ("kill", "worker:0"),
        ("jitter", "worker:0", "lognormal:0.5"),
        ("jitter", "worker:0", None),
    ]
    assert sync.orders[5:] == [("link", 1, Link(mbit=10)), ("partition", 1), ("heal", 1)]
    assert other.orders == [("slow", "worker:1", 4.0), *sync.orders[5:]]


def test_the_slider_follows_a_cell_and_its_own_order_stands_until_the_trace_shows_it(
    board: RaceBoard,
) -> None:
    sync, other = board.race.runs.values()
    slider = board.controls.factor
    sync.trace._add([Lifecycle("worker:1", "slowed", "by run.slow()", 9.0, factor=4)])
    until(lambda: slider.value == 4.0, "the slider follows")
    slider.value = 2.0
    until(lambda: other.orders, "the order is carried out")
    board.controls.refresh()
    assert slider.value == 2.0
    for run in (sync, other):
        run.trace._add([Lifecycle("worker:1", "slowed", "by run.slow()", 9.2, factor=2)])
    until(lambda: board.view.sides[1].digest.factor("worker:1") == 2.0, "the trace is read")
    sync.trace._add([Lifecycle("worker:1", "slowed", "by run.slow()", 9.3, factor=12)])
    until(lambda: slider.value == 12.0, "the slider follows again, as far as that is")
    assert sync.orders == other.orders == [("slow", "worker:1", 2.0)]


def test_a_choice_of_delays_is_an_order_and_stands_until_the_trace_shows_another(
    board: RaceBoard,
) -> None:
    sync, other = board.race.runs.values()
    delays, chosen = board.controls.delays, "exponential:20ms"
    delays.value = chosen
    board.controls.refresh()
    assert delays.value == chosen
    until(lambda: sync.orders and other.orders, "the order is carried out")
    for run in (sync, other):
        run.trace._add([Lifecycle("worker:1", "jittered", "on the board", 8.9, jitter=chosen)])
    until(lambda: board.view.sides[1].digest.jitter("worker:1") == chosen, "the trace is read")
    form = "one_in:7:90ms"  # which a cell ordered
    sync.trace._add([Lifecycle("worker:1", "jittered", "by run.jitter()", 9.0, jitter=form)])
    until(lambda: delays.value == form, "the choice follows")
    board.controls.task.value = "worker:0"
    assert delays.value == "none"
    assert sync.orders == other.orders == [("jitter", "worker:1", chosen)]


def test_a_refused_order_to_slow_leaves_the_slider_where_the_task_is(board: RaceBoard) -> None:
    for run in board.race.runs.values():
        run.error = LockstepError("slow('worker:1') comes too late")
    until(lambda: not board.controls.buttons["pause"].disabled, "the controls are alive")
    board.controls.factor.value = 5.0
    until(lambda: board.controls.factor.value == 1.0, "the slider goes back")


def two_hosts(state: str = "running") -> SomeRun:
    """A run whose hosts have links of their own, one of them with a delay."""
    links = {0: Link(mbit=100), 1: Link(mbit=20, delay_ms=5)}
    return SomeRun(lockstep(), state, RunSpec(workers=2, hosts=2, link=links, global_batch=BATCH))


def test_the_link_slider_shows_the_chosen_host_and_follows_what_a_cell_orders() -> None:
    run = two_hosts()
    board = TrainingBoard(run)
    links = board.controls
    assert links.speed.value == 100
    links.host.value = 1
    assert links.speed.value == 20 and run.orders == []
    run.trace._add([Lifecycle("host:1", "linked", "by run.link()", 9.0, mbit=50.0, delay_ms=7.0)])
    until(lambda: links.speed.value == 50, "the slider follows")
    run.trace._add([Lifecycle("host:1", "linked", "by run.link()", 9.1)])
    until(lambda: links.speed.value == 10_000, "a link without a limit stands at the end")
    links.host.value = 0
    assert links.speed.value == 100 and run.orders == []
    board.close()


def test_a_new_speed_keeps_the_present_delay_of_the_link() -> None:
    run = two_hosts()
    board = TrainingBoard(run)
    links = board.controls
    links.host.value = 1
    links.speed.value = 10.0
    until(lambda: run.orders, "the order is carried out")
    run.trace._add([Lifecycle("host:1", "linked", "by run.link()", 9.0, mbit=50.0, delay_ms=7.0)])
    run.trace._add([Lifecycle("host:1", "linked", "by run.link()", 9.1, mbit=10.0, delay_ms=7.0)])
    until(lambda: len(board.view.sides[0].digest.life.of("host:1")) == 2, "the trace is read")
    links.speed.value = 30.0
    until(lambda: len(run.orders) == 2, "the order is carried out")
    assert run.orders == [
        ("link", 1, Link(mbit=10, delay_ms=5)),
        ("link", 1, Link(mbit=30, delay_ms=7)),
    ]
    board.close()


def test_a_slider_goes_back_by_one_button(board: RaceBoard) -> None:
    sync, _ = board.race.runs.values()
    tasks, links = board.controls.children
    for row, slider, normal in ((tasks, "factor", 1.0), (links, "speed", 10_000.0)):
        (back,) = [button for button in row.children if "lk-back" in button._dom_classes]
        getattr(board.controls, slider).value = 8.0
        back.click()
        assert getattr(board.controls, slider).value == normal
    until(lambda: len(sync.orders) == 4, "all orders are carried out")
    assert sync.orders[1] == ("slow", "worker:1", 1.0)


def test_of_two_orders_that_end_each_other_one_is_offered_at_a_time() -> None:
    run = two_hosts()
    board = TrainingBoard(run)

    def offered() -> set[str]:
        buttons = board.controls.buttons.items()
        return {order for order, button in buttons if button.layout.display != "none"}

    assert offered() == {"pause", "kill", "stop", "partition"}
    run.trace._add([Lifecycle("host:0", "cut", "by a test", 9.0)])
    run.trace._add([Lifecycle("worker:1", "paused", "by a test", 9.0)])
    until(lambda: offered() == {"resume", "kill", "stop", "heal"}, "they are offered")
    run.trace._add([Lifecycle("host:0", "healed", "by a test", 9.1)])
    run.trace._add([Lifecycle("worker:1", "resumed", "by a test", 9.1)])
    until(lambda: offered() == {"pause", "kill", "stop", "partition"}, "they are offered")
    board.close()


def test_what_is_over_is_started_once_more_and_followed() -> None:
    first, second = two_hosts(), two_hosts()
    first.restart = lambda: second
    board = TrainingBoard(first)
    restart = board.controls.buttons["restart"]
    assert restart.disabled
    first.state = "failed"
    until(lambda: not restart.disabled, "it can be started")
    restart.click()
    until(lambda: board.run is second and restart.disabled, "the second is followed")
    board.controls.speed.value = 10.0
    board.controls.buttons["stop"].click()
    until(lambda: len(second.orders) == 2, "its links are changed, and it is stopped")
    assert [order for order, *_ in second.orders] == ["link", "stop"] and not first.orders
    board.close()


def test_an_end_that_is_read_for_a_picture_is_drawn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SomeRun(lockstep(), "running")

    def leave(board: Any) -> None:
        run.state = "finished"
        board.table()

    monkeypatch.setattr(TrainingBoard, "leave", leave)
    board = TrainingBoard(run)
    until(lambda: 'data-state="finished"' in board.lanes.value, "the end is drawn")
    board.close()


def test_the_log_of_the_chosen_task_is_shown_when_it_is_asked_for() -> None:
    run = SomeRun(lockstep(), "running")
    run.log = lambda task, lines: f"{task} printed <this>"
    board = TrainingBoard(run)
    assert board.controls.printed.value == ""
    board.controls.reads.value = True
    assert "worker:1 printed &lt;this&gt;" in board.controls.printed.value
    board.controls.task.value = "worker:0"
    until(lambda: "worker:0 printed" in board.controls.printed.value, "it follows the choice")
    board.close()


def test_a_saved_page_has_the_lanes_of_the_whole_run(tmp_path: Path) -> None:
    board = RaceBoard(race_of({"one": SomeRun(lockstep(200)), "two": SomeRun(lockstep(300))}))
    page = board.to_html(tmp_path / "board.html").read_text()
    begin, end, windows = board.view.whole() or (0, 0, 0)
    assert begin == 0 and windows > 5
    assert end == pytest.approx(max(s.edge() - s.digest.zero for s in board.view.sides))
    assert f"0 0 {COLUMNS * windows} 18" in page
    board.close()


def test_the_bars_of_staleness_end_with_all_that_are_as_stale_or_more() -> None:
    updates = [Update("worker:0", n, "", "worker:0", 0, n + 1, 2.0 + n) for n in range(20)]
    run = SomeRun(Trace([*lockstep(), *updates]))
    view = View({"one": run})
    view.update()
    assert len(view.sides[0].digest.updates.staleness) > 12
    assert "+</li>" in pictures.facts(view)


def test_the_controls_start_at_the_straggler() -> None:
    run = SomeRun(lockstep(), spec=RunSpec(workers=2, global_batch=BATCH, slow={"worker:0": 4}))
    board = RaceBoard(race_of({"one": run, "two": SomeRun(lockstep())}))
    assert (board.controls.task.value, board.controls.factor.value) == ("worker:0", 4.0)
    board.close()


def test_what_is_refused_is_said_on_the_board(board: RaceBoard) -> None:
    board.race.runs["sync"].error = LockstepError("pause('worker:1') comes too late\nmore")
    board.controls.run.value = "sync"
    until(lambda: not board.controls.buttons["pause"].disabled, "the controls are alive")
    board.controls.buttons["pause"].click()
    until(
        lambda: "pause(&#x27;worker:1&#x27;) comes too late</p>" in board.head.value,
        "the refusal",
    )
    assert board.bar.message.endswith("comes too late")


def test_a_picture_taken_while_the_board_looks_for_the_first_time_shows_the_runs_whole(
    tmp_path: Path,
) -> None:
    race = race_of({"sync": SomeRun(lockstep(2000)), "async": SomeRun(asynchronous())})
    for _ in range(5):
        board = RaceBoard(race)
        early, table = board.still(tmp_path / "early.svg").read_text(), board.table()
        board.halt()
        late = board.still(tmp_path / "late.svg").read_text()
        assert (
            re.sub(r"lk\w{8}-", "", early) == re.sub(r"lk\w{8}-", "", late)
            and table == board.table()
        )
        board.close()


def test_pictures_and_pages_hold_the_same_facts_and_ask_nobody(
    board: RaceBoard, tmp_path: Path
) -> None:
    board.halt()
    for run in board.race.runs.values():
        run.state = "finished"
    board.draw()
    svg = ET.fromstring(board.still(tmp_path / "board.svg").read_text())
    texts = [e.text for e in svg.iter("{http://www.w3.org/2000/svg}text")]
    page = board.to_html(tmp_path / "board.html").read_text()
    for fact in (
        "sync",
        "async",
        "worker:0",
        "worker:1",
        "loss over seconds",
        "loss over examples",
    ):
        assert fact in texts and fact in page, fact
    assert "emulated" in page and "100 ms" in page
    assert board.view.headline().replace("**", "") in board.table()
    assert "://" not in page.replace("http://www.w3.org", "")
    assert repr(board) == "RaceBoard(sync, async)"


def test_a_board_costs_little_to_make_and_a_picture_no_more_late_in_a_run() -> None:
    with Wire.tapped() as wire:
        board = board_of_made_up_runs(100)
        made = wire.bytes
        sizes = []
        for _ in range(3):
            for run in board.race.runs.values():
                run.more(1000)
            before = wire.bytes
            board.draw()
            sizes.append(wire.bytes - before)
        points = max(len(x) / 4 for panel in board.charts.panels for x, _ in panel["lines"])
        board.close()
    assert 10_000 < made < LIMIT and max(sizes) < LIMIT and points == POINTS


def test_a_board_is_whole_before_anything_is_read_and_no_part_comes_or_goes_later() -> None:
    runs = {"one": SomeRun(Trace(), "starting"), "other": SomeRun(Trace())}
    says("race_board", "starting", View(runs).headline())
    board = RaceBoard(race_of(runs))
    assert board.lanes.value.count('data-task="worker:') == 4
    assert [panel["title"] for panel in board.charts.panels] == [
        "loss over seconds",
        "loss over examples",
        "examples a second",
    ]
    parts = list(board.children)
    board.halt()
    runs["one"].trace._add(lockstep())
    board.draw()
    assert list(board.children) == parts
    board.close()


def test_all_that_a_chart_shows_is_in_its_state_for_a_page_that_is_opened_later(
    board: RaceBoard,
) -> None:
    board.halt()
    board.draw()
    for plain, panel in zip(board.charts.get_state()["panels"], board.view.panels(), strict=True):
        assert plain["title"] == panel.title and len(plain["lines"]) == 2
        for sent, line in zip(plain["lines"], panel.lines, strict=True):
            for bytes_, axis in zip(sent, line, strict=True):
                assert np.frombuffer(bytes_, np.float32) == pytest.approx(axis)
        assert plain["wide"] == panel.wide and plain["log"] == panel.log


def test_a_chart_ends_where_its_lines_and_marks_end_and_holds_nothing_that_is_not_finite() -> None:
    line = np.array([0.0, 2.0, 3.0]), np.array([4.0, math.nan, 0.0])
    panel = Panel("", "seconds", "", [line], marks=[(5.0, "kill", "")])
    assert panel.wide == 5.0 and panel.y_axis == (0.0, pytest.approx(4 * 1.06))
    empty = Panel("", "seconds", "", [(np.zeros(0), np.zeros(0))])
    assert (empty.wide, empty.y_axis) == (1.0, (0.0, 1.0))


def test_the_controls_of_a_race_that_is_over_are_off() -> None:
    over = race_of(
        {"sync": SomeRun(lockstep()), "async": SomeRun(asynchronous())},
        False,
        "NOT FAIR: it queued.",
    )
    board, no_race = RaceBoard(over), RaceBoard(over, hide=["fairness"])
    for each in (board, no_race):
        each._thread.join(10)
    tasks = board.controls
    assert all(c.disabled for c in (tasks.factor, *tasks.buttons.values()))
    for shown in (board.head, board.facts):
        assert "lk-unfair" in shown.value and "NOT FAIR: it queued." in shown.value
    for shown in (no_race.head, no_race.facts):
        assert "FAIR" not in shown.value and "lk-unfair" not in shown.value
    board.close()
    no_race.close()


def test_a_board_that_cannot_draw_says_so_and_ends() -> None:
    run = Made()
    # a word where a number belongs
    run.trace._add([Lifecycle("worker:0", "slowed", "", 1.0, factor="four")])
    board = RaceBoard(race_of({"one": run, "other": Made()}))  # type: ignore[dict-item]
    board._thread.join(10)
    assert "ValueError" in board.head.value
    board.close()


# --- saved runs ---


def save(
    path: Path,
    events: Sequence[Event],
    spec: RunSpec = SPEC,
    result: dict[str, Any] | None = None,
    error: Any = None,
) -> Path:
    """The directory of a run, as its tasks leave it."""
    task = path / "tasks" / "worker-0"
    task.mkdir(parents=True)
    (path / "spec.json").write_text(spec.model_dump_json())
    (path / "run.json").write_text(json.dumps({"origin": 0.0}))
    (path / "lifecycle.jsonl").write_bytes(
        b"".join(to_line(e) for e in events if isinstance(e, Lifecycle))
    )
    (task / "events.jsonl").write_bytes(
        b"".join(to_line(e) for e in events if not isinstance(e, Lifecycle))
    )
    for name, value in (("result.json", result), ("tasks/worker-0/error.json", error)):
        if value is not None:
            (path / name).write_text(json.dumps(value))
    return path


def life(*states: tuple[str, str]) -> list[Event]:
    """Each task's state; who starts is a process that is there: this one."""
    whys = {"killed": "why"}
    pids = {"starting": os.getpid()}
    return [
        Lifecycle(task, state, whys.get(state, ""), 10.0, pids.get(state, 0))
        for task, state in states
    ]


def test_a_saved_run_says_how_it_ended(tmp_path: Path) -> None:
    began = [
        ("worker:0", "starting"),
        ("worker:1", "starting"),
        ("worker:0", "running"),
        ("worker:1", "running"),
    ]
    done = SavedRun(
        save(
            tmp_path / "done",
            life(*began, ("worker:0", "done"), ("worker:1", "done")),
            result={"final_loss": 1.0},
        )
    )
    killed = SavedRun(
        save(tmp_path / "killed", [*lockstep(3), *life(*began, ("worker:1", "killed"))])
    )
    stopped = SavedRun(save(tmp_path / "stopped", life(*began)))
    assert (done.state, killed.state, stopped.state) == ("finished", "failed", "stopped")
    assert done.result == {"final_loss": 1.0}
    with pytest.raises(TaskFailed, match="failed in step 2"):
        _ = killed.result
    with pytest.raises(LockstepError, match="it is stopped"):
        _ = stopped.result


def test_a_run_goes_on_while_its_temporary_folders_and_a_process_are_there(tmp_path: Path) -> None:
    starting = life(("worker:0", "starting"), ("worker:1", "starting"))
    alive = [e._replace(pid=os.getpid()) for e in starting if isinstance(e, Lifecycle)]
    run = SavedRun(save(tmp_path / "run", alive))
    (tmp_path / "run" / "tasks" / "worker-0" / "tmp").mkdir()
    assert run.state == "starting"
    with (tmp_path / "run" / "lifecycle.jsonl").open("ab") as file:
        file.writelines(map(to_line, life(("worker:0", "running"), ("worker:1", "running"))))
    assert run.state == "running"


def test_what_holds_no_run_is_refused_by_name(tmp_path: Path) -> None:
    for spec in ("", "{"):
        if spec:
            (tmp_path / "spec.json").write_text(spec)
        with pytest.raises(SpecError, match="directory") as caught:
            saved_runs(tmp_path)
        assert caught.value.value == str(tmp_path)


def test_watching_a_saved_race_prints_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = life(("worker:0", "starting"), ("worker:0", "done"), ("worker:1", "done"))
    save(tmp_path / "race" / "0-sync", [*lockstep(), *done])
    save(tmp_path / "race" / "1-async", [*asynchronous(), *done])
    watch(tmp_path / "race", timeout=60)
    out = " ".join(capsys.readouterr().out.split())
    assert "Time to loss" in out
    for fact in ("finished, emulated", "waits 0%", "worker:1", "█"):
        assert fact in out, fact


def test_the_terminal_shows_the_lanes_of_a_board(tmp_path: Path) -> None:
    view = view_of(SomeRun(lockstep()), SomeRun(asynchronous()))
    console = Console(width=100, file=io.StringIO())
    console.print(frame(view, 100))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("worker:0") == text.count("worker:1") == 2 and "·" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_page_of_one_run_has_its_one_lane_for_each_task(tmp_path: Path) -> None:
    view = View({"it": SomeRun(lockstep())})
    view.update()
    page = pictures.document(view)
    assert page.count('class="lk-row"') == 2 and view.goal is None and "They race" not in page


def test_the_delay_of_a_page_is_a_mean_over_the_moments_of_events() -> None:
    # 0.1 s for the newest, 1.1 s for the oldest
    assert mean_delay([(1.0, 0.9), (2.0, 1.9), (3.0, 2.9)]) == pytest.approx(0.6)
    assert math.isclose(mean_delay([(1.0, 1.0), (1.5, 1.5)]), 0.25)


def test_what_is_done_to_tasks_is_marked_on_lanes_and_on_charts_over_seconds() -> None:
    done = [
        Lifecycle("worker:1", "paused", "by run.pause()", 9.0),
        Lifecycle("worker:1", "resumed", "by run.resume()", 9.5),
        Lifecycle("worker:0", "slowed", "by run.slow()", 9.6, factor=3.0),
        Lifecycle("worker:0", "restarting", "", 9.8),
        Lifecycle("worker:1", "restarting", "", 9.81),
    ]
    side = SomeRun(Trace([*lockstep(), *done]))
    view = View({"it": side})
    view.update()
    assert view.sides[0].digest.life.marks() == [
        (9.0, "pause", ("worker:1",)),
        (9.5, "resume", ("worker:1",)),
        (9.6, "slow \u00d73", ("worker:0",)),
        (9.8, "restart", ("worker:0", "worker:1")),
    ]
    zero = view.sides[0].digest.zero
    losses, examples, _ = view.panels()
    assert losses.wide == max(losses.lines[0][0][-1], 9.8 - zero)
    words = ["pause", "resume", "slow \u00d73", "restart"]
    assert [word for _, word, _ in losses.marks] == [word for _, word, _ in examples.marks] == words
    assert losses.marks[0][0] == pytest.approx(9.0 - zero)
    note = losses.marks[3][2]
    assert note.startswith("restart: worker:0, worker:1,") and f"{9.8 - zero:.1f} s" in note
    curve = view.sides[0].digest.losses
    assert examples.marks[0][0] == pytest.approx(
        np.interp(9.0 - zero, curve.seconds, curve.examples)
    )
    first, second = lanes(view.sides[0].digest, TimeWindow(8.0, 10.0))
    assert second.events == [(0.5, "pause"), (0.75, "resume"), (pytest.approx(0.905), "restart")]
    # they would lie on each other
    assert first.events == [(pytest.approx(0.8), "slow \u00d73, restart")]
    slowed = [
        Lifecycle("worker:0", "slowed", "by run.slow()", 9 + k / 50, factor=2.0 + k)
        for k in range(9)
    ]
    many = View({"it": SomeRun(Trace([*lockstep(), *slowed]))})
    many.update()
    first, _ = lanes(many.sides[0].digest, TimeWindow(8.0, 10.0))
    ((_, word),) = first.events
    assert word.endswith(", slow \u00d710") and len(word) < 40
    assert 'style="left:50.0%"' in pictures.document(view) or ">pause<" in pictures.still(view)
    shown = [panel.plain() for panel in view.panels()]
    assert [word for _, word, _ in shown[0]["marks"]] == words


def test_the_legend_names_only_what_the_lanes_have_shown() -> None:
    view = View({"it": SomeRun(Trace(EVENTS))})
    view.update()
    assert view.names() == []
    legend = pictures.still(view).rpartition("</pattern>")[2]
    assert view.names() == ["compute", "wait", "reduce", "apply"]
    assert ">reduce<" in legend and ">hidden<" not in legend


def test_a_run_that_reports_no_loss_has_words_in_place_of_axes() -> None:
    silent = Trace([e for e in EVENTS if not isinstance(e, Metric)])
    view = View({"it": SomeRun(silent)})
    view.update()
    assert [panel.empty for panel in view.panels()] == [
        "no loss reported",
        "no loss reported",
        "no examples/s reported",
    ]
    picture = pictures.still(view)
    assert picture.count(">no loss reported<") == 2 and 'class="grid"' not in picture
    live = View({"it": SomeRun(silent, "running")})
    live.update()
    assert live.panels()[0].empty == "no loss reported"


def test_each_of_several_losses_has_a_chart_and_one_below_zero_an_axis() -> None:
    both = [
        Metric("worker:0", name, sign * (2 - n / 20), n, 64 * n, 5.0 + n)
        for n in range(20)
        for name, sign in (("generator loss", -1.0), ("critic loss", 1.0))
    ]
    run = SomeRun(Trace([*(e for e in lockstep() if not isinstance(e, Metric)), *both]))
    view = View({"it": run})
    view.update()
    generator, critic, rate = view.panels()
    titles = ["generator loss", "critic loss", "examples a second"]
    assert [panel.title for panel in (generator, critic, rate)] == titles
    assert generator.lines[0][1][0] == -2 and critic.lines[0][1][0] == 2
    assert critic.y_axis == (0.0, pytest.approx(2.12))
    low, high = generator.y_axis
    assert (low, high) == (pytest.approx(-2.12), 0.0)
    picture = pictures.still(view)
    assert ">-2<" in picture and ">-1<" in picture  # on the axis
    assert "critic loss 1.27 (" in view.headline()
    assert "· generator loss -" in view.sides[0].summary()
    nan = Metric("worker:0", "critic loss", math.nan, 20, 64 * 20, 30.0)
    broken = View({"it": SomeRun(Trace([*lockstep(), *both, nan]))})
    broken.update()
    says("race_board", "diverged", broken.diverged)
    own = Digest(SPEC, Trace([*both, *lockstep()])).update(
        over=True
    )  # a program that records more than its loss
    assert list(own.by_name) == ["generator loss", "critic loss", "loss"]
    assert own.losses is own.by_name["loss"]
    # entrants of a race that have other losses: a chart for each, with a line where there is one
    two = View({"it": run, "other": SomeRun(lockstep())})
    two.update()
    assert [[len(x) > 0 for x, _ in panel.lines] for panel in two.panels()] == [
        [True, False],
        [True, False],
        [False, True],
        [True, True],
    ]


def test_lines_are_drawn_over_the_stems_of_marks_and_only_several_have_a_key() -> None:
    panel = Panel("", "seconds", "", [(np.arange(3.0), np.ones(3))], marks=[(1, "kill", "why")])
    drawn = chart(panel, 0, 0, 300, 200)
    assert drawn.index("<title>why</title>") < drawn.index('stroke-width="2.5"')
    one, two = (Charts(labels, [panel.plain()]) for labels in (["it"], ["it", "other"]))
    assert one.layout.min_height < two.layout.min_height
    assert [entrant["label"] for entrant in two.entrants] == ["it", "other"]


def test_words_of_marks_stand_above_the_lines() -> None:
    panel = Panel(
        "loss", "seconds", "loss", [(np.arange(3.0), np.ones(3))], marks=[(1, "slow", "")]
    )
    bare = chart(replace(panel, marks=()), 0, 0, 300, 200)
    marked = chart(panel, 0, 0, 300, 200)

    def top(drawn: str) -> float:
        return float(
            re.findall(r'd="M [\d.]+ ([\d.]+)', drawn.partition('stroke-width="2.5"')[2])[0]
        )

    word = float(re.search(r'y="([\d.]+)"[^>]*>slow<', marked)[1])
    assert top(marked) > word > top(bare) - 8


def test_words_of_marks_stand_apart_within_the_chart_and_those_without_room_are_left_out() -> None:
    marks = [(1 + 0.001 * n, f"word {n}", "") for n in range(7)]
    panel = Panel("", "seconds", "", [(np.arange(2.0), np.ones(2))], marks=marks)
    drawn = chart(panel, 0, 0, 300, 200)
    shown = re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>(word \d)<', drawn)
    assert [word for _, _, word in shown] == ["word 0", "word 1", "word 2", "word 3"]
    assert len({y for _, y, _ in shown}) == 4, "each in a row of its own"
    assert all(float(x) + 6 * len(word) < 300 for x, _, word in shown)


@pytest.mark.parametrize("records", [3, 6, 9, 200])
def test_few_records_make_a_line_of_throughput_too(records: int) -> None:
    seconds = np.linspace(0.4, 0.4 * records, records)
    curve = Curve(seconds, 128 * np.arange(1.0, records + 1), *np.ones((3, records)))
    ((xs, ys),) = throughput([curve], [None]).lines
    assert len(xs) >= 2 and xs[-1] <= seconds[-1] + 1e-6
    assert ys == pytest.approx(128 / 0.4)
