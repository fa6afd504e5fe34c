"""Who waits for whom, as beats and a made-up trace tell it, and how an error says it."""

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from course_lib.activity import Activity, sentence
from course_lib.errors import Stalled, StartTimeout
from course_lib.record.beats import Beat
from course_lib.record.digest import Digest
from course_lib.record.events import Event, Lifecycle, Phase
from course_lib.record.standstill import SILENT, SOON, Snapshot, Standstill
from course_lib.record.trace import Trace
from course_lib.spec.fields import Jitter
from course_lib.spec.run_spec import RunSpec
from tests.screens import says

SPEC = RunSpec(workers=3, hosts=3, framework="torch")
ALL = ("worker:0", "worker:1", "worker:2")
END = 12 * 0.1
REDUCE = Beat(12, "reduce", END)
PAUSED = Lifecycle("worker:2", "paused", "by run.pause()", END)
FOR_2 = dict.fromkeys(("worker:0", "worker:1"), ("worker:2",))


def steps(task: str) -> list[Event]:
    """Twelve steps of a tenth of a second."""
    return [
        Phase(task, n, what, n / 10, n / 10 + 0.1)
        for n in range(12)
        for what in ("read", "compute", "reduce", "apply")
    ]


def look(
    now: float, *more: Event, spec: RunSpec = SPEC, handle: str = "run", **beats: Beat
) -> Snapshot:
    """Twelve steps of all tasks; all are in the reduction of the next step but those that are given
    by keyword: `worker_2`.
    """
    trace = Trace([*(e for task in spec.tasks for e in steps(task)), *more])
    inside = {task: beats.get(task.replace(":", "_"), REDUCE) for task in spec.tasks}
    services = ("ps", "worker") if spec.chief else ("ps",)
    digest = Digest(spec, trace).update()
    return Snapshot(digest, inside, spec.tasks, now, services, handle)


def kept(key: str, words: object) -> None:
    """Check the words of each task, or a sentence."""
    lines = (f"{task} {doing}" for task, doing in words.items()) if isinstance(words, dict) else ()
    says("waiting", key, "\n".join(lines) or words)


def waits_for(of: Snapshot) -> dict[str, tuple[str, ...]]:
    return {task: doing.awaits for task, doing in of.describe().items() if doing.awaits}


def stands(of: Snapshot, kept: Mapping[str, Any] | None = None) -> Standstill | None:
    return of.standstill(kept or dict.fromkeys(of.beats, ()))


@pytest.mark.parametrize(
    ("event", "inside"),
    [
        (PAUSED, "reduce"),
        (Lifecycle("worker:2", "slowed", "by run.slow()", END, factor=500), "compute"),
        (Lifecycle("host:2", "cut", "by run.partition()", END), "reduce"),
    ],
    ids=["paused", "slowed", "cut off"],
)
def test_who_falls_silent_waits_in_its_step_for_whoever_is_held_up(
    event: Lifecycle, inside: str
) -> None:
    it = look(END + 2 * SILENT, event, worker_2=REDUCE._replace(what=inside))
    assert [*it.describe()] == ["worker:2", "worker:0", "worker:1"] and waits_for(it) == FOR_2
    kept(event.state, it.describe())


def test_whoever_has_a_long_hiccup_is_waited_for_and_nobody_else() -> None:
    spec = RunSpec(workers=3, framework="torch", jitter="one_in:4:5s", seed=11)
    jitter = Jitter.of("one_in:4:5s")
    late = [task for task in ALL if jitter.of_step(11, task, 12)[1]]
    assert late == ["worker:2"]
    it = look(END + 2 * SILENT, spec=spec, worker_2=REDUCE._replace(what="compute"))
    assert waits_for(it) == FOR_2
    kept("a long hiccup", it.describe())
    assert stands(it) is None


def test_who_goes_on_is_not_said_to_wait_for_a_paused_one() -> None:
    it = look(END + SOON / 2, PAUSED)
    assert waits_for(it) == {}
    assert stands(it) is None


def test_what_is_over_holds_nobody_up() -> None:
    undone = [
        Lifecycle("worker:2", "paused", "", 1.0),
        Lifecycle("worker:2", "resumed", "", 1.1),
        Lifecycle("host:2", "cut", "", 1.0),
        Lifecycle("host:2", "healed", "", 1.1),
        Lifecycle("worker:2", "slowed", "by run.slow()", 1.1, factor=1),
    ]
    it = look(END + 2 * SILENT, *undone, worker_2=Beat(12, "compute", END))
    assert waits_for(it) == {}
    kept("what is over", it.describe())
    assert stands(it) is None


def test_a_task_with_long_steps_is_at_work_for_longer() -> None:
    phases = [Phase("worker:0", n, "compute", 5.0 * n, 5.0 * n + 4) for n in range(4)]
    trace = Trace([*phases, Lifecycle("worker:1", "paused", "", 19.0)])
    digest = Digest(SPEC, trace).update()
    beats = dict.fromkeys(SPEC.tasks, Beat(4, "compute", 20.0))
    early, late = (Snapshot(digest, beats, ALL[:2], now) for now in (30.0, 60.0))
    assert waits_for(early) == {} and waits_for(late) == {"worker:0": ("worker:1",)}
    assert stands(early) is None
    assert stands(late) is not None


def test_a_server_is_named_only_if_it_is_held_up_and_a_chief_waits_when_all_are_silent() -> None:
    spec = RunSpec(workers=1, ps=1, chief=True)
    assert sorted(look(9.0, spec=spec).describe()) == ["chief:0", "worker:0"]
    paused = Lifecycle("ps:0", "paused", "", 1.3)
    it = look(9.0, paused, spec=spec, handle="race.runs['it']", ps_0=Beat())
    assert waits_for(it) == dict.fromkeys(("chief:0", "worker:0"), ("ps:0",))
    kept("a server under a chief", it.describe())
    found = stands(it)
    assert found and (next(iter(found.does)), found.certain, found.since) == ("ps:0", True, 1.3)


def test_workers_under_a_chief_wait_as_soon_as_it_does_though_they_leave_no_beats() -> None:
    spec, paused = RunSpec(workers=1, ps=1, chief=True), Lifecycle("ps:0", "paused", "", END)
    it = look(END + 1.1 * SOON, paused, spec=spec, worker_0=Beat())
    found = stands(it)
    assert found and found.does["worker:0"].awaits == ("ps:0",)
    waits = Phase("worker:0", -1, "wait", END, it.now)
    assert waits in it.going_on(found) and waits not in it.going_on()


def test_of_tasks_that_say_nothing_nothing_is_made_up() -> None:
    digest = Digest(SPEC, Trace()).update()
    nothing = Snapshot(digest, dict.fromkeys(ALL, Beat()), ALL[:1], 99.0)
    kept("nothing recorded", nothing.describe())


def test_a_run_stands_still_when_all_wait_for_half_a_second_and_one_is_held_up() -> None:
    assert SOON <= 0.5 and stands(look(END + 2 * SILENT)) is None  # they may be slow
    assert stands(look(END + 0.9 * SOON, PAUSED)) is None
    assert stands(look(END + 1.1 * SOON, PAUSED))
    found = stands(look(END + 1.4, PAUSED))
    assert found and (found.since, next(iter(found.does)), found.certain) == (END, "worker:2", True)
    kept("standing still", f"{found.brief}: {found.words}")


def test_who_computes_beside_a_paused_task_or_is_in_its_first_step_has_a_second() -> None:
    computes = Beat(12, "compute", END)
    assert stands(look(END + 0.9 * SILENT, PAUSED, worker_0=computes)) is None
    assert stands(look(END + 1.1 * SILENT, PAUSED, worker_0=computes))
    digest = Digest(SPEC, Trace([PAUSED])).update()  # no step is done yet
    beats = dict.fromkeys(ALL, Beat(0, "reduce", END))
    assert stands(Snapshot(digest, beats, ALL, END + 0.9 * SILENT)) is None
    assert stands(Snapshot(digest, beats, ALL, END + 1.1 * SILENT))


def test_a_pause_that_will_end_as_planned_is_no_standstill_for_certain() -> None:
    planned = PAUSED._replace(fault="pause worker:2 at step 12 for 4s")
    found = stands(look(9.0, planned))
    assert found and next(iter(found.does)) == "worker:2" and not found.certain
    found = stands(look(9.0, PAUSED._replace(fault="pause worker:2 at step 12")))
    assert found and found.certain


def test_a_run_in_which_one_goes_on_does_not_stand_still() -> None:
    assert stands(look(9.0, PAUSED, worker_0=Beat(90, "compute", 8.9))) is None
    slowed = Lifecycle("worker:0", "slowed", "by run.slow()", END, factor=500)
    assert stands(look(9.0, PAUSED, slowed, worker_0=Beat(12, "compute", END))) is None


def test_a_run_whose_last_task_is_paused_stands_still() -> None:
    every = look(9.0, PAUSED)
    found = stands(Snapshot(every.digest, every.beats, ["worker:2"], 9.0))
    assert found and [*found.does] == ["worker:2"]


def test_ranks_that_call_different_collectives_stand_still_a_second_later() -> None:
    call = Beat(-1, "all_reduce", 4.0, 7, 0, 7, 7, 160, "0", "(10, 4) float32", "train.py:17")
    other = call._replace(rank=1, what="barrier", since=4.2)
    calls = {"worker:0": [call], "worker:1": [other], "worker:2": []}
    inside = {"worker_0": call, "worker_1": other, "worker_2": Beat(-1, "", 4.0)}
    assert stands(look(5.1, **inside), calls) is None
    found = stands(look(5.5, **inside), calls)
    assert found and (next(iter(found.does)), found.since, found.certain) == ("worker:1", 4.2, True)
    kept("different collectives", f"{found.words}. {found.cure}")


def test_a_run_whose_slow_task_takes_long_is_without_a_step_and_does_not_stand_still() -> None:
    slowed = Lifecycle("worker:2", "slowed", "by run.slow()", END, factor=500)
    compute = {"worker_2": REDUCE._replace(what="compute")}
    assert look(END + 0.9 * SILENT, slowed, **compute).slow_going() is None
    it = look(END + 1.2, slowed, **compute)
    found = it.slow_going()
    assert stands(it) is None and found and not found.certain
    kept("a slow task", f"{found.brief}: {found.words}")
    assert look(END + 1.2, slowed, worker_0=Beat(90, "compute", 2.3)).slow_going() is None


def test_a_function_of_the_learners_own_that_does_not_return_is_named() -> None:
    spec = RunSpec(strategy="work()", workers=3, framework="torch")
    late = REDUCE._replace(what="train_step")
    found = look(END + 12, spec=spec, worker_1=late).slow_going()
    assert found
    kept("a function of the learner's own", found.does["worker:1"])


def test_what_goes_on_is_a_phase_up_to_now_and_a_silent_exchange_a_wait() -> None:
    compute = REDUCE._replace(what="compute")
    outside = REDUCE._replace(what="")
    soon, late = (look(END + s, worker_1=compute, worker_2=outside) for s in (0.1, 4.0))
    assert soon.going_on() == [
        Phase("worker:0", 12, "reduce", END, END + 0.1),
        Phase("worker:1", 12, "compute", END, END + 0.1),
    ]
    assert [p.what for p in late.going_on()] == ["wait", "compute"]


def test_the_error_says_once_what_several_do() -> None:
    error = Stalled(look(9.0, PAUSED).describe(), 5)
    assert error.waiting_for["worker:0"] == f"{error.does['worker:0']}"
    kept("Stalled", f"{error}\n{Stalled({}, 5)}")


@pytest.mark.parametrize(
    "does",
    [
        {"worker:0": ("waits", 9), "worker:1": ("waits", 10), "worker:3": ("is paused", 9)},
        {
            **{f"worker:{n}": ("waits", 9) for n in range(7) if n != 3},
            "worker:3": ("is paused", 9),
            "ps:0": ("is paused", 8),
        },
        {**{f"worker:{n}": ("are lost", -1) for n in range(5)}, "chief:0": ("are lost", -1)},
    ],
)
def test_a_sentence_says_who_waits_for_whom(does: dict[str, tuple[str, int]]) -> None:
    await_ = {"waits": ("worker:3",)}
    every = {t: Activity(what, n, await_.get(what, ())) for t, (what, n) in does.items()}
    kept(f"{len(does)} tasks", sentence(every))


def test_who_waits_for_several_that_are_held_alike_says_so() -> None:
    held = ("worker:1", "worker:2")
    does = dict.fromkeys(held, Activity("is cut off with host:1")) | {
        "worker:0": Activity("waits", 3, held)
    }
    kept("several held alike", sentence(does))


def test_a_run_that_stands_still_is_told_so_with_the_cure() -> None:
    paused = {"worker:2": Activity("is paused", cure="run.resume('worker:2') lets it go on")}
    error = Stalled(paused, 1.43, standing=True)
    assert pickle.loads(pickle.dumps(error)).standing
    cured = Stalled({"worker:0": Activity("calls barrier")}, 2, standing=True, cure="Call it")
    kept("Stalled, standing still", f"{error}\n{cured}")


def test_a_stop_that_stalls_names_who_has_not_ended_and_another_cure() -> None:
    error = Stalled(
        dict.fromkeys(["worker:0", "worker:1"], Activity("has not ended")), 10, stopping=True
    )
    kept("Stalled, stopping", error)
    assert pickle.loads(pickle.dumps(error)).stopping


def test_a_start_that_takes_too_long_says_whether_tasks_or_an_import_are_missing() -> None:
    missing = StartTimeout(("worker:0",), ("worker:1",), 60)
    importing = StartTimeout((), (), 60, importing="tensorflow")
    kept("StartTimeout", f"{missing}\n{importing}")
    assert pickle.loads(pickle.dumps(importing)).importing == "tensorflow"
