"""Strategies in real processes: what a trace and the final weights must show, whatever the
machine's speed.
"""

import functools
import itertools
import statistics
import time
from typing import Any

import numpy as np
import pytest

from course_lib import RunSpec, Trace, start, workloads
from course_lib.record.events import Phase, Update
from course_lib.strategies import catalog
from course_lib.workloads.layers import digest
from tests.helpers import SUM_ORDER, keeping_weights, losses

FRAMEWORKS = ("tensorflow", "torch")
STEPS = 30
SMALL = {"digits": {}, "digits_cnn": {}, "digits_deep": {}, "wide": {"sizes": "parameters=30000"}}


@functools.cache
def trained(framework: str, workers: int, workload: str) -> tuple[dict[str, Any], Trace]:
    """What each task returned, with its weights, and the trace of a short run on `workers` workers,
    or on one device.
    """
    strategy = "one_device" if workers == 1 else "multi_worker_mirrored"
    role = keeping_weights(catalog.find(strategy).programs[framework]["worker"])
    with start(
        role,
        framework=framework,
        workers=workers,
        workload=workload,
        global_batch=64,
        steps=STEPS,
        **SMALL[workload],
    ) as run:
        return run.wait(100).result, run.trace


def close(first: dict[str, Any], second: dict[str, Any]) -> None:
    for a, b in zip(first["worker:0"]["weights"], second["worker:0"]["weights"], strict=True):
        np.testing.assert_allclose(a, b, **SUM_ORDER)


GRID = [(framework, 2, workload) for framework in FRAMEWORKS for workload in SMALL] + [
    (framework, 4, "digits") for framework in FRAMEWORKS
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("framework", "workers", "workload"), GRID)
def test_several_workers_learn_what_one_device_learns(
    framework: str, workers: int, workload: str
) -> None:
    alone, alone_trace = trained(framework, 1, workload)
    together, trace = trained(framework, workers, workload)
    np.testing.assert_allclose(losses(trace), losses(alone_trace), **SUM_ORDER)
    close(together, alone)


@pytest.mark.parametrize(("framework", "workers", "workload"), GRID)
def test_all_replicas_end_equal_to_the_last_bit(
    framework: str, workers: int, workload: str
) -> None:
    together, trace = trained(framework, workers, workload)
    assert len(together) == workers
    assert len({value["digest"] for value in together.values()}) == 1
    assert all(value["digest"] == digest(value["weights"]) for value in together.values())
    # all are told the mean over the global batch
    assert all(losses(trace, task) == losses(trace) for task in together)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_naive_page_learns_what_the_frameworks_own_learns(framework: str) -> None:
    role = keeping_weights(f"course_lib.strategies.{framework}.multi_worker_mirrored:naive")
    fields: dict[str, Any] = {"workload": "digits", "global_batch": 64, "steps": STEPS}
    with start(role, framework=framework, workers=2, **fields) as run:
        naive, naive_trace = run.wait(100).result, run.trace
    own, trace = trained(framework, 2, "digits")
    np.testing.assert_allclose(losses(naive_trace), losses(trace), **SUM_ORDER)
    close(naive, own)
    assert len({value["digest"] for value in naive.values()}) == 1
    assert [(p.step, p.what) for p in naive_trace.all(Phase, "worker:0")] == [
        (step, what) for step in range(STEPS) for what in ("read", "compute", "reduce", "apply")
    ]


def plain_ddp(task: Any) -> str:
    """DDP without a communication hook, as its documentation has it: a digest of what it learns."""
    from torch.nn.parallel import DistributedDataParallel

    from course_lib.strategies.torch.models import model_of, weights_of
    from course_lib.strategies.torch.steps import TorchStep, join

    join(task)
    model = model_of(task)
    ddp = DistributedDataParallel(model, bucket_cap_mb=task.spec.bucket_mb)
    step = TorchStep(task, model)
    while step.begin():
        inputs, targets = step.read(task.index, task.spec.workers)
        step.loss_of(ddp(inputs), targets).backward()
        step.optimizer.step()
    return digest(weights_of(model.parameters()))


def test_the_hook_of_ddp_changes_no_bit_of_what_ddp_learns() -> None:
    """With two workers: the sum of two halves is half the sum."""
    fields = {"workers": 2, "workload": "digits_deep", "bucket_mb": 0.01, "steps": 5}
    with start(plain_ddp, framework="torch", **fields) as run:
        plain = run.wait(60).values
    with start("multi_worker_mirrored", framework="torch", **fields) as run:
        assert run.wait(60).result["parameter_digest"] == plain
    assert len(run.trace.all(Phase, "worker:0", what="reduce", step=4)) > 4  # buckets


def test_three_workers_whose_parts_of_the_mean_are_no_binary_fractions_learn_it_all_the_same() -> (
    None
):
    fields = {"framework": "torch", "global_batch": 48, "steps": STEPS}
    traces = []
    for name, workers in (("one_device", 1), ("multi_worker_mirrored", 3)):
        with start(name, workers=workers, **fields) as run:
            traces.append(run.wait(60).trace)
    np.testing.assert_allclose(losses(traces[1]), losses(traces[0]), **SUM_ORDER)


@pytest.mark.parametrize("workload", SMALL)
def test_both_frameworks_learn_the_same(workload: str) -> None:
    ours, trace = trained("tensorflow", 1, workload)
    theirs, their_trace = trained("torch", 1, workload)
    np.testing.assert_allclose(losses(trace), losses(their_trace), **SUM_ORDER)
    close(ours, theirs)
    assert losses(trace)[-1] < losses(trace)[0] / 1.5


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_phases_of_a_step_follow_each_other(framework: str) -> None:
    slack = 1e-3  # the clock inside a TensorFlow graph is another one, converted
    for workers in (1, 2):
        _, trace = trained(framework, workers, "digits")
        order = (
            ["read", "compute", "apply"] if workers == 1 else ["read", "compute", "reduce", "apply"]
        )
        assert len(trace.tasks) == workers
        for task in trace.tasks:
            phases = trace.all(Phase, task)
            assert [(p.step, p.what) for p in phases] == [
                (step, what) for step in range(STEPS) for what in order
            ]
            assert all(p.start <= p.end for p in phases)
            assert all(a.end <= b.start + slack for a, b in itertools.pairwise(phases))


def test_stamps_in_a_graph_wait_for_what_they_follow_and_hold_what_follows_them() -> None:
    def work(task):
        import tensorflow as tf

        from course_lib.strategies.tensorflow.steps import after, clock_offset, hold

        def slowly(value: Any) -> Any:
            return tf.numpy_function(
                lambda v: time.sleep(0.05) or v, [value], tf.float32, stateful=False
            )

        @tf.function(autograph=False)
        def graph(one: Any, two: Any) -> Any:
            first = slowly(one)
            ready = after([first])
            (held,) = hold([two], ready)  # nothing else ties the two halves together
            second = slowly(held)
            return tf.stack([ready, after([second]), tf.cast(first + second, tf.float64)])

        begin = time.monotonic()
        first, second, _ = graph(tf.constant(1.0), tf.constant(2.0)).numpy().tolist()
        offset = clock_offset()
        return [begin, first + offset, second + offset, time.monotonic()]

    with start(work, framework="tensorflow", workers=1) as run:
        begin, first, second, end = run.wait(60).values["worker:0"]
    slack = 1e-3
    assert begin + 0.05 - slack <= first
    assert first + 0.05 - slack <= second <= end + slack


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_worker_is_enough(framework: str) -> None:
    with start("multi_worker_mirrored", framework=framework, workers=1, steps=3) as run:
        assert run.wait(60).result["final_loss"] > 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_replica_applies_every_update_itself_and_none_is_stale(framework: str) -> None:
    _, trace = trained(framework, 2, "digits")
    for task in trace.tasks:
        updates = trace.all(Update, task)
        assert [(u.step, u.read, u.written, u.staleness) for u in updates] == [
            (n, n, n + 1, 0) for n in range(STEPS)
        ]
        where = (
            f"/job:worker/replica:0/task:{task[-1]}/device:CPU:0"
            if framework == "tensorflow"
            else "cpu"
        )
        assert {u.device for u in updates} == {where}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_straggler_computes_longer_and_the_others_wait_for_it_in_the_reduction(
    framework: str,
) -> None:
    with start(
        "multi_worker_mirrored",
        framework=framework,
        workers=2,
        steps=12,
        device_ms=15,
        slow={"worker:1": 4},
    ) as run:
        trace = run.wait(60).trace

    def usual(task: str, what: str) -> float:
        return statistics.median(p.end - p.start for p in trace.all(Phase, task, what=what))

    assert usual("worker:1", "compute") > 2 * usual("worker:0", "compute")
    assert usual("worker:0", "reduce") > 2 * usual("worker:1", "reduce")


def test_ddp_reduces_the_first_bucket_while_it_computes_the_next() -> None:
    with start(
        "multi_worker_mirrored",
        framework="torch",
        workers=2,
        workload="wide",
        sizes={"parameters": 2_500_000},
        steps=4,
    ) as run:
        trace = run.wait(60).trace
    for step in (2, 3):  # DDP arranges its buckets after the first step
        (compute,) = trace.all(Phase, "worker:0", what="compute", step=step)
        reductions = trace.all(Phase, "worker:0", what="reduce", step=step)
        assert len(reductions) > 1
        assert reductions[0].start < compute.end
        assert compute.end == reductions[-1].start


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("workload", ["digits", "digits_cnn"])
def test_a_run_of_the_usual_length_learns_to_read(framework: str, workload: str) -> None:
    with start(
        "multi_worker_mirrored",
        framework=framework,
        workers=4 if workload == "digits" else 2,
        workload=workload,
        steps=200,
    ) as run:
        result = run.wait(100).result
    assert result["test_accuracy"] >= 0.93
    assert (
        result["parameters"]
        == workloads.load(RunSpec(workload=workload)).sketch_in("torch").parameters
    )
    assert len(set(result["parameter_digest"].values())) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_deep_model_halves_its_loss_in_fifty_steps(framework: str) -> None:
    with start("one_device", framework=framework, workload="digits_deep", steps=50) as run:
        result = run.wait(60).result
    assert result["final_loss"] < losses(run.trace)[0] / 2


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_models_start_from_the_shared_weights_and_give_them_back(framework: str) -> None:
    def build(task):
        from importlib import import_module

        models = import_module(f"course_lib.strategies.{framework}.models")
        model = models.build(workloads.load(task.spec), task.spec.seed)
        return digest(models.weights_of(model if framework == "tensorflow" else model.parameters()))

    for name in SMALL:
        spec = {"workload": name, "seed": 4, **SMALL[name]}
        with start(build, framework=framework, workers=1, **spec) as run:
            assert run.wait(60).values["worker:0"] == digest(
                workloads.load(RunSpec(**spec)).initial_weights(4)
            )
