"""A race without processes: who lines up with what, what traces say side by side, and when a race
was fair. All traces here are made up.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib import RunSpec, Workload, hardware
from course_lib.errors import SpecError
from course_lib.racing import fairness
from course_lib.racing.comparison import POINTS, Comparison, Figures
from course_lib.racing.entrants import divide, line_up, parse_entrant
from course_lib.racing.fairness import (
    MOST_BUSY,
    MOST_LOST,
    SHORTEST,
    Counters,
    Fairness,
    Load,
    LoadMeter,
    StartingLine,
    judge,
    with_differences,
)
from course_lib.racing.race import race
from course_lib.record.curves import EMPTY, WINDOW, Curve
from course_lib.record.digest import Digest
from course_lib.record.events import Dropped, Event, Lifecycle, Metric, Phase, Update
from course_lib.record.rundir import RunDir, RunFacts, folder_name
from course_lib.record.trace import Trace
from course_lib.record.verdict import Entry, Goal, Standing, quoted
from course_lib.record.waits import met
from course_lib.workloads.layers import Sketch
from tests.made_up import BATCH, SPEC, asynchronous, lockstep
from tests.screens import says

HERE = hardware.probe()


def of(trace: Trace, label: str = "it", zero: float = math.inf) -> Figures:
    return Figures(label, Digest(SPEC, trace, zero).update(over=True), "finished")


def comparing(*found: Figures, **targets: float) -> Comparison:
    return Comparison(found, Fairness(True, "Fair: nobody waited."), ["a note"], **targets)


# --- what a trace says ---


def test_a_synchronous_run_is_timed_from_its_second_step() -> None:
    found = of(lockstep())
    assert found.began == pytest.approx(2.0 + 0.4 + 5.0 + 0.06)
    assert found.seconds == pytest.approx(9 * 0.46)
    assert found.examples == 10 * BATCH
    assert found.examples_per_second == pytest.approx(BATCH / 0.46)


def test_workers_that_report_one_loss_give_one_point_a_step() -> None:
    curve = of(lockstep()).curve
    assert list(zip(curve.examples, curve.values, strict=True)) == [
        ((n + 1) * BATCH, 1 / (n + 1)) for n in range(10)
    ]


def test_in_lockstep_whoever_is_early_idles_until_the_last_has_come() -> None:
    idle = of(lockstep()).idle_share
    assert idle == {"worker:0": pytest.approx(0.3 / 0.46), "worker:1": 0.0}


def test_a_wait_that_was_noticed_late_does_not_undo_those_of_the_run() -> None:
    late = [
        Phase("worker:0", 10, "reduce", 20.0, 20.001),
        Phase("worker:1", 10, "reduce", 20.003, 20.004),
    ]
    assert not all(met(late))
    idle = of(Trace([*lockstep(), *late])).idle_share
    assert idle["worker:0"] == pytest.approx(9 * 0.3 / (20.001 - 7.46), rel=0.01)


def test_the_loss_of_a_loop_with_batches_of_its_own_is_averaged_over_ten_of_them() -> None:
    losses = [Metric("worker:0", "loss", n, n, 32 * (n + 1), 9.0 + n) for n in range(60)]
    for strategy, mean in (("work()", 54.5), ("one_device", 49.5)):  # that has batches of 64
        spec = RunSpec(strategy=strategy, workers=1, **{"global_batch": 64} if mean < 50 else {})
        assert Digest(spec, Trace(losses)).update(over=True).losses.last == mean


def test_the_first_step_counts_neither_as_idle_nor_as_busy() -> None:
    assert of(lockstep(compile_time=0.0)).idle_share == pytest.approx(
        of(lockstep(compile_time=50.0)).idle_share
    )


def test_a_clock_that_starts_when_the_line_opens_leaves_out_the_wait_at_the_line() -> None:
    first, rest = lockstep(steps=1), [e for e in lockstep(begin=20 - 5.46) if e.step > 0]  # type: ignore[union-attr]
    found = of(Trace([*first, *rest]), zero=20.0)
    assert (found.began, found.seconds) == (20.0, pytest.approx(9 * 0.46))
    assert found.examples_per_second == pytest.approx(BATCH / 0.46)
    assert found.idle_share["worker:0"] == pytest.approx(0.3 / 0.46)


def test_an_asynchronous_run_has_one_point_for_every_gradient_and_its_updates_by_staleness() -> (
    None
):
    trace = asynchronous()
    found = of(trace)
    updates = trace.all(Update)
    assert len(found.curve.values) == len(updates) > 30
    assert sum(found.staleness["updates"].values()) == len(updates)
    # the slow worker's: the fast one pushed meanwhile
    assert found.staleness["max"] == max(u.staleness for u in updates) >= 3
    assert "0" in found.staleness["updates"]


def test_nobody_idles_in_an_asynchronous_run_however_unequal_its_workers_are() -> None:
    assert not all(met(asynchronous().all(Phase)))
    assert all(met(lockstep().all(Phase)))
    assert of(asynchronous()).idle_share == {"ps:0": 0.0, "worker:0": 0.0, "worker:1": 0.0}


def test_waits_that_a_strategy_records_itself_are_idle_time() -> None:
    """As with bounded staleness: the fast worker is let go now and then."""
    events: list[Event] = list(asynchronous((0.1,), until=3.2))
    last = max(p.end for p in Trace(events).all(Phase))
    events += [
        Phase("worker:0", 90, "wait", last, last + 1.0),
        Phase("worker:0", 90, "compute", last + 1.0, last + 1.1),
    ]
    spent = last + 1.1 - Digest(SPEC, Trace(events)).update(over=True).zero
    assert of(Trace(events)).idle_share["worker:0"] == pytest.approx(1.0 / spent)


def test_throughput_of_an_asynchronous_run_is_that_of_all_its_workers() -> None:
    found = of(asynchronous(until=40.0))
    share = BATCH / 2
    assert found.examples_per_second == pytest.approx(share / 0.12 + share / 0.42, rel=0.02)


def test_an_asynchronous_run_does_not_lose_to_a_synchronous_one_for_having_a_straggler() -> None:
    sync, alone = of(lockstep(steps=40)), of(asynchronous(until=25.0))
    assert alone.examples_per_second > 2 * sync.examples_per_second  # type: ignore[operator]


def test_the_clock_starts_with_the_last_worker_s_second_step_and_forgets_who_has_none() -> None:
    trace = asynchronous((0.1, 0.4))
    assert Digest(SPEC, trace).update(over=True).zero == pytest.approx(2.0 + 1.0 + 0.4 + 0.02)
    killed = Trace([*trace, Phase("worker:2", 0, "compute", 2.0, 5.0)])
    assert Digest(SPEC, killed).update(over=True).zero == Digest(SPEC, trace).update(over=True).zero
    assert Digest(SPEC, Trace()).update(over=True).zero == math.inf


def test_what_was_computed_before_the_clock_started_does_not_count_even_if_recorded_later() -> None:
    """A chief that waits at the line has answers lying there: they come in the moment it opens."""
    before = [Phase("worker:0", n, "compute", 1.0 + n, 2.0 + n) for n in range(3)]
    after = [Phase("worker:0", n, "compute", 10.0 + n, 11.0 + n) for n in range(3, 7)]
    losses = [
        Metric("chief:0", "loss", 1.0, n, (n + 1) * BATCH, 10.0 if n < 3 else 8.0 + n)
        for n in range(7)
    ]
    found = of(Trace([*before, *after, *losses]), zero=10.0)  # type: ignore[list-item]
    assert found.curve.seconds.tolist() == [0, 0, 0, 1, 2, 3, 4]
    assert found.examples_per_second == pytest.approx(BATCH)


def test_a_run_without_events_has_figures_that_are_not_known() -> None:
    found = of(Trace())
    assert (found.began, found.examples_per_second, found.loss, found.overhead) == (
        None,
        None,
        None,
        None,
    )
    shown = comparing(found, of(lockstep(), label="other"))
    assert shown.target_loss == shown.entrants["other"].loss
    json.dumps(shown.as_dict(), allow_nan=False)


def test_dropped_gradients_are_counted() -> None:
    dropped = [Dropped("worker:1", n, "late", 9.0) for n in range(3)]
    assert of(Trace([*lockstep(), *dropped])).dropped_gradients == 3


# --- what an update is ---


def written(*places: str, step: int, read: int, version: int, workers: str = "") -> list[Event]:
    """One update, as several places write it: each on a device of its own."""
    return [
        Update(place, step, "all", f"cpu:{i}", read, version, 1.0, 1, workers)
        for i, place in enumerate(places)
    ]


@pytest.mark.parametrize(
    "places",
    [
        ("worker:0",),
        ("worker:0", "worker:0"),
        ("worker:0", "worker:1", "worker:2"),
        ("ps:0", "ps:1"),
    ],
    ids=["central storage", "mirrored", "multi-worker mirrored", "synchronous, two servers"],
)
def test_a_synchronous_step_is_one_update_in_however_many_places_it_is_applied(
    places: tuple[str, ...],
) -> None:
    events = [u for n in range(150) for u in written(*places, step=n, read=n, version=n + 1)]
    assert of(Trace(events)).staleness["updates"] == {"0": 150}


def test_servers_that_took_other_backup_workers_gradients_made_one_update_all_the_same() -> None:
    shards = [
        Update(f"ps:{k}", n, f"shard {k}", "cpu", n, n + 1, 1.0, 1, f"worker:{(n + k) % 2}")
        for n in range(20)
        for k in (0, 1)
    ]
    assert of(Trace(shards)).staleness["updates"] == {"0": 20}


def test_each_asynchronous_gradient_is_an_update_and_as_stale_as_its_stalest_part() -> None:
    one = written("ps:0", step=3, read=3, version=4, workers="worker:0") + written(
        "ps:0", step=3, read=3, version=5, workers="worker:1"
    )
    other = [
        Update("ps:1", 3, "all", "cpu:1", 3, version, 1.0, 1, worker)
        for worker, version in (("worker:0", 4), ("worker:1", 7))
    ]
    for events in ([*one, *other], [*other, *one]):
        found = of(Trace(events)).staleness  # type: ignore[list-item]
        assert (found["updates"], found["max"], found["mean"]) == ({"0": 1, "3": 1}, 3, 1.5)
        assert found["by_worker"] == {"worker:0": 0, "worker:1": 2}


# --- the target ---


def noisy(losses: list[float], parts: int = 1) -> Trace:
    """A loss a second, each of a `parts`-th of a batch."""
    return Trace(
        [Phase("worker:0", n, "compute", n, n + 0.9) for n in range(len(losses))]
        + [
            Metric("worker:0", "loss", loss, n, (n + 1) * BATCH // parts, n + 1.0)
            for n, loss in enumerate(losses)
        ]  # type: ignore[operator]
    )


def test_one_lucky_batch_does_not_reach_the_target() -> None:
    losses = [1.0] * 30 + [0.1] + [1.0] * 29 + [0.1] * 20
    reached = comparing(of(noisy(losses)), target_loss=0.5).entrants["it"]
    assert 60 < reached.examples_to_target / BATCH <= 60 + WINDOW  # type: ignore[operator]
    assert reached.seconds_to_target == reached.examples_to_target / BATCH - 1  # type: ignore[operator]  # a step a second, the first left out


def test_the_mean_is_over_as_many_examples_whatever_a_gradient_is_made_of() -> None:
    whole = of(noisy([1.0] * 20 + [0.0] * 20)).curve
    halves = of(noisy([1.0] * 40 + [0.0] * 40, parts=2)).curve
    in_parts = dict(zip(halves.examples, halves.means, strict=True))
    assert dict(zip(whole.examples, whole.means, strict=True)).items() <= in_parts.items()


def test_without_a_target_they_race_for_the_lowest_loss_that_all_have_reached() -> None:
    good, bad = (
        of(noisy([1.0] * 10 + [0.2] * 30), label="good"),
        of(noisy([1.0] * 10 + [0.6] * 30), label="bad"),
    )
    shown = comparing(good, bad)
    assert shown.target_loss == pytest.approx(0.6)
    assert all(f.seconds_to_target is not None for f in shown.entrants.values())
    fast, slow = shown.entrants["good"], shown.entrants["bad"]
    assert fast.seconds_to_target < slow.seconds_to_target  # type: ignore[operator]
    assert shown.winner == "good"


def test_a_target_that_nobody_reaches_is_reached_by_nobody() -> None:
    shown = comparing(of(lockstep()), target_loss=1e-6)
    found = shown.entrants["it"]
    assert (found.seconds_to_target, found.examples_to_target) == (None, None)


def reading(accuracies: list[float], tasks: int = 1, late: float = 0.0) -> Trace:
    """Steps of a second, and after every second step the test accuracy, which `tasks` tasks measure
    together; `late`: the first step takes longer.
    """
    losses = noisy([1.0] * 2 * len(accuracies))
    events = [
        e._replace(start=e.start + late, end=e.end + late) if isinstance(e, Phase) and e.step else e
        for e in losses
    ]
    for i, accuracy in enumerate(accuracies):
        events += [
            Metric(
                f"worker:{k}",
                "accuracy",
                accuracy,
                2 * i + 1,
                (2 * i + 2) * BATCH,
                2 * i + 2 + late + k * 1e-3,
            )
            for k in range(tasks)
        ]
    return Trace(events)


def test_the_target_accuracy_is_reached_when_it_is_first_measured_by_however_many_tasks() -> None:
    for tasks in (1, 3):
        measured = of(reading([0.2, 0.6, 0.85, 0.8, 0.9], tasks, late=3.0))
        shown = comparing(measured, target_accuracy=0.8)
        found = shown.entrants["it"]
        assert (found.seconds_to_accuracy, found.examples_to_accuracy) == (5.0, 6 * BATCH)
        assert shown.target_accuracy == 0.8
        assert found.accuracy_curve.values.tolist() == [0.2, 0.6, 0.85, 0.8, 0.9]


def test_without_a_target_accuracy_they_race_for_the_highest_that_all_have_reached() -> None:
    good, bad = (
        of(reading([0.5, 0.9, 0.95]), label="good"),
        of(reading([0.4, 0.6, 0.7]), label="bad"),
    )
    shown = comparing(good, bad)
    assert shown.target_accuracy == 0.7
    rows = {row[0]: row[1:] for row in shown.rows()}
    assert rows["seconds to accuracy 0.700"] == ["3.00", "5.00"]
    assert shown.as_dict()["entrants"]["bad"]["accuracy_curve"]["accuracy"] == [0.4, 0.6, 0.7]


def test_where_no_accuracy_was_measured_there_is_no_target_and_no_line_in_the_table() -> None:
    shown = comparing(of(lockstep()))
    assert shown.target_accuracy is None
    assert not len(shown.entrants["it"].accuracy_curve.values)
    assert not any(" to accuracy" in row[0] for row in shown.rows())


@pytest.mark.parametrize("target", [0, 1.1, -1, "much", float("nan")])
def test_a_target_accuracy_is_a_share(target: Any) -> None:
    with pytest.raises(SpecError, match=r"target_accuracy=.* at most 1"):
        race("one_device", "mirrored", target_accuracy=target)


def test_a_target_accuracy_is_for_workloads_that_measure_it() -> None:
    data = [[1.0], [2.0]], [[0.0], [1.0]]
    loss = "mean_squared_error"
    slope = Workload("slope", train=data, test=data, torch=object, loss=loss)
    slope.sketches["torch", "float32"] = Sketch(parameters=2)  # as if it had been tried
    with pytest.raises(SpecError, match=r"mean_squared_error: .*target_loss"):
        race(
            "one_device",
            "fully_sharded",
            workload=slope,
            global_batch=2,
            target_accuracy=0.9,
        )


@given(
    seconds=st.lists(st.floats(0.01, 2.0), min_size=1, max_size=4),
    targets=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)),
)
def test_figures_of_any_asynchronous_run_hang_together(
    seconds: list[float], targets: tuple[float, float]
) -> None:
    found = of(asynchronous(tuple(seconds), until=8.0))
    assert all(0 <= share <= 1 for share in found.idle_share.values())
    assert found.curve.examples.tolist() == sorted(found.curve.examples)
    assert found.curve.seconds.tolist() == sorted(found.curve.seconds)
    easy, hard = (
        comparing(found, target_loss=target).entrants["it"].seconds_to_target
        for target in sorted(targets, reverse=True)
    )
    assert hard is None or (easy is not None and easy <= hard)


# --- how it is shown ---


def test_the_table_has_a_column_for_each_entrant_and_says_what_to_know() -> None:
    shown = comparing(of(lockstep(), label="sync"), of(asynchronous(), label="async"))
    assert shown.headers() == ["race", "sync", "async"]
    assert all(len(row) == 3 for row in shown.rows())
    text = str(shown)
    assert "worker:0 65%" in text and "Fair: nobody waited." in text and "a note" in text
    assert {row[0]: row[1] for row in shown.rows()}["updates"] == "10 of staleness 0"


def test_a_comparison_is_plain_json_and_a_long_curve_is_thinned_with_its_last_point_kept() -> None:
    long = of(noisy([1.0 / (n + 1) for n in range(3000)]))
    found = json.loads(json.dumps(comparing(long).as_dict(), allow_nan=False))
    curve = found["entrants"]["it"]["curve"]
    assert {len(values) for values in curve.values()} == {POINTS}
    assert curve["examples"][-1] == long.examples
    assert curve["seconds"] == sorted(curve["seconds"])


# --- fairness ---


def machine(seconds: float = 10.0, busy: float = 0.4, ours: float = 0.3, **waited: float) -> Load:
    return Load(seconds, 2, busy, ours, waited)


def verdict(
    found: Load | None,
    device_ms: float = 20.0,
    overhead: dict[str, float | None] | None = None,
    workers: int = 5,
) -> Fairness:
    return judge(
        found,
        overhead or {},
        dict.fromkeys(found.waited if found else (), device_ms or 5.0),
        device_ms,
        workers,
    )


def ordered(spec: RunSpec, *orders: Lifecycle) -> Digest:
    """The digest of a run in which these orders were given."""
    return Digest(spec, Trace(orders)).update(over=True)


def test_a_race_between_entrants_with_other_workers_or_stragglers_is_not_fair() -> None:
    fair, four = Fairness(True, "Fair: nobody waited."), Digest(RunSpec(workers=4), Trace())
    assert with_differences(fair, {"a": four, "b": four}) is fair
    two = Digest(RunSpec(workers=2, slow={"worker:1": 3}), Trace())
    found = with_differences(fair, {"a": four, "b": two})
    assert found.fair is False
    says("racing", "other workers and stragglers", found.why)
    busy = replace(fair, fair=False, why="NOT FAIR: the machine was saturated.")
    assert with_differences(busy, {"a": four, "b": two}).why == found.why, "one thing at a time"


def test_a_race_in_which_one_entrant_alone_was_slowed_on_its_way_is_not_fair() -> None:
    fair, spec = Fairness(True, "Fair."), RunSpec(workers=4)
    order = Lifecycle("worker:3", "slowed", "", 2.0, factor=4.0)
    slowed, late, none = ordered(spec, order), ordered(spec, order._replace(at=2.3)), ordered(spec)
    found = with_differences(fair, {"a": slowed, "b": none})
    assert found.fair is False
    says("racing", "other orders", found.why)
    many = ordered(spec, *(Lifecycle("worker:3", "paused", "", 2.0 + n) for n in range(4)))
    told = with_differences(fair, {"a": many, "b": none}).why
    says("racing", "many orders", told)
    assert with_differences(fair, {"a": slowed, "b": late}) is fair


@pytest.mark.parametrize(
    ("seconds", "fair", "state", "winner"),
    [
        ((2.0, 3.0), True, "finished", "a"),
        ((2.0, None), True, "finished", "a"),
        ((2.0, 2.01), True, "finished", None),
        ((None, None), True, "finished", None),
        ((2.0, 3.0), False, "finished", None),
        ((2.0, 3.0), None, "finished", None),
        ((2.0, 3.0), True, "stopped", None),
        ((2.0, None), True, "failed", None),
    ],
)
def test_a_race_names_its_winner_and_the_measure_or_says_why_there_is_none(
    seconds: tuple[float | None, ...], fair: bool | None, state: str, winner: str | None
) -> None:
    curves = [EMPTY if s is None else Curve(*np.array([[s], *[[0.3]] * 4])) for s in seconds]
    entries = {label: Entry(state, c, EMPTY) for label, c in zip("ab", curves, strict=True)}
    shown = Standing(entries, Goal("loss", 0.3), fair)
    assert shown.winner == winner
    says("racing", f"{seconds}, fair {fair}, {state}", shown.verdict)


def test_a_comparison_says_first_and_as_json_who_won() -> None:
    shown = comparing(of(lockstep(), label="a"), of(lockstep(20), label="b"), target_loss=1e-9)
    assert "1e-09" in shown.standing.verdict
    assert shown.words()[0] == shown.as_dict()["outcome"] == shown.standing.verdict
    assert shown.winner is shown.as_dict()["winner"] is None


def test_where_no_loss_is_known_the_time_to_the_end_decides() -> None:
    a, b = (of(noisy([math.nan] * n), label=label) for label, n in (("a", 10), ("b", 4)))
    shown = comparing(a, b)
    assert shown.winner == "b"
    says("racing", "no loss is known", shown.standing.verdict)


@pytest.mark.parametrize(
    ("share", "fair"), [(0.0, True), (MOST_LOST, True), (MOST_LOST + 0.01, False), (1.0, False)]
)
def test_a_race_is_fair_as_long_as_no_entrant_waits_too_long_for_a_core(
    share: float, fair: bool
) -> None:
    found = verdict(machine(a=0.01, b=share))
    assert found.fair is fair
    says("racing", f"waiting for a core for {share}", found.why)
    assert bool(found.advice) is not fair


def test_of_two_upper_bounds_on_what_was_lost_the_lower_one_counts() -> None:
    # many threads of a task can wait at the same time
    assert verdict(machine(a=0.9), overhead={"a": 0.1}).lost == {"a": 0.1}
    # it computes for long, on a core of its own
    assert verdict(machine(a=0.1), overhead={"a": 0.9}).lost == {"a": 0.1}
    assert verdict(machine(a=0.9), overhead={"a": 0.9}).fair is False


def test_nobody_can_lose_more_than_all_of_its_time() -> None:
    # two threads of a task that wait at the same time count twice
    assert verdict(machine(a=1.7)).lost == {"a": 1.0}


def test_without_a_count_of_waiting_the_emulated_devices_tell_or_else_the_busy_cores() -> None:
    assert (
        verdict(machine(a=math.nan, b=math.nan, busy=1.0), overhead={"a": 0.1, "b": 0.15}).fair
        is True
    )
    assert verdict(machine(a=math.nan, b=math.nan), overhead={"a": 0.1, "b": 0.5}).fair is False
    assert verdict(machine(a=math.nan, b=math.nan, busy=MOST_BUSY)).fair is True
    saturated = verdict(machine(a=math.nan, b=math.nan, busy=MOST_BUSY + 0.1))
    assert saturated.fair is False
    assert "busy 80%" in saturated.why


def test_a_race_that_was_too_short_is_neither_fair_nor_unfair() -> None:
    assert verdict(machine(seconds=SHORTEST / 2, a=0.9)).fair is None
    assert verdict(None).fair is None
    assert "more steps" in verdict(None).advice


def test_the_advice_is_longer_device_times_or_fewer_workers_or_no_other_programs() -> None:
    verdicts = (
        verdict(machine(a=0.5, busy=0.9, ours=0.85)),
        verdict(machine(a=0.5), workers=2),
        verdict(machine(a=0.5), device_ms=0.0),
        verdict(machine(a=0.5, busy=1.0, ours=0.2)),
    )
    says("racing", "advice", "\n".join(each.advice for each in verdicts))


@given(device_ms=st.floats(1.0, 500.0), factor=st.floats(1.0, 10.0), rest=st.floats(0.3, 20.0))
def test_with_the_advised_device_time_the_rest_of_a_step_would_be_a_fair_share(
    device_ms: float, factor: float, rest: float
) -> None:
    """A step is a straggler's device time and the rest; `rest` is in units of the device time."""
    devices, rest = device_ms * factor, rest * device_ms * factor
    share = rest / (devices + rest)
    found = judge(machine(a=share), {}, {"a": devices + rest}, device_ms, 2)
    assert found.fair is False
    advised = float(found.advice.split(" to about ")[1].rstrip("."))
    assert rest / (advised * factor + rest) <= MOST_LOST + 1e-9


def test_the_load_is_that_of_each_entrants_own_time_and_of_the_time_that_all_ran() -> None:
    samples = [
        Counters(
            t,
            busy=1.0 * t if t < 10 else 10 + 2.0 * (t - 10),
            ours=0.5 * t,
            waited=(0.1 * t, 0.3 * t),
        )
        for t in range(21)
    ]
    found = fairness.load(samples, {"a": (0.0, 8.0), "b": (4.0, 20.0)}, cores=2)
    assert found == Load(
        4.0,
        2,
        pytest.approx(0.5),
        pytest.approx(0.25),
        {"a": pytest.approx(0.1), "b": pytest.approx(0.3)},
    )
    assert fairness.load(samples, {"a": (0.0, 4.0), "b": (4.0, 8.0)}, cores=2) is None


def test_where_the_system_does_not_tell_the_load_is_that_of_our_own_tasks() -> None:
    samples = [Counters(float(t), math.nan, 0.5 * t, (math.nan,)) for t in range(11)]
    found = fairness.load(samples, {"a": (0.0, 8.0)}, cores=2)
    assert found is not None
    assert found.busy == found.ours == pytest.approx(0.25)
    assert math.isnan(found.waited["a"])


def test_the_meter_counts_on_and_keeps_what_a_process_that_is_gone_has_used() -> None:
    meter = LoadMeter(cores=1)
    me = [{"worker:0": os.getpid()}]
    first = meter.read(0.0, me)
    sum(i * i for i in range(300_000))
    second = meter.read(1.0, me)
    assert second.ours > first.ours
    assert not second.waited[0] < first.waited[0]
    meter._used[2**22 + 1] = 5.0  # a pid that no process can have
    assert meter.read(2.0, [*me, {"worker:0": 2**22 + 1}]).ours > second.ours + 4.99


def test_overhead_in_lockstep_is_all_that_the_slowest_devices_do_not_explain() -> None:
    spec = SPEC.model_copy(update={"slow": {"worker:1": 4.0}})
    assert Digest(spec, lockstep()).update(over=True).overhead == pytest.approx(0.06 / 0.46)
    late = lockstep(compute=(0.1, 0.6))  # worker 1 should take 0.4 s and takes 0.6
    assert Digest(spec, late).update(over=True).overhead == pytest.approx(0.26 / 0.66)
    undelayed = spec.model_copy(update={"device_ms": 0.0})
    assert Digest(undelayed, lockstep()).update(over=True).overhead is None


def test_overhead_in_an_asynchronous_run_is_that_of_the_worker_with_the_most() -> None:
    spec = SPEC.model_copy(update={"slow": {"worker:1": 4.0}})
    found = Digest(spec, asynchronous(until=60.0)).update(over=True).overhead
    assert found == pytest.approx(0.02 / 0.12, rel=0.01)


def test_a_task_that_is_slowed_on_the_way_is_expected_to_take_longer_from_then_on() -> None:
    trace = Trace(
        [
            Lifecycle("worker:0", "slowed", "by run.slow()", 5.0, factor=3),
            Lifecycle("worker:0", "slowed", "by run.slow()", 8.0, factor=1),
        ]
    )
    spec = SPEC.model_copy(update={"slow": {"worker:0": 2.0}})
    factor = Digest(spec, trace).update(over=True).factor
    assert [factor("worker:0", at) for at in (4.0, 6.0, 9.0)] == [2.0, 3.0, 1.0]
    assert factor("worker:1", 6.0) == 1.0


# --- who lines up ---


def specs(*entrants: Any, **common: Any) -> dict[str, RunSpec]:
    found, _ = line_up(entrants, {"framework": "torch", **common}, HERE)
    return {label: request.spec for label, request in found.items()}


def notes(*entrants: Any, **common: Any) -> str:
    return " ".join(line_up(entrants, {"framework": "torch", **common}, HERE)[1])


def test_an_entrant_may_be_a_name_a_triple_a_dict_or_a_spec() -> None:
    found = specs(
        "one_device",
        ("ring", "multi_worker_mirrored", {"all_reduce": "ring", "workers": 4}),
        {"strategy": "multi_worker_mirrored", "label": "tree", "all_reduce": "tree", "workers": 2},
        RunSpec(framework="tensorflow", workers=4, seed=3),
        seed=3,
    )
    assert list(found)[:3] == ["one_device", "ring", "tree"]
    assert [(s.strategy, s.framework, s.workers, s.all_reduce) for s in found.values()] == [
        ("one_device", "torch", 1, "native"),
        ("multi_worker_mirrored", "torch", 4, "ring"),
        ("multi_worker_mirrored", "torch", 2, "tree"),
        ("multi_worker_mirrored", "tensorflow", 4, "native"),
    ]
    assert {s.seed for s in found.values()} == {3}


def test_entrants_of_one_strategy_are_told_apart_by_their_own_fields() -> None:
    ring, tree = (
        {"strategy": "multi_worker_mirrored", "all_reduce": name} for name in ("ring", "tree")
    )
    assert list(specs(ring, tree)) == [
        "multi_worker_mirrored all_reduce=ring",
        "multi_worker_mirrored all_reduce=tree",
    ]
    assert list(specs("one_device", "one_device")) == ["one_device", "one_device #2"]


def test_an_all_reduce_may_be_a_function_of_the_learners_own() -> None:
    from course_lib.collectives import ring

    found, _ = line_up(
        [{"strategy": "multi_worker_mirrored", "all_reduce": ring}, "one_device"],
        {"framework": "torch"},
        HERE,
    )
    mine, _ = found.values()
    assert mine.schedule and (mine.schedule.name, mine.spec.all_reduce) == ("ring", "ring")


def test_all_entrants_get_the_same_batches_that_all_can_share_out() -> None:
    found = specs(
        {"strategy": "multi_worker_mirrored", "workers": 3},
        {"strategy": "multi_worker_mirrored", "workers": 5},
        "one_device",
    )
    assert {spec.batch for spec in found.values()} == {120}
    some_wait_for_three = specs("sync_parameter_server", "backup_workers", workers=4)
    assert {spec.batch for spec in some_wait_for_three.values()} == {120}
    in_microbatches = specs(
        {"strategy": "pipeline_parallel", "workers": 2}, "one_device", accumulate=24
    )
    assert {spec.batch for spec in in_microbatches.values()} == {120}
    with pytest.raises(SpecError, match="divide evenly"):
        specs("one_device", "multi_worker_mirrored", workers=3, global_batch=64)


def test_entrants_have_the_same_workers_unless_told_otherwise() -> None:
    sync, servers = "multi_worker_mirrored", "parameter_server"  # which usually have 4 and 3
    found = specs(sync, servers, slow={"worker:3": 4})
    assert {(spec.workers, spec.slow["worker:3"]) for spec in found.values()} == {(4, 4)}
    two = ("two", sync, {"workers": 2})
    assert [spec.workers for spec in specs(two, servers).values()] == [2, 2]
    assert [spec.workers for spec in specs(two, servers, workers=3).values()] == [2, 3]
    in_one_process = {"strategy": "mirrored", "framework": "tensorflow"}
    assert [spec.shares for spec in specs(in_one_process, servers).values()] == [4, 4]
    # it can have one only
    assert [spec.workers for spec in specs(servers, "one_device").values()] == [3, 1]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("slow", {"worker:0": 2, "worker:3": 4}, "worker:0"),
        ("jitter", {"worker:3": "one_in:9:5ms"}, "worker:0"),
        ("faults", ["kill worker:2 at step 3"], "worker:0"),
        ("workers", 4, "exactly 1"),
        ("all_reduce", "ring", "no all-reduce"),
    ],
)
def test_a_setting_that_does_not_reach_an_entrant_is_refused_with_its_name_and_the_cure(
    field: str, value: Any, why: str
) -> None:
    entrants = ("multi_worker_mirrored", ("alone", "one_device"))
    with pytest.raises(SpecError) as refused:
        race(*entrants, framework="torch", **{field: value})
    assert refused.value.field == field
    said = refused.value.allowed
    assert why in said and "(for alone; if others can have it, give it to those alone" in said
    own = {"strategy": "multi_worker_mirrored", field: value}  # the cure
    line_up([own, "one_device"], {"framework": "torch"}, HERE)


@pytest.mark.parametrize(
    ("entrants", "common", "field"),
    [
        (("one_device",), {}, "race"),
        (("one_device", 7), {}, "race"),
        (("one_device", "two_devices"), {}, "strategy"),
        # its own wish: not left out
        (("one_device", {"strategy": "one_device", "workers": 2}), {}, "workers"),
        # wrong for everybody
        (("one_device", "multi_worker_mirrored"), {"workers": -1}, "workers"),
        (("one_device", "multi_worker_mirrored"), {"slow": {"worker:9": 2}}, "slow"),
        (("one_device", "multi_worker_mirrored"), {"slow": {"worker:0": 0.5}}, "slow"),
        (("one_device", "multi_worker_mirrored"), {"all_reduce": "rong"}, "all_reduce"),
        (("one_device", "multi_worker_mirrored"), {"steps": 0}, "steps"),
        (("one_device", "multi_worker_mirrored"), {"trace": False}, "trace"),
        (("one_device", "multi_worker_mirrored"), {"colour": "red"}, "colour"),
        (("one_device", {"strategy": "one_device", "seed": 1}), {}, "seed"),
        (("one_device", {"strategy": "one_device", "workload": "wide"}), {}, "workload"),
        (
            ("one_device", {"strategy": "one_device", "global_batch": 32}),
            {"global_batch": 64},
            "global_batch",
        ),
        ((("a", "one_device"), ("a", "one_device")), {}, "label"),
    ],
)
def test_what_cannot_race_is_refused_before_any_process_starts(
    entrants: tuple[Any, ...], common: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError) as refused:
        race(*entrants, framework="torch", **common)
    assert refused.value.field == field or (
        field in ("colour", "strategy") and refused.value.field in ("field", "strategy")
    )


@pytest.mark.parametrize("target", [0, -1, math.inf, "low"])
def test_a_target_that_is_no_loss_is_refused(target: Any) -> None:
    with pytest.raises(SpecError, match="target_loss"):
        race("one_device", "one_device", target_loss=target)


def test_a_note_says_what_equally_long_steps_mean_where_the_shares_of_a_batch_are_not_equal() -> (
    None
):
    text = notes("multi_worker_mirrored", "one_device", device_ms=20)
    says("racing", "unequal shares", text)
    assert "20 ms" not in notes("multi_worker_mirrored", "one_device")
    own = notes(
        "multi_worker_mirrored",
        {"strategy": "one_device", "device_ms": 80},
        device_ms=20,
    )
    says("racing", "unequal shares, each with a device_ms", own)


def test_spare_workers_make_the_shares_of_all_larger_and_that_is_said() -> None:
    text = notes(
        "multi_worker_mirrored", "backup_workers", workers=4, device_ms=40, global_batch=120
    )
    says("racing", "spare workers", text)


def test_a_note_says_that_more_updates_at_the_same_learning_rate_are_a_lead_of_their_own() -> None:
    asynchronous = {"strategy": "parameter_server", "framework": "torch", "label": "async"}
    _, notes = line_up(
        ["multi_worker_mirrored", asynchronous], {"workers": 4, "learning_rate": 0.2}, HERE
    )
    (note,) = (note for note in notes if "updates" in note)
    assert "learning_rate=0.05" in note
    says("racing", "more updates", note)
    _, slower = line_up(
        ["multi_worker_mirrored", asynchronous | {"learning_rate": 0.05}],
        {"workers": 4, "learning_rate": 0.2},
        HERE,
    )
    _, alike = line_up([asynchronous, asynchronous | {"label": "other"}], {"workers": 4}, HERE)
    assert not [note for note in slower + alike if "updates" in note]


def test_an_entrant_on_the_command_line_is_a_name_with_fields_of_its_own() -> None:
    assert parse_entrant("one_device") == {"strategy": "one_device"}
    text = (
        "multi_worker_mirrored, all_reduce=ring, workers=2, device_ms=2.5, slow=worker:1=3,"
        " label=mine"
    )
    assert parse_entrant(text) == {
        "strategy": "multi_worker_mirrored",
        "all_reduce": "ring",
        "workers": 2,
        "device_ms": 2.5,
        "slow": ["worker:1=3"],
        "label": "mine",
    }
    with pytest.raises(SpecError, match="field=value"):
        parse_entrant("one_device,fast")
    fault = "link host:1=50,0,.01 at step 3"  # commas of its own
    assert parse_entrant(f"one_device,fault={fault},hosts=2") == {
        "strategy": "one_device",
        "faults": [fault],
        "hosts": 2,
    }


# --- the starting line ---


def waiting(
    tmp_path: Path, *workers: int, chief: bool = False, events: Sequence[Event] = ()
) -> dict[str, Any]:
    """Runs, as the line sees them, with so many workers each; the first has a trace, and perhaps a
    chief.
    """
    runs = {}
    for n, count in enumerate(workers):
        files = RunDir(tmp_path / str(n))
        files.line.mkdir(parents=True)
        spec = RunSpec(workers=count, chief=chief and n == 0)
        (tmp_path / str(n) / "run.json").write_text(RunFacts(origin=1.0).model_dump_json())
        runs[f"entrant {n}"] = SimpleNamespace(
            files=files,
            state="running",
            spec=spec,
            trace=Trace(events if n == 0 else ()),
            digest=Digest(spec, Trace()),
        )
    return runs


def arrive(run: Any, task: str) -> None:
    (run.files.line / folder_name(task)).touch()


def test_the_line_opens_for_all_at_once_when_every_worker_of_every_entrant_is_there(
    tmp_path: Path,
) -> None:
    first, second = (runs := waiting(tmp_path, 2, 1)).values()
    line = StartingLine(runs)
    for run, task in ((first, "worker:0"), (second, "worker:0"), (first, "worker:1")):
        line.check()
        assert line.opened is None
        arrive(run, task)
    line.check()
    assert line.opened is not None
    assert all((run.files.line / "open").exists() for run in (first, second))
    assert (line.started, line.notes) == (["entrant 0", "entrant 1"], [])


def test_a_chief_stands_at_the_line_for_all_its_workers(tmp_path: Path) -> None:
    first, second = (
        runs := waiting(tmp_path, 3, 1, chief=True, events=list(lockstep(steps=9)))
    ).values()
    line = StartingLine(runs)
    arrive(second, "worker:0")
    line.check()
    # what it had in store before it came to the line does not count as running past it
    assert line.opened is None
    arrive(first, "chief:0")
    line.check()
    assert line.started == ["entrant 0", "entrant 1"]


def test_nobody_waits_at_the_line_for_an_entrant_that_is_over(tmp_path: Path) -> None:
    second, third = (runs := waiting(tmp_path, 2, 1)).values()
    line = StartingLine(runs)
    arrive(third, "worker:0")
    second.state = "failed"
    line.check()
    assert (line.started, line.notes) == (["entrant 1"], [])


def test_the_patience_of_those_at_the_line_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = waiting(tmp_path, 1, 1)
    line = StartingLine(runs)
    monkeypatch.setattr("course_lib.racing.fairness.LONGEST_WAIT", 0.0)
    line.check()
    assert line.opened is None  # nobody is there yet whose patience could end
    arrive(runs["entrant 1"], "worker:0")
    line.check()
    line.check()
    assert line.started == ["entrant 1"]
    says("racing", "not at the line", "\n".join(line.notes))


# --- the share of the machine ---


def test_every_entrant_plans_for_an_equal_share_of_cores_and_memory() -> None:
    whole = replace(hardware.probe(), cores=9, memory=12_000)
    share, _ = divide(whole, 4)
    assert (share.cores, share.memory) == (2, 3_000)
    assert divide(whole, 16)[0].cores == 1


def test_cores_are_handed_out_only_where_none_is_held_back_and_there_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5}, raising=False)
    whole = hardware.probe()
    assert divide(replace(whole, cores=4), 2)[1] == [(0, 1), (2, 5)]
    assert divide(replace(whole, cores=4), 3)[1] == [(0,), (1,), (2,)]
    assert divide(replace(whole, cores=4), 5)[1] == [()] * 5
    # a quota of two cores on four: not said which
    assert divide(replace(whole, cores=2), 2)[1] == [(), ()]


def test_a_label_with_a_comma_stands_in_quotation_marks() -> None:
    both = {"ring, rate 0.8": "“ring, rate 0.8”", "tree": "tree"}
    assert {label: quoted(label) for label in both} == both
