"""TensorFlow's parameter servers: who applies what, who waits for whom and how stale gradients are,
from the traces of runs.
"""

import functools
import importlib
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from course_lib import Trace, Workload, start
from course_lib.errors import SpecError, TaskFailed
from course_lib.record import measures
from course_lib.record.events import Lifecycle, Metric, Phase, Update
from course_lib.strategies.facts.parameter_servers import PARAMETER_SERVER, SYNC_PARAMETER_SERVER
from tests.helpers import (
    SUM_ORDER,
    compares_times,
    keeping_weights,
    losses_of,
    of_times,
    spec_for,
    until,
    updates,
    usual,
)

ASYNC, SYNC = PARAMETER_SERVER.name, SYNC_PARAMETER_SERVER.name
PACKAGE = "course_lib.strategies.tensorflow"
SLACK = 1e-3  # the clock inside a graph is another one, converted

WORKERS, STEPS, DEVICE_MS = 3, 14, 60  # long enough beside what TensorFlow takes to hand out a step
STRAGGLER = "worker:1"


@functools.cache
def learned(name: str) -> tuple[dict[str, Any], Trace]:
    """Summary and trace of a short run of two workers and two parameter servers as fast as they
    can.
    """
    with start(name, framework="tensorflow", workers=2, ps=2, steps=50, global_batch=128) as run:
        return run.wait(60).result, run.trace


@functools.cache
def paced(name: str, slow: bool = False) -> tuple[dict[str, Any], Trace]:
    """Summary and trace of a run of three workers with emulated devices, one of them four times
    slower or not.
    """
    usual: dict[str, Any] = {
        "workers": WORKERS,
        "steps": STEPS,
        "global_batch": 48,
        "device_ms": DEVICE_MS,
    }
    with start(name, framework="tensorflow", slow={STRAGGLER: 4.0} if slow else {}, **usual) as run:
        return run.wait(60).result, run.trace


def serving(chief: Callable[[Any], Any]) -> dict[str, Any]:
    """The programs of a strategy with parameter servers, with this chief."""

    def serve(task):
        importlib.import_module(f"{PACKAGE}.server").serve(task)

    return {"chief": chief, "worker": serve, "ps": serve}


# --- what both do ---


@pytest.mark.parametrize("name", [ASYNC, SYNC])
def test_two_workers_learn_in_fifty_steps(name: str) -> None:
    result, trace = learned(name)
    losses = losses_of(trace)
    assert len(losses) == 50
    assert losses[-1] == result["final_loss"] < losses[0] / 2
    assert result["test_accuracy"] > 0.8
    assert max(m.samples for m in trace.all(Metric, name="loss")) == 50 * 128


class Broken:
    """A dataset with one item that cannot be read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index == 37:
            raise ValueError("item 37 is broken")
        return np.zeros(4), index % 3


def test_a_worker_whose_dataset_fails_is_named_with_the_error() -> None:
    def model() -> Any:
        import keras

        return keras.Sequential([keras.layers.Dense(3)])

    test = np.zeros((9, 4)), np.arange(9) % 3
    broken = Workload("broken_item", train=Broken(), test=test, tensorflow=model)
    fields: dict[str, Any] = {"workload": broken, "workers": 2, "steps": 20, "global_batch": 8}
    with start(ASYNC, framework="tensorflow", **fields) as run, pytest.raises(TaskFailed) as caught:
        run.wait(60)
    assert caught.value.task.startswith("worker:")
    assert caught.value.reason == "ValueError: item 37 is broken"


@pytest.mark.parametrize("name", [ASYNC, SYNC])
def test_every_gradient_goes_into_one_update_of_every_shard(name: str) -> None:
    for result, trace in (learned(name), paced(name, slow=True)):
        steps, workers = result["steps"], result["workers"]
        assert Counter(p.step for p in trace.all(Phase, what="compute")) == dict.fromkeys(
            range(steps), workers
        )
        for ps in (task for task in trace.tasks if task.startswith("ps:")):
            made = updates(trace, ps)
            # each version once, none left out
            assert [u.written for u in made] == list(range(1, len(made) + 1))
            per_step = Counter[int]()
            for u in made:
                per_step[u.step] += u.gradients
            assert per_step == dict.fromkeys(range(steps), workers)


@pytest.mark.parametrize("name", [ASYNC, SYNC])
def test_the_servers_apply_the_updates_and_hold_equal_bytes(name: str) -> None:
    result, trace = learned(name)
    devices = [f"/job:ps/replica:0/task:{k}/device:CPU:0" for k in (0, 1)]
    assert result["update_applied_by"] == devices
    assert {(u.task, u.variables, u.device) for u in trace.all(Update)} == {
        (f"ps:{k}", f"shard {k}", devices[k]) for k in (0, 1)
    }
    assert result["variables_on"] == dict.fromkeys(devices, 4 * result["parameters"] // 2)
    assert set(result["parameter_digest"]) == {"chief:0"}


@pytest.mark.parametrize("name", [ASYNC, SYNC])
def test_a_worker_pulls_computes_and_pushes_and_the_servers_apply_before_its_push_is_over(
    name: str,
) -> None:
    _, trace = learned(name)
    pushes = []
    for task in ("worker:0", "worker:1"):
        # the chief records a share when its result is there, maybe after the next one's
        phases = sorted(trace.all(Phase, task), key=lambda p: (p.step, p.start))
        assert [p.what for p in phases] == ["read", "compute", "reduce"] * (len(phases) // 3)
        assert all(p.start <= p.end for p in phases)
        assert all(a.end <= b.start + SLACK for a, b in itertools.pairwise(phases))
        pushes += phases[2::3]
    for u in trace.all(Update):
        assert any(p.step == u.step and p.start - SLACK <= u.at <= p.end + SLACK for p in pushes)
    assert trace.tasks == ["chief:0", "ps:0", "ps:1", "worker:0", "worker:1"]
    assert not trace.all(Phase, "chief:0")  # it neither computes nor applies anything


# --- the synchronous one ---


@functools.cache
def with_weights(name: str, workers: int, ps: int, workload: str) -> tuple[list[np.ndarray], Trace]:
    """The weights that a run ended with, and its trace."""

    role = keeping_weights(f"{PACKAGE}.{name}:{'chief' if ps else 'worker'}")
    programs: Any = serving(role) if ps else role
    fields: dict[str, Any] = {
        "workers": workers,
        "ps": ps,
        "chief": ps > 0,
        "workload": workload,
        "global_batch": 96,
        "steps": 30,
        "learning_rate": 0.1,
    }
    with start(programs, framework="tensorflow", **fields) as run:
        (result,) = (value for value in run.wait(60).result.values() if value)
        return result["weights"], run.trace


def same(one: tuple[list[np.ndarray], Trace], other: tuple[list[np.ndarray], Trace]) -> None:
    np.testing.assert_allclose(*(losses_of(trace) for _, trace in (one, other)), **SUM_ORDER)
    for ours, theirs in zip(one[0], other[0], strict=True):
        np.testing.assert_allclose(ours, theirs, **SUM_ORDER)


def test_synchronous_servers_learn_what_one_device_learns() -> None:
    same(with_weights(SYNC, 3, 2, "digits_cnn"), with_weights("one_device", 1, 0, "digits_cnn"))


def test_a_synchronous_server_makes_one_update_a_step_of_all_gradients_and_none_is_stale() -> None:
    _, trace = with_weights(SYNC, 3, 2, "digits_cnn")
    for ps in ("ps:0", "ps:1"):
        made = [(u.step, u.read, u.written, u.staleness, u.gradients) for u in updates(trace, ps)]
        assert made == [(n, n, n + 1, 0, 3) for n in range(30)]
    for task in ("worker:0", "worker:1", "worker:2"):
        # one share of each step; the chief may write two down in the other order
        shares = sorted(trace.all(Phase, task, what="compute"), key=lambda p: p.start)
        assert [p.step for p in shares] == list(range(30))


@pytest.mark.parametrize("sampler", ["global", "per_worker"])
def test_the_last_bits_of_a_synchronous_run_do_not_depend_on_who_comes_first(sampler: str) -> None:
    fields: dict[str, Any] = {"framework": "tensorflow", "workers": 4, "ps": 2, "steps": 15}
    fields |= {"global_batch": 48, "sampler": sampler, "device_ms": 10, "seed": 3}
    last = ("worker:0", "worker:1", "worker:3")
    runs = [start(SYNC, slow={task: 3.0}, **fields).wait(60) for task in last]
    assert len({run.result["parameter_digest"]["chief:0"] for run in runs}) == 1
    curves = [losses_of(run.trace) for run in runs]
    assert curves[0] == curves[1] == curves[2]


@compares_times(paced)
def test_synchronous_workers_wait_for_the_straggler() -> None:
    _, trace = paced(SYNC, slow=True)
    with of_times():
        assert usual(trace, STRAGGLER, "compute") > 3 * usual(trace, "worker:0", "compute")
        between = statistics.median(b.at - a.at for a, b in itertools.pairwise(updates(trace)))
        assert between > usual(trace, STRAGGLER, "compute")  # it sets the pace
        idle = measures.idle_share(trace)
        assert min(idle["worker:0"], idle["worker:2"]) > 0.5 > 0.1 > idle[STRAGGLER]


# --- the asynchronous one ---


def test_one_asynchronous_worker_learns_what_one_device_learns() -> None:
    same(with_weights(ASYNC, 1, 2, "digits"), with_weights("one_device", 1, 0, "digits"))
    assert {u.staleness for u in updates(with_weights(ASYNC, 1, 2, "digits")[1])} == {0}


@compares_times(paced)
def test_asynchronous_gradients_are_as_stale_as_there_are_other_workers() -> None:
    result, trace = paced(ASYNC)
    mean = statistics.mean(u.staleness for u in updates(trace))
    with of_times():
        # what lies between a push and the next pull is in neither
        assert (WORKERS - 1) / 2 < mean <= WORKERS - 1
    assert result["staleness"]["mean"] == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("slow", [False, True])
def test_staleness_by_versions_is_staleness_by_the_clock(slow: bool) -> None:
    _, trace = paced(ASYNC, slow)
    reads, pushes = (
        sorted(trace.all(Phase, what=what), key=lambda p: p.task) for what in ("read", "reduce")
    )
    made = updates(trace)
    # A gradient is under way from some moment of its worker's read to some moment of its push.
    # Every other update meanwhile makes it stale.
    least = sum(
        read.end <= u.at <= push.start
        for u in made
        for read, push in zip(reads, pushes, strict=True)
    ) / len(made)
    most = (
        sum(
            read.start <= u.at <= push.end
            for u in made
            for read, push in zip(reads, pushes, strict=True)
        )
        / len(made)
        - 1
    )
    assert least - 0.1 <= statistics.mean(u.staleness for u in made) <= most + 0.1


@compares_times(paced)
def test_the_stale_gradients_are_those_of_the_straggler() -> None:
    _, trace = paced(ASYNC, slow=True)
    spans = trace.all(Phase, what="reduce")
    stale: dict[str, list[int]] = {f"worker:{k}": [] for k in range(WORKERS)}
    for u in updates(trace):
        who = {p.task for p in spans if p.step == u.step and p.start <= u.at <= p.end}
        if len(who) == 1:
            stale[who.pop()].append(u.staleness)
    others = stale["worker:0"] + stale["worker:2"]
    with of_times():
        assert statistics.median(stale[STRAGGLER]) > max(2 * statistics.median(others), WORKERS - 1)


@compares_times(paced)
def test_a_straggler_takes_only_its_own_part_of_the_asynchronous_throughput() -> None:
    _, trace = paced(ASYNC, slow=True)
    done = Counter(p.task for p in trace.all(Phase, what="compute"))
    others = (done["worker:0"] + done["worker:2"]) / 2
    with of_times():
        assert done.total() / (WORKERS * others) == pytest.approx(
            (WORKERS - 1 + 1 / 4) / WORKERS, abs=0.08
        )  # 1: all as fast as the others
        for task in ("worker:0", "worker:2"):
            assert usual(trace, task, "reduce") < usual(trace, task, "compute") / 2  # nobody waits


# --- faults ---


def test_gradients_that_a_lost_worker_had_pushed_already_are_not_applied_again() -> None:
    def work(task):
        import tensorflow as tf

        from course_lib.strategies.tensorflow import parameter_server as page
        from course_lib.strategies.tensorflow.models import Optimizer
        from course_lib.strategies.tensorflow.server import Shard

        values, version = tf.Variable([1.0, 2.0]), tf.Variable(0, dtype=tf.int64)
        optimizer = Optimizer(task.spec)
        state = optimizer.state_of(values)
        shard = Shard("ps:0", values, version, state)
        applier = page.Applier(shard, task.spec, optimizer)

        @tf.function(autograph=False)
        def push(step):
            share, ones = tf.constant(0, tf.int64), tf.constant([1.0, 1.0])
            return applier.push(step, share, ones, tf.constant(1.0))

        told = [push(tf.constant(step, tf.int64)).numpy() for step in (0, 2, 0, 2, 1)]
        return [row[:2].tolist() for row in told], values.numpy().tolist(), int(version)

    fields: dict[str, Any] = {"steps": 3, "optimizer": "momentum", "learning_rate": 0.5}
    told, values, version = (
        start(work, framework="tensorflow", workers=1, **fields).wait(60).values["worker:0"]
    )
    assert told == [[1, 1], [2, 1], [1, 1], [2, 1], [3, 1]]  # version and number of gradients
    assert version == 3
    velocity = (1, 1.9, 2.71)
    assert values == pytest.approx([1 - 0.5 * sum(velocity), 2 - 0.5 * sum(velocity)])


@compares_times()
def test_a_worker_can_be_slowed_while_it_runs_and_is_named_if_it_is_the_last_that_is_lost() -> None:
    def computed() -> int:
        return len(run.trace.all(Phase, "worker:1", what="compute"))

    with start(ASYNC, framework="tensorflow", workers=2, steps=100_000, device_ms=20) as run:
        until(lambda: computed() > 8, "steps of worker:1")
        for task in ("ps:0", "chief:0"):
            with pytest.raises(SpecError, match=f"slow='{task}': only workers"):
                run.slow(task, 5)
        run.slow("worker:1", 5)
        slowed = computed()
        run.kill("worker:0")
        until(lambda: computed() > slowed + 8, "slow steps, without worker:0")
        run.kill("worker:1")
        with pytest.raises(TaskFailed) as caught:
            run.wait(30)
    assert (caught.value.task, caught.value.reason) == ("worker:1", "it was killed by run.kill()")
    seconds = [p.end - p.start for p in run.trace.all(Phase, "worker:1", what="compute")]
    with of_times():
        assert statistics.median(seconds[-4:]) > 3 * statistics.median(seconds[2:slowed])


@pytest.mark.parametrize("restarts", [0, 1])
def test_the_others_go_on_without_a_lost_worker_until_it_is_back(restarts: int) -> None:
    fields: dict[str, Any] = {"workers": 3, "ps": 2, "steps": 60, "global_batch": 48}
    fields |= {"device_ms": 40, "faults": ["kill worker:1 at step 12"], "max_restarts": restarts}
    with start(ASYNC, framework="tensorflow", **fields) as run:
        result = run.wait(90).result
    every_version_once(run.trace, 60 * 3)
    assert result["ledger"]["balanced"] and result["ledger"]["repeated"] == 0
    assert result["restarts"] == restarts
    assert result["tasks_lost"] == ["worker:1"] * (1 - restarts)
    (death,) = run.trace.all(Lifecycle, state="killed")
    back = [p.start for p in run.trace.all(Phase, "worker:1", what="compute") if p.start > death.at]
    others = [p.end for p in run.trace.all(Phase, "worker:0", what="compute") if p.end > death.at]
    assert bool(back) == bool(restarts)
    assert len([end for end in others if end < min(back, default=math.inf)]) > 3
    assert {e.task for e in run.trace.all(Lifecycle) if e.attempt} == set(["worker:1"] * restarts)


def test_all_go_back_to_the_last_checkpoint_when_a_server_is_lost() -> None:
    fields: dict[str, Any] = {"workers": 2, "ps": 2, "steps": 24, "checkpoint_every": 8}
    fields |= {"device_ms": 20, "faults": ["kill ps:1 at step 13"], "max_restarts": 1}
    with start(ASYNC, framework="tensorflow", optimizer="adamw", **fields) as run:
        result = run.wait(90).result
    (death,) = run.trace.all(Lifecycle, state="killed")
    before = [u.written for u in run.trace.all(Update) if u.at < death.at]
    after = [u.written for u in run.trace.all(Update) if u.at > death.at]
    # the third update of each worker after the checkpoint came before the kill
    assert max(before) > 2 * 10 and min(after) == 2 * 8 + 1 and max(after) == 2 * 24
    every_version_once(run.trace, 2 * 24)
    assert result["ledger"]["balanced"] and result["restarts"] == 1
    assert result["steps_again"] in range(3, 7)
    assert [each.steps for each in run.checkpoints()] == [16, 24]


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_worker_that_is_lost_while_the_chief_connects_is_told_or_all_start_again(
    restarts: int,
) -> None:
    fields: dict[str, Any] = {"workers": 2, "ps": 2, "steps": 8, "max_restarts": restarts}
    # when the chief goes on, it knows that all servers have been up, and one is gone
    faults = ["pause chief:0 at 0ms for 1s", "kill worker:1 at 900ms"]
    with start(ASYNC, framework="tensorflow", faults=faults, **fields) as run:
        if not restarts:
            with pytest.raises(TaskFailed, match="killed as planned") as caught:
                run.wait(60)
            assert caught.value.task == "worker:1"
            return
        result = run.wait(60).result
    every_version_once(run.trace, 2 * 8)
    assert (result["restarts"], result["steps_again"]) == (1, 0)
    assert {e.task for e in run.trace.all(Lifecycle) if e.attempt} == {*run.spec.tasks}


def every_version_once(trace: Trace, count: int) -> None:
    """Hold that each ps made so many updates, apart from those that it made once more."""
    for ps in ("ps:0", "ps:1"):
        written = {u.written for u in updates(trace, ps)}
        assert written == set(range(1, count + 1))


def test_a_chief_that_waits_in_vain_gives_up_and_says_for_what() -> None:
    def impatient(task: Any) -> Any:
        importlib.import_module(f"{PACKAGE}.server").PATIENCE = 4.0
        return importlib.import_module(f"{PACKAGE}.{SYNC}").chief(task)

    with start(
        serving(impatient),
        framework="tensorflow",
        workers=2,
        ps=1,
        chief=True,
        steps=100_000,
    ) as run:
        until(lambda: len(run.trace.all(Update)) > 8, "updates")
        run.pause("worker:1")
        until(lambda: run.state == "failed", "the patience of the chief to end")
        with pytest.raises(
            TaskFailed,
            match=(
                r"worker:1 failed.*: it was paused.*"
                r"no worker has finished its share of a step for 4 s; step \d+"
                r" is not complete"
            ),
        ):
            run.wait(30)


def test_what_cannot_be_is_refused_before_it_starts() -> None:
    with pytest.raises(SpecError, match=r"ps=0: .* at least one"):
        spec_for(ASYNC, framework="tensorflow", ps=0)
    for task in ("ps:0", "chief:0"):
        with pytest.raises(SpecError, match=f"slow='{task}': only workers"):
            spec_for(SYNC, framework="tensorflow", slow={task: 2.0})
