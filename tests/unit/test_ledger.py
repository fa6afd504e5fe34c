"""The ledger, of traces that no run stands behind."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.record.events import Dropped, Event, Lifecycle, Metric, Phase, Update
from course_lib.record.ledger import Ledger, ledger
from course_lib.record.trace import Trace
from tests import made_up

STEP = 1.0  # seconds, of which the last tenth applies


def lives(*tasks: str, end: str = "done", at: float = 100.0, why: str = "") -> list[Event]:
    born = [Lifecycle(task, "starting", "", 0.0, pid=1) for task in tasks]
    return [*born, *(Lifecycle(task, end, why, at) for task in tasks)]


def step(task: str, number: int, at: float, applied: bool = True, written: int = 0) -> list[Event]:
    """A step of a replica that has all variables, from `at` on."""
    events: list[Event] = [
        Phase(task, number, "read", at, at + 0.1),
        Phase(task, number, "compute", at + 0.1, at + 0.9 * STEP),
    ]
    if applied:
        now = written or number + 1
        events.append(Update(task, number, "all", "cpu", now - 1, now, at + STEP, 2))
    return events


def mirrored(steps: int = 3, begin: float = 1.0, first: int = 0) -> Iterator[Event]:
    for k in ("worker:0", "worker:1"):
        for n in range(first, steps):
            yield from step(k, n, begin + (n - first) * STEP)


def of(*events: Event) -> Ledger:
    return ledger(Trace(events))


def test_of_replicas_every_gradient_arrives_at_every_copy() -> None:
    assert of(*lives("worker:0", "worker:1"), *mirrored()) == (6, 6, {}, 0, ())
    assert ledger(made_up.lockstep()).balanced
    assert ledger(made_up.asynchronous()).balanced


def test_an_update_that_one_copy_has_missed_is_told() -> None:
    events = [*lives("worker:0", "worker:1"), *mirrored()]
    lost = events.pop(events.index(next(e for e in events if isinstance(e, Update))))
    found = of(*events)
    assert not found.balanced
    assert f"worker:1's gradient for step {lost.step} is not applied by worker:0" in found.wrong


def test_an_update_that_was_made_twice_is_told() -> None:
    twice = Update("worker:0", 1, "all", "cpu", 2, 3, 9.0, 2)
    assert "step 1" in of(*lives("worker:0", "worker:1"), *mirrored(), twice).wrong[0]
    ps = [Update("ps:0", 0, "shard 0", "cpu", 0, n, 5.0, 1, "worker:0") for n in (1, 2)]
    found = of(*lives("worker:0", "ps:0"), *step("worker:0", 0, 1.0, applied=False), *ps)
    assert found.wrong == ("worker:0's gradient for step 0 is applied too often by ps:0",)


def test_the_last_gradients_of_a_run_that_fails_are_lost_or_unfinished() -> None:
    found = of(
        *lives("worker:0", end="failed", at=4.0),
        *lives("worker:1", end="killed", why="it was killed by run.kill()", at=4.0),
        *mirrored(2),
        *step("worker:0", 2, 3.0, applied=False),
        *step("worker:1", 2, 3.0, applied=False),
    )
    assert found == (6, 4, {"lost": 2}, 0, ())
    stopped = [Lifecycle("worker:0", "starting", "", 0.0), *step("worker:0", 0, 1.0, applied=False)]
    assert of(*stopped, *step("worker:0", 1, 2.0, False)).dropped == {"unfinished": 2}


def test_only_the_last_gradient_of_a_task_may_be_open() -> None:
    found = of(
        *lives("worker:0", end="failed", at=9.0),
        *step("worker:0", 0, 1.0, applied=False),
        *step("worker:0", 1, 2.0),
        *step("worker:0", 2, 3.0, applied=False),
    )
    assert found.dropped == {"lost": 1}
    assert found.wrong == ("worker:0's gradient for step 0 is not applied by worker:0",)


def test_steps_done_again_after_a_restart_are_named_as_such() -> None:
    again = [
        Lifecycle(task, state, "", at)
        for task in ("worker:0", "worker:1")
        for at, state in ((4.5, "restarting"), (4.6, "starting"), (99.0, "done"))
    ]
    born = [Lifecycle(task, "starting", "", 0.0) for task in ("worker:0", "worker:1")]
    found = of(*born, *again, *mirrored(3), *mirrored(5, begin=5.0, first=1))
    assert found == (14, 14, {}, 2, ())


def test_the_last_gradient_before_a_restart_is_open_also_if_its_step_is_done_again() -> None:
    life = [("starting", 0.0), ("restarting", 3.5), ("starting", 3.6), ("done", 99.0)]
    found = of(
        *(Lifecycle("worker:0", state, "", at) for state, at in life),
        *step("worker:0", 0, 1.0),
        *step("worker:0", 1, 2.0, applied=False),
        *(e for n in range(3) for e in step("worker:0", n, 4.0 + n)),
    )
    assert found == (5, 4, {"unfinished": 1}, 1, ())


def test_what_is_paused_when_the_run_is_stopped_leaves_no_record_of_its_last_update() -> None:
    born = [Lifecycle(task, "starting", "", 0.0) for task in ("worker:0", "worker:1")]
    events = [*step("worker:0", 0, 1.0), *step("worker:0", 1, 2.0), *step("worker:1", 0, 1.0)]
    found = of(*born, *events, Phase("worker:1", 1, "read", 2.0, 2.1))
    assert found == (3, 2, {"unfinished": 1}, 0, ())


def test_late_gradients_are_dropped_and_a_piece_of_one_counts() -> None:
    workers = ("worker:0", "worker:1")
    events = [e for w in workers for e in step(w, 0, 1.0, applied=False)]
    made = [
        Update("ps:0", 0, "shard 0", "cpu", 0, 1, 3.0, 1, "worker:0"),
        Update("ps:1", 0, "shard 1", "cpu", 0, 1, 3.0, 1, "worker:1"),
        Dropped("worker:1", 0, "late", 3.1, "shard 0"),
        Dropped("worker:0", 0, "late", 3.1, "shard 1"),
    ]
    assert of(*lives(*workers), *events, *made) == (2, 0, {"late": 2}, 0, ())
    found = of(*lives(*workers), *events, *made[:3])
    assert found.wrong == ("worker:0's gradient for step 0 is not applied by ps:1",)


def test_gradients_that_overflow() -> None:
    """With replicas the step has no update; with parameter servers it is computed again."""
    skipped = [Metric("worker:0", "overflow", 1.0, 1, 0, 3.0)]
    steps = [*step("worker:0", 0, 1.0), *step("worker:0", 1, 2.0, False), *step("worker:0", 2, 3.0)]
    assert of(*lives("worker:0"), *steps, *skipped) == (3, 2, {"overflow": 1}, 0, ())
    found = of(*lives("worker:0"), *step("worker:0", 0, 1.0), Dropped("worker:0", 0, "overflow", 2))
    assert found == (2, 1, {"overflow": 1}, 0, ())


def test_a_gradient_in_several_phases_is_one_and_a_second_piece_of_a_step_is_another() -> None:
    parts = [
        Phase("worker:0", 0, "read", 0.0, 0.1),
        Phase("worker:0", 0, "compute", 0.1, 0.2),
        Phase("worker:0", 0, "reduce", 0.2, 0.3),
        Phase("worker:0", 0, "compute", 0.3, 0.4),
        Update("ps:0", 0, "shard 0", "cpu", 0, 1, 0.5, 1, "worker:0"),
        Phase("worker:0", 0, "read", 0.6, 0.7),
        Phase("worker:0", 0, "compute", 0.7, 0.8),
        Update("ps:0", 0, "shard 0", "cpu", 1, 2, 0.9, 1, "worker:0"),
    ]
    assert of(*lives("worker:0", "ps:0"), *parts) == (2, 2, {}, 0, ())


def test_what_a_killed_process_took_with_it_of_its_record_is_known_from_others() -> None:
    killed = lives("worker:1", end="killed", at=3.05, why="it was killed by run.kill()")
    made = [Update("ps:0", n, "shard 0", "cpu", n, n + 1, 2.0 + n, 1, "worker:1") for n in (0, 1)]
    found = of(*lives("ps:0"), *killed, *step("worker:1", 0, 1.0, applied=False), *made)
    assert found == (2, 2, {}, 0, ())
    # and a copy that is gone needs no update
    found = of(
        *lives("worker:0"),
        *killed,
        *step("worker:0", 0, 1.0),
        *step("worker:0", 1, 2.1),
        *step("worker:1", 0, 1.0),
    )
    assert found == (3, 3, {}, 0, ())


def test_a_gradient_that_reached_one_server_only_before_its_worker_was_killed_is_lost() -> None:
    killed = lives("worker:1", end="killed", at=3.05, why="it was killed by run.kill()")
    made = [
        Update(f"ps:{k}", n, f"shard {k}", "cpu", n, n + 1, 2.0 + n, 1, "worker:1")
        for k, n in ((0, 0), (1, 0), (0, 1))
    ]
    found = of(*lives("ps:0", "ps:1"), *killed, *step("worker:1", 0, 1.0, applied=False), *made)
    assert found == (2, 1, {"lost": 1}, 0, ())


def of_two_optimizers(task: str, critics: int = 2) -> Iterator[Event]:
    """Two steps, each of some updates of a critic and one of a generator."""
    for n in range(2):
        for k, name in enumerate([*["critic"] * critics, "generator"]):
            at = 10.0 * n + k
            yield Phase(task, n, "read", at, at + 0.1)
            yield Phase(task, n, "compute", at + 0.1, at + 0.5)
            yield Update(task, n, name, "cpu", 2 * n + k, 2 * n + k + 1, at + 0.6, 2)


def test_a_gradient_of_one_of_several_optimizers_arrives_at_its_variables_alone() -> None:
    tasks = ("worker:0", "worker:1")
    events = [*lives(*tasks), *(e for task in tasks for e in of_two_optimizers(task))]
    assert of(*events) == (12, 12, {}, 0, ())
    lost = next(e for e in events if isinstance(e, Update) and e.variables == "generator")
    found = of(*(e for e in events if e is not lost))
    assert found.wrong and all("step 0" in wrong for wrong in found.wrong)


def test_what_is_computed_together_is_a_gradient_of_each_optimizer() -> None:
    events = [
        Phase("worker:0", 0, "compute", 0.1, 0.5),
        Update("worker:0", 0, "actor", "cpu", 0, 1, 0.6),
        Update("worker:0", 0, "critic", "cpu", 0, 1, 0.7),
        Phase("worker:0", 1, "read", 0.7, 0.8),
        Phase("worker:0", 1, "compute", 0.8, 0.9),  # the run is over before its update
    ]
    assert of(*lives("worker:0", end="failed", at=1.0), *events) == (3, 2, {"lost": 1}, 0, ())
