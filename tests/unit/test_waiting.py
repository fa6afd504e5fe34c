"""Who waits for whom, as a made-up trace tells it, and how an error says it."""

import pickle

import pytest

from course_lib.cluster.waiting import SILENT, describe
from course_lib.errors import Stalled, StartTimeout
from course_lib.jitter import Jitter
from course_lib.record.events import Event, Lifecycle, Phase
from course_lib.record.trace import Trace
from course_lib.spec import RunSpec

SPEC = RunSpec(workers=3, hosts=3, framework="torch")
ALL = ("worker:0", "worker:1", "worker:2")
END = 12 * 0.1


def steps(task: str, count: int, last: str = "apply") -> list[Event]:
    """Steps of a tenth of a second, and of the one after them the reading, if that is the `last`
    thing that a task has done.
    """
    done: list[Event] = [
        Phase(task, n, what, n / 10, n / 10 + 0.1)
        for n in range(count)
        for what in ("read", "compute", "reduce", "apply")
    ]
    return done + (
        [Phase(task, count, last, count / 10, count / 10 + 0.001)] if last != "apply" else []
    )


def told(now: float, *more: Event) -> dict[str, str]:
    return describe(
        Trace([*(e for task in ALL for e in steps(task, 12, "read")), *more]), SPEC, ALL, now
    )


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (
            Lifecycle("worker:2", "paused", "by pause()", END),
            "is paused (run.resume('worker:2') lets it go on)",
        ),
        (
            Lifecycle("worker:2", "slowed", "by slow()", END, factor=500),
            "was slowed to 500 times its time (run.slow('worker:2', 1) ends that)",
        ),
        (
            Lifecycle("host:2", "cut", "by partition()", END),
            "is on host:2, which is cut off (run.heal(2) joins it again)",
        ),
    ],
    ids=["paused", "slowed", "cut off"],
)
def test_who_falls_silent_waits_in_its_step_for_whoever_is_held_up(
    event: Lifecycle, why: str
) -> None:
    waits = "waits for worker:2 (in step 12)"
    assert told(END + 2 * SILENT, event) == {"worker:0": waits, "worker:1": waits, "worker:2": why}


def test_whoever_has_a_long_hiccup_is_waited_for_and_nobody_else() -> None:
    spec = RunSpec(workers=3, framework="torch", jitter="one_in:4:5s", seed=11)
    jitter = Jitter.of("one_in:4:5s")
    late = [task for task in ALL if jitter.of_step(11, task, 12)[1]]
    assert late == ["worker:2"]
    trace = Trace([*(e for task in ALL for e in steps(task, 12, "read"))])
    cure = "run.jitter('worker:2', None) ends that from the next step on"
    waits = "waits for worker:2 (in step 12)"
    assert describe(trace, spec, ALL, END + 2 * SILENT) == {
        "worker:0": waits,
        "worker:1": waits,
        "worker:2": f"is delayed by 5.0 s of jitter ({cure})",
    }


def test_who_goes_on_is_not_said_to_wait_for_a_paused_one() -> None:
    paused = Lifecycle("worker:2", "paused", "by pause()", END)
    assert (
        told(END + SILENT / 2, paused)["worker:0"]
        == "has finished 'read' of step 12 and nothing since"
    )


def test_what_is_over_holds_nobody_up() -> None:
    undone = [
        Lifecycle("worker:2", "paused", "", 1.0),
        Lifecycle("worker:2", "resumed", "", 1.1),
        Lifecycle("host:2", "cut", "", 1.0),
    ]
    undone += [
        Lifecycle("host:2", "healed", "", 1.1),
        Lifecycle("worker:2", "slowed", "by slow()", 1.1, factor=1),
    ]
    assert set(told(END + 2 * SILENT, *undone).values()) == {
        "has finished 'read' of step 12 and nothing since"
    }


def test_a_task_with_long_steps_is_at_work_for_longer() -> None:
    slow = Trace(
        [
            *[Phase("worker:0", n, "compute", 5.0 * n, 5.0 * n + 4) for n in range(4)],
            Lifecycle("worker:1", "paused", "", 19.0),
        ]
    )
    assert "for worker:1" not in describe(slow, SPEC, ALL, 30.0)["worker:0"]
    assert describe(slow, SPEC, ALL, 60.0)["worker:0"] == "waits for worker:1 (in step 3)"


def test_a_server_is_named_only_if_it_is_held_up_and_a_chief_waits_when_all_are_silent() -> None:
    spec = RunSpec(workers=1, ps=1, chief=True)
    tasks = ("chief:0", "ps:0", "worker:0")
    trace = Trace([*steps("worker:0", 12, "reduce"), *steps("ps:0", 12)])
    assert sorted(describe(trace, spec, tasks, 9.0)) == ["chief:0", "worker:0"]
    trace._add([Lifecycle("ps:0", "paused", "", 1.3)])
    found = describe(trace, spec, tasks, 9.0, "race.runs['it']")
    assert found["worker:0"] == "waits for ps:0 (in step 13)"
    assert found["chief:0"].startswith("waits for ps:0")
    assert found["ps:0"] == "is paused (race.runs['it'].resume('ps:0') lets it go on)"


def test_of_tasks_that_record_nothing_nothing_is_made_up() -> None:
    trace = Trace([Lifecycle("worker:2", "paused", "", 1.0)])
    assert describe(trace, SPEC, ALL, 99.0)["worker:0"] == "has recorded nothing so far"


def test_the_error_says_once_what_several_do() -> None:
    error = Stalled(told(9.0, Lifecycle("worker:2", "paused", "", END)), 5)
    assert str(error).startswith(
        "after 5.0 s the run is not over: worker:0 and worker:1 wait for worker:2 (in step 12);"
        " worker:2 is paused (run.resume('worker:2') "
    )
    some = {
        "worker:0": "waits for worker:3 (in step 9)",
        "worker:1": "waits for worker:3 (in step 10)",
    }
    some |= {"worker:2": "waits for worker:3 (in step 9)", "ps:0": "is paused"}
    assert (
        "worker:0, worker:1 and worker:2 wait for worker:3 (in steps 9 and 10); ps:0 is paused."
        in str(Stalled(some, 5))
    )
    assert str(Stalled({}, 5)).startswith("after 5.0 s the run is not over. ")


def test_a_stop_that_stalls_names_who_has_not_ended_and_another_cure() -> None:
    error = Stalled(dict.fromkeys(["worker:0", "worker:1"], "has not ended"), 10, stopping=True)
    assert str(error) == (
        "after 10.0 s a run that was told to stop is not over: worker:0 and worker:1 have not"
        " ended. Call stop(timeout=...) to wait longer."
    )
    assert pickle.loads(pickle.dumps(error)).stopping


def test_a_start_that_takes_too_long_says_whether_tasks_or_an_import_are_missing() -> None:
    missing = StartTimeout(["worker:0"], ["worker:1"], 60)
    assert str(missing).startswith("only 1/2 tasks arrived after 60 s; still waiting for worker:1.")
    importing = StartTimeout((), (), 60, importing="tensorflow")
    assert str(importing) == (
        "tensorflow was not imported after 60 s, so no task has started. Raise start_timeout, or"
        " call warm('tensorflow') some time before the run."
    )
    assert pickle.loads(pickle.dumps(importing)).importing == "tensorflow"
