"""Training with an all-reduce of ours: what is learned, what goes over the wire, and what happens
when a worker is lost.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from course_lib import RunSpec, start
from course_lib.cluster.run import Run
from course_lib.collectives import (
    ALGORITHMS,
    COLLECTIVES,
    Schedule,
    Transfer,
    build,
    cost,
    ring,
    verify,
)
from course_lib.errors import LockstepError, SpecError, TaskFailed
from course_lib.exchange import PATIENCE
from course_lib.record.events import Message, Metric, Phase
from course_lib.record.rundir import RunDir
from tests.conftest import HOME
from tests.helpers import SUM_ORDER, losses, until

FRAMEWORKS = ("torch", "tensorflow")
STEPS = 20
# three on two hosts: every algorithm has to do with a host or a round that is not full
WORKERS = {"torch": 3, "tensorflow": 4}
SLACK = 1e-3  # seconds: the clock inside a TensorFlow graph is another one, converted


def chain(workers: int) -> Schedule:
    """What a learner might write first: sum up along a chain, hand the result back along it."""
    last = workers - 1
    up: list[Any] = [[Transfer(r, r + 1, 0, "reduce")] for r in range(last)]
    down: list[Any] = [[Transfer(r + 1, r, 0, "copy")] for r in reversed(range(last))]
    return Schedule("chain", workers, 1, up + down)


def forgetful(workers: int) -> Schedule:
    """A ring that stops a round early."""
    return replace(ring(workers), name="forgetful", rounds=ring(workers).rounds[:-1])


CASES: list[tuple[str, Any]] = [("torch", name) for name in (*ALGORITHMS, chain)] + [
    ("tensorflow", a) for a in ("ring", "hierarchical", chain)
]


@functools.cache
def trained(framework: str, all_reduce: str | Callable[..., Schedule]) -> Run:
    """A short run that is over, made once for several tests."""
    options: dict[str, Any] = {
        "framework": framework,
        "workers": WORKERS[framework],
        "steps": STEPS,
    }
    with start("multi_worker_mirrored", all_reduce=all_reduce, hosts=2, **options) as run:
        return run.wait(100)


class Call(NamedTuple):
    """One all-reduce of a run as its messages show it: the bytes of its array, what each rank sent
    and received, and its messages by rank.
    """

    bytes: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    messages: list[list[Message]]


def calls(run: Run, schedule: Schedule) -> list[Call]:
    """All calls of a run.

    Each rank has recorded as many messages for each call as the schedule has transfers for it.
    """
    by_rank = []
    for rank in range(schedule.ranks):
        each = sum(t.dst == rank for transfers in schedule.rounds for t in transfers)
        messages = run.trace.all(Message, schedule.task(rank))
        assert len(messages) % each == 0
        by_rank.append([messages[i : i + each] for i in range(0, len(messages), each)])
    assert len({len(messages) for messages in by_rank}) == 1
    return [_call(list(messages), schedule) for messages in zip(*by_rank, strict=True)]


def _call(messages: list[list[Message]], schedule: Schedule) -> Call:
    listed = [m for ranks in messages for m in ranks]
    chunks = {m.chunk: m.bytes for m in listed}
    assert sorted(chunks) == list(range(schedule.chunks))
    assert all(m.bytes == chunks[m.chunk] for m in listed)
    tasks = [schedule.task(rank) for rank in range(schedule.ranks)]
    sent, received = (Counter[str](), Counter[str]())
    for m in listed:
        sent[m.src] += m.bytes
        received[m.dst] += m.bytes
    return Call(
        sum(chunks.values()),
        tuple(sent[t] for t in tasks),
        tuple(received[t] for t in tasks),
        messages,
    )


def check_price(call: Call, schedule: Schedule) -> None:
    price = cost(schedule, call.bytes, itemsize=4)
    assert (call.sent, call.received) == (price.sent, price.received)
    transfers = Counter(
        (number, *t[:3]) for number, transfers in enumerate(schedule.rounds) for t in transfers
    )
    ranks = {schedule.task(rank): rank for rank in range(schedule.ranks)}
    assert (
        Counter(
            (m.round, ranks[m.src], ranks[m.dst], m.chunk)
            for messages in call.messages
            for m in messages
        )
        == transfers
    )


def schedule_of(framework: str, all_reduce: Any) -> Schedule:
    # a worker is the server
    options = {"colocated": True} if all_reduce == "parameter_server" else {}
    return build(all_reduce, WORKERS[framework], 2, **options)


# --- what is learned, and what is sent ---


@pytest.mark.parametrize(("framework", "all_reduce"), CASES)
def test_all_workers_end_equal_and_learn_what_they_learn_with_the_frameworks_own(
    framework: str, all_reduce: Any
) -> None:
    run, native = trained(framework, all_reduce), trained(framework, "native")
    digests = run.result["parameter_digest"]
    assert list(digests) == [f"worker:{i}" for i in range(WORKERS[framework])]
    assert len(set(digests.values())) == 1
    assert len(losses(run.trace)) == STEPS
    np.testing.assert_allclose(losses(run.trace), losses(native.trace), **SUM_ORDER)
    # all are told the mean over the global batch
    assert all(losses(run.trace, task) == losses(run.trace) for task in digests)
    assert not native.trace.all(Message)


@pytest.mark.parametrize(("framework", "all_reduce"), CASES)
def test_what_goes_over_the_wire_in_a_step_is_what_the_schedule_costs(
    framework: str, all_reduce: Any
) -> None:
    run, schedule = trained(framework, all_reduce), schedule_of(framework, all_reduce)
    found = calls(run, schedule)
    assert len(found) == STEPS
    for call in found:
        # the loss travels along with the gradients
        assert call.bytes == 4 * (run.result["parameters"] + 1)
        check_price(call, schedule)


@pytest.mark.parametrize(("framework", "all_reduce"), CASES)
def test_the_messages_of_a_step_fall_in_its_reduction(framework: str, all_reduce: Any) -> None:
    run, schedule = trained(framework, all_reduce), schedule_of(framework, all_reduce)
    for step, call in enumerate(calls(run, schedule)):
        for rank, messages in enumerate(call.messages):
            (reduction,) = run.trace.all(Phase, schedule.task(rank), what="reduce", step=step)
            assert all(reduction.start - SLACK <= m.end <= reduction.end + SLACK for m in messages)
            assert all(m.start <= m.end for m in messages)


@pytest.mark.parametrize(("framework", "all_reduce"), CASES)
def test_the_record_of_a_run_names_its_all_reduce_and_keeps_no_meeting(
    framework: str, all_reduce: Any
) -> None:
    run = trained(framework, all_reduce)
    name = all_reduce if isinstance(all_reduce, str) else "chain"
    assert (run.result["all_reduce"], run.result["hosts"]) == (name, 2)
    spec = RunSpec.model_validate_json((run.run_dir / "spec.json").read_text())
    assert (spec.all_reduce, spec.hosts) == (name, 2)
    assert any(r.choice and name in f"{r.choice} {r.why}" for r in run.plan.reasons)
    assert not (run.run_dir / "meetings").exists()


def test_ddp_exchanges_the_first_bucket_while_it_computes_the_next() -> None:
    options: dict[str, Any] = {
        "workload": "wide",
        "sizes": {"parameters": 3_000_000},
        "steps": 4,
        "workers": 3,
    }
    with start("multi_worker_mirrored", framework="torch", all_reduce="ring", **options) as run:
        trace = run.wait(60).trace
    schedule, left = ring(3), calls(run, ring(3))
    for step in range(4):
        (compute,) = trace.all(Phase, "worker:0", what="compute", step=step)
        reductions = trace.all(Phase, "worker:0", what="reduce", step=step)
        buckets, left = left[: len(reductions)], left[len(reductions) :]
        assert sum(call.bytes for call in buckets) == 4 * (run.result["parameters"] + 1)
        for call in buckets:
            check_price(call, schedule)
        assert compute.end == reductions[-1].start
        if step > 1:  # DDP arranges its buckets after the first step
            assert len(reductions) == 2
            assert reductions[0].start < compute.end
    assert left == []
    assert len(set(run.result["parameter_digest"].values())) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_worker_and_a_run_without_a_trace_exchange_nothing_that_shows(framework: str) -> None:
    for options in ({"workers": 1}, {"workers": 2, "trace": False}):
        with start(
            "multi_worker_mirrored", framework=framework, all_reduce="ring", steps=2, **options
        ) as run:
            result = run.wait(60).values
        assert len({value["digest"] for value in result.values()}) == 1
        assert run.trace.all(Message) == []


# --- what is refused ---


@pytest.mark.parametrize(
    ("strategy", "fields", "says"),
    [
        (
            "multi_worker_mirrored",
            {"all_reduce": forgetful},
            f"all_reduce='forgetful': it is not right yet.\n{verify(forgetful(4))}",
        ),
        ("multi_worker_mirrored", {"all_reduce": lambda workers: 3}, "must return a Schedule"),
        (
            "multi_worker_mirrored",
            {"all_reduce": lambda workers: ring(2)},
            "schedule for 4 workers",
        ),
        (
            "multi_worker_mirrored",
            {"all_reduce": "rign"},
            "did you mean 'ring'?",
        ),
        ("multi_worker_mirrored", {"all_reduce": "ring_all_gather"}, "allowed: native, "),
        (
            "multi_worker_mirrored",
            {"all_reduce": COLLECTIVES["ring_all_gather"]},
            "all_gather; a run needs",
        ),
        (
            "multi_worker_mirrored",
            {"all_reduce": ALGORITHMS["parameter_server"]},
            "servers of its own",
        ),
        ("multi_worker_mirrored", {"all_reduce": 4}, "all_reduce=4: allowed: native"),
        (
            "multi_worker_mirrored",
            {"all_reduce": "ring", "hosts": 5},
            "hosts=5: at most 4",
        ),
        ("multi_worker_mirrored", {"hosts": 0}, "hosts=0: allowed"),
        (
            "one_device",
            {"all_reduce": "ring"},
            "to replace; multi_worker_mirrored has",
        ),
        ("one_device", {"all_reduce": chain}, "no all-reduce to replace"),
        (
            lambda task: None,
            {"framework": "python", "all_reduce": forgetful},
            "not right yet",
        ),
        (RunSpec(framework="torch", all_reduce="rign"), {}, "did you mean 'ring'?"),
    ],
)
def test_what_is_no_all_reduce_for_a_run_is_refused_before_a_process_starts(
    strategy: Any, fields: dict[str, Any], says: str
) -> None:
    runs = set(Path(HOME, "runs").glob("*"))
    with pytest.raises(SpecError) as caught:
        start(
            strategy, **({} if isinstance(strategy, RunSpec) else {"framework": "torch"}) | fields
        )
    assert says in str(caught.value)
    assert set(Path(HOME, "runs").glob("*")) == runs


def test_a_function_is_never_taken_for_the_frameworks_own() -> None:
    def native(workers: int) -> Schedule:
        return chain(workers)

    with start(
        "multi_worker_mirrored", framework="torch", workers=2, steps=1, all_reduce=native
    ) as run:
        assert run.wait(60).trace.all(Message)


# --- a worker is lost ---


@functools.cache
def killed(framework: str) -> tuple[Run, LockstepError, dict[str, str]]:
    """A run in which a worker was killed in the middle of a step, how it ended, and what the others
    said.
    """
    options: dict[str, Any] = {"framework": framework, "workers": 3, "hosts": 2, "steps": 100_000}
    with start("multi_worker_mirrored", all_reduce="ring", **options).wait_running(60) as run:
        until(lambda: len(run.trace.all(Metric, "worker:1")) >= 3, "steps of worker:1")
        run.kill("worker:1")
        with pytest.raises(LockstepError) as caught:
            # nobody waits until patience runs out: the lost connection tells
            run.wait(PATIENCE / 2)
    errors = {
        path.parent.name: json.loads(path.read_text())["reason"]
        for path in run.run_dir.glob("tasks/*/error.json")
    }
    return run, caught.value, errors


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_worker_ends_the_run_and_is_named(framework: str) -> None:
    run, error, _ = killed(framework)
    assert isinstance(error, TaskFailed)
    assert (error.task, error.reason) == ("worker:1", "it was killed by run.kill()")
    assert error.step is not None
    assert run.state == "failed"
    assert not (run.run_dir / "meetings").exists()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_others_say_in_one_line_which_rank_was_lost(framework: str) -> None:
    _, _, errors = killed(framework)
    assert errors
    assert "worker-1" not in errors
    for reason in errors.values():
        assert reason.startswith("RankLost: rank 1")
        assert "\n" not in reason


# --- functions of a learner's own ---


def test_a_function_of_ones_own_exchanges_with_the_schedule_of_the_run() -> None:
    def work(task: Any) -> Any:
        group = task.group()
        arrays = [np.arange(10) * 10**task.index, np.full((2, 3), task.index + 0.5)]
        for array in arrays:
            group.execute(task.schedule, array)
        group.close()
        return (
            task.schedule.name,
            task.schedule.hosts,
            task.rank,
            arrays,
            (task.run_dir / "meetings").exists(),
        )

    with start(work, framework="python", workers=3, all_reduce="ring", hosts=2) as run:
        result = run.wait(60).result
    for i, task in enumerate(("worker:0", "worker:1", "worker:2")):
        name, hosts, rank, (whole, half), met = result[task]
        assert (name, hosts, rank, met) == ("ring", (0, 0, 1), i, True)
        np.testing.assert_array_equal(whole, np.arange(10) * 111)
        np.testing.assert_array_equal(half, np.full((2, 3), 4.5))
    assert [call.bytes for call in calls(run, ring(3))] == [80, 48]
    assert not (run.run_dir / "meetings").exists()


def test_a_function_of_ones_own_may_choose_its_schedules_and_meet_in_several_groups() -> None:
    def work(task: Any) -> Any:
        assert task.schedule is None
        found = []
        for name in ("tree", "direct"):
            schedule = build(name, 2)
            group = task.group(schedule, name)
            array = np.array([task.rank + 1])
            group.execute(schedule, array)
            group.close()
            found.append(int(array[0]))
        return found

    with start(work, framework="python", workers=2) as run:
        assert run.wait(60).result == {"worker:0": [3, 3], "worker:1": [3, 3]}


@pytest.mark.parametrize("others", [{"ps": 1}, {"chief": True}], ids=str)
def test_the_schedule_of_a_run_is_for_its_workers_whatever_other_tasks_there_are(
    others: dict[str, Any],
) -> None:
    def work(task: Any) -> int:
        group = task.group()
        array = np.array([task.index + 1])
        group.execute(task.schedule, array)
        group.close()
        return int(array[0])

    def stand_by(task: Any) -> None:  # a run ends with its chief
        until(
            lambda: len(RunDir(task.run_dir).values(["worker:0", "worker:1"])) == 2, "both values"
        )

    programs: dict[str, Any] = {"worker": work, next(iter(others)): stand_by}
    with start(programs, framework="python", workers=2, all_reduce="ring", **others) as run:
        values = run.wait(60).values
    assert (values["worker:0"], values["worker:1"]) == (3, 3)
    assert {m.task for m in run.trace.all(Message)} == {"worker:0", "worker:1"}
