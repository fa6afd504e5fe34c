"""A trace in which steps come twice, as a run was restarted: they count once."""

import pytest

from course_lib.record import measures
from course_lib.record.digest import Digest
from course_lib.record.events import Event, Lifecycle, Metric, Phase, Update
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec

SPEC = RunSpec(workers=2, steps=6, global_batch=8)


def attempt(number: int, at: float, steps: range) -> list[Event]:
    """Two workers start at a time, and take these steps, of a second each."""
    events: list[Event] = []
    for task in SPEC.tasks:
        events.append(Lifecycle(task, "starting", "", at, attempt=number))
        events.append(Lifecycle(task, "running", "", at + 0.1, attempt=number))
        for i, step in enumerate(steps):
            began = at + 1 + i
            events += [
                Phase(task, step, "compute", began, began + 0.5),
                Phase(task, step, "apply", began + 0.5, began + 0.9),
                Update(task, step, "all", "cpu", step, step + 1, began + 0.9, 2),
                Metric(task, "loss", 1 / (1 + step), step, 8 * (step + 1), began + 0.9),
            ]
    return events


# steps 0 to 3; from the checkpoint after step 1: 2 to 4; and once more: 4 and 5
TWICE = [*attempt(0, 0, range(4)), *attempt(1, 10, range(2, 5)), *attempt(2, 20, range(4, 6))]


def digest_of(events: list[Event], in_parts: bool) -> Digest:
    """The digest of a trace, taken in at once or as its events come."""
    if not in_parts:
        return Digest(SPEC, Trace(events), zero=0.0).update(over=True)
    digest = Digest(SPEC, Trace(), zero=0.0)
    for event in events:
        digest.trace._add([event])
        digest.update()
    return digest.update(over=True)


@pytest.mark.parametrize("in_parts", [False, True])
def test_steps_that_are_done_again_count_once(in_parts: bool) -> None:
    digest = digest_of(TWICE, in_parts)
    assert (digest.life.restarts, digest.repeats.steps) == (2, 3)  # 2 and 3, then 4
    assert digest.updates.staleness == {0: 6}
    assert digest.steps_done == 6
    assert list(digest.losses.examples) == [8, 16, 24, 32, 40, 48]
    assert list(digest.losses.values) == pytest.approx([1 / (1 + step) for step in range(6)])


def test_a_run_without_restarts_has_no_steps_again() -> None:
    trace = Trace(attempt(0, 0, range(4)))
    digest = Digest(SPEC, trace).update(over=True)
    assert (digest.life.restarts, digest.repeats.steps, trace.once()) == (0, 0, trace)


def test_a_task_that_records_a_step_twice_in_one_attempt_did_not_do_it_again() -> None:
    twice = [Metric("worker:0", "loss", value, 3, 8, 2.0) for value in (1.0, 0.5)]
    events = [*attempt(0, 0, range(1)), *twice, *attempt(1, 10, range(1, 2))]
    assert (
        list(Digest(SPEC, Trace(events), 0.0).update(over=True).losses.values).count(0.5) == 2
    )  # and step 1


def test_measures_of_a_whole_trace_take_each_step_as_it_was_first() -> None:
    trace = Trace(TWICE).once()
    assert len(trace.all(Phase, "worker:0", what="apply")) == 6
    assert measures.seconds_to(trace)["start"] == pytest.approx(0.1)
    assert measures.seconds_to(trace)["first_step"] == pytest.approx(1.9)
    assert measures.median_step(trace) == pytest.approx(1.0)


def test_a_task_that_was_killed_goes_on_once_it_is_started_again() -> None:
    events = [
        *attempt(0, 0, range(2)),
        Lifecycle("worker:1", "killed", "", 5.0),
        *attempt(1, 6, range(2, 4)),
    ]
    assert Digest(SPEC, Trace(events)).update(over=True).fates("worker:1") == [("killed", 5.0, 6.0)]
