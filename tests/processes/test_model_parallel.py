"""Models cut over workers: tensor_parallel, pipeline_parallel and fully_sharded, held to one
device's losses and to their facts by the trace.
"""

import functools
import itertools
import statistics
from typing import Any

import numpy as np
import pytest

from course_lib import Trace, start
from course_lib.errors import SpecError
from course_lib.record.events import Metric, Phase, Update, task_key
from course_lib.strategies import catalog
from course_lib.strategies.facts.peers import FULLY_SHARDED, PIPELINE_PARALLEL, TENSOR_PARALLEL
from tests.helpers import (
    SUM_ORDER,
    keeping_weights,
    names_a_killed_worker,
    of_times,
    spec_for,
    undisturbed,
)

STEPS = 30
UNEVEN = {"workload": "wide", "sizes": "parameters=7585"}  # 101 hidden units, 7,585 parameters
RUNS: list[tuple[str, str, int, dict[str, Any]]] = [
    ("tensor_parallel", "tensorflow", 2, {}),
    ("tensor_parallel", "torch", 2, {}),
    ("tensor_parallel", "torch", 3, UNEVEN),
    ("fully_sharded", "torch", 2, {}),
    ("fully_sharded", "torch", 3, UNEVEN),
    ("pipeline_parallel", "torch", 2, {"accumulate": 4, "pipeline": "gpipe"}),
    ("pipeline_parallel", "torch", 2, {"accumulate": 4, "pipeline": "1f1b"}),
    ("pipeline_parallel", "torch", 3, {"workload": "digits_cnn", "accumulate": 6}),
]
DEEP: list[tuple[str, str, int, dict[str, Any]]] = [
    ("tensor_parallel", "tensorflow", 2, {"workload": "digits_deep"}),
    ("tensor_parallel", "torch", 2, {"workload": "digits_deep"}),
    (
        "pipeline_parallel",
        "torch",
        4,
        {"workload": "digits_deep", "accumulate": 6, "pipeline": "gpipe"},
    ),
    (
        "pipeline_parallel",
        "torch",
        4,
        {"workload": "digits_deep", "accumulate": 6, "pipeline": "1f1b"},
    ),
]
BATCH = 60  # for 2 and 3 workers, for 4 and 6 microbatches


def trained(
    name: str, framework: str, workers: int, options: dict[str, Any]
) -> tuple[dict[str, Any], Trace]:
    """What each task returned, with its weights, and the trace of a short run."""
    return _trained(name, framework, workers, tuple(options.items()))


@functools.cache
def _trained(
    name: str, framework: str, workers: int, options: tuple[tuple[str, Any], ...]
) -> tuple[dict[str, Any], Trace]:
    strategy = catalog.find(name)
    cluster = (
        {"workers": 1, "replicas": workers}
        if framework in strategy.one_process
        else {"workers": workers}
    )
    role = keeping_weights(strategy.programs[framework]["worker"])
    with start(
        role, framework=framework, global_batch=BATCH, steps=STEPS, **cluster, **dict(options)
    ) as run:
        return run.wait(100).result, run.trace


def alone(framework: str, options: dict[str, Any]) -> tuple[dict[str, Any], Trace]:
    """The same on one device."""
    return trained(
        "one_device",
        framework,
        1,
        {key: options[key] for key in ("workload", "sizes") if key in options},
    )


def losses(trace: Trace) -> list[float]:
    return [
        metric.value
        for metric in {metric.step: metric for metric in trace.all(Metric, name="loss")}.values()
    ]


def in_order(values: dict[str, Any]) -> list[str]:
    return sorted(values, key=task_key)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_a_model_of_two_layers_that_is_cut_by_hand_learns_what_one_device_learns(
    replicas: int,
) -> None:
    naive = keeping_weights("course_lib.strategies.tensorflow.tensor_parallel:naive")
    fields: dict[str, Any] = {"global_batch": BATCH, "steps": STEPS, "replicas": replicas}
    fields |= {"learning_rate": 0.2}  # that of the workload
    with start(naive, framework="tensorflow", workers=1, **fields) as run:
        by_hand = losses(run.wait(100).trace)
    np.testing.assert_allclose(by_hand, losses(alone("tensorflow", {})[1]), **SUM_ORDER)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "framework", "workers", "options"), [*RUNS, *DEEP])
def test_a_cut_model_learns_what_one_device_learns(
    name: str, framework: str, workers: int, options: dict[str, Any]
) -> None:
    cut, trace = trained(name, framework, workers, options)
    whole, whole_trace = alone(framework, options)
    assert len(losses(trace)) == STEPS
    np.testing.assert_allclose(losses(trace), losses(whole_trace), **SUM_ORDER)
    together = (
        [w for task in in_order(cut) for w in cut[task]["weights"]]
        if name == "pipeline_parallel"
        else cut["worker:0"]["weights"]
    )
    for ours, theirs in zip(together, whole["worker:0"]["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, **SUM_ORDER)


@pytest.mark.parametrize(("name", "framework", "workers", "options"), RUNS)
def test_each_part_is_updated_where_it_is_and_is_never_stale(
    name: str, framework: str, workers: int, options: dict[str, Any]
) -> None:
    _, trace = trained(name, framework, workers, options)
    word = "stage" if name == "pipeline_parallel" else "shard"
    for part in range(workers):
        updates = trace.all(Update, variables=f"{word} {part}")
        assert [(u.step, u.read, u.written, u.staleness) for u in updates] == [
            (n, n, n + 1, 0) for n in range(STEPS)
        ]
        where = (
            ("worker:0", f"/job:localhost/replica:0/task:0/device:CPU:{part}")
            if framework == "tensorflow"
            else (f"worker:{part}", "cpu")
        )
        assert {(u.task, u.device) for u in updates} == {where}
    assert len(trace.all(Update)) == workers * STEPS


@pytest.mark.parametrize(("name", "framework", "workers", "options"), RUNS)
def test_each_worker_holds_its_part_of_the_parameters(
    name: str, framework: str, workers: int, options: dict[str, Any]
) -> None:
    cut, _ = trained(name, framework, workers, options)
    held = [bytes_ for task in in_order(cut) for bytes_ in cut[task]["variables_on"].values()]
    model = 4 * next(value["parameters"] for value in cut.values() if "parameters" in value)
    assert len(held) == workers
    if name == "pipeline_parallel":  # every layer on exactly one stage
        assert sum(held) == model
        assert held == [sum(4 * w.size for w in cut[task]["weights"]) for task in in_order(cut)]
    # all is cut but the output's bias of 10 numbers, which every worker has; a unit brings 75
    # numbers
    elif name == "tensor_parallel":
        assert sum(held) == model + (workers - 1) * 40
        assert max(held) - min(held) <= 75 * 4
    # parameters are cut along their first dimension, a row of at most 101 numbers more or less for
    # each of four
    else:
        assert sum(held) == model
        assert max(held) <= model / workers + 4 * 101 * 4


def test_a_layer_that_is_cut_twice_needs_one_exchange_of_activations_and_none_of_gradients() -> (
    None
):
    _, trace = trained("tensor_parallel", "torch", 2, {})
    for task in trace.tasks:
        phases = [(p.step, p.what) for p in trace.all(Phase, task)]
        assert phases == [
            (n, what)
            for n in range(STEPS)
            for what in ("read", "compute", "reduce", "compute", "apply")
        ]


def test_fully_sharded_exchanges_each_layer_three_times_in_a_step() -> None:
    """All-gathers forward and backward, and a reduce-scatter; one exchange more tells the loss."""
    _, trace = trained("fully_sharded", "torch", 2, {})
    assert len(trace.tasks) == 2
    for task, step in itertools.product(trace.tasks, range(STEPS)):
        assert len(trace.all(Phase, task, step=step, what="reduce")) == 2 * 3 + 1
        found = [p for p in trace.with_waits() if (p.task, p.step) == (task, step)]
        phases = sorted((p for p in found if p.what != "hidden"), key=lambda p: (p.start, p.end))
        assert all(a.end <= b.start for a, b in itertools.pairwise(phases))


def pipelined(schedule: str, stages: int, microbatches: int, each_ms: float) -> Trace:
    """A short run whose microbatches take `each_ms` on each stage: so long that messages hardly
    count.
    """
    workload = {2: "digits", 3: "digits_cnn", 4: "digits_deep"}[stages]
    fields = {
        "pipeline": schedule,
        "workers": stages,
        "accumulate": microbatches,
        "device_ms": each_ms * stages * microbatches,
        "steps": 6,
        "workload": workload,
    }
    with start("pipeline_parallel", framework="torch", **fields) as run:
        return run.wait(100).trace


def bubble(trace: Trace, task: str) -> float:
    """The share of a step, from the first thing that the first stage computes to the last, in which
    `task` computes nothing.

    That of the best of all steps but the first: what else a busy machine does only ever adds to it.
    """
    shares = []
    for step in range(1, 6):
        first = trace.all(Phase, "worker:0", what="compute", step=step)
        computing = sum(p.end - p.start for p in trace.all(Phase, task, what="compute", step=step))
        shares.append(1 - computing / (first[-1].end - first[0].start))
    return min(shares)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches"),
    [
        ("gpipe", 2, 4),
        ("1f1b", 2, 4),
        ("1f1b", 2, 2),
        ("gpipe", 3, 3),
        ("gpipe", 4, 8),
        ("1f1b", 4, 8),
    ],
)
@pytest.mark.alone
def test_a_stage_is_idle_for_the_share_that_the_formula_says(
    schedule: str, stages: int, microbatches: int
) -> None:
    formula = (stages - 1) / (microbatches + stages - 1)
    longer = itertools.count(1)  # what disturbed a measurement counts less in the next one

    def measured() -> None:
        trace = pipelined(schedule, stages, microbatches, 40.0 * next(longer))
        with of_times():
            for stage in range(stages):
                assert bubble(trace, f"worker:{stage}") == pytest.approx(formula, abs=0.08)

    undisturbed(measured)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches"),
    [("gpipe", 2, 4), ("1f1b", 2, 4), ("1f1b", 3, 6), ("gpipe", 4, 6), ("1f1b", 4, 6)],
)
def test_a_stage_keeps_activations_of_as_many_microbatches_as_its_schedule_says(
    schedule: str, stages: int, microbatches: int
) -> None:
    trace = of_stages(schedule, stages)
    for stage, step in itertools.product(range(stages), range(STEPS)):
        kept = [
            m.value for m in trace.all(Metric, f"worker:{stage}", name="activations", step=step)
        ]
        at_peak = microbatches if schedule == "gpipe" else min(microbatches, stages - stage)
        assert max(kept) == at_peak * kept[0] > 0
        assert len(kept) == 2 * microbatches  # said after each forward and each backward pass
        assert kept[-1] == 0


def of_stages(schedule: str, stages: int) -> Trace:
    """One of the runs above."""
    runs = [
        (name, workers, options)
        for name, _, workers, options in [*RUNS, *DEEP]
        if options.get("pipeline", "1f1b") == schedule
    ]
    options = next(
        options
        for name, workers, options in runs
        if (name, workers) == ("pipeline_parallel", stages)
    )
    return trained("pipeline_parallel", "torch", stages, options)[1]


@pytest.mark.parametrize("stages", [2, 4])
def test_1f1b_keeps_fewer_bytes_of_activations_at_its_peak_than_gpipe(stages: int) -> None:
    peak = {
        schedule: max(m.value for m in of_stages(schedule, stages).all(Metric, name="activations"))
        for schedule in ("gpipe", "1f1b")
    }
    assert peak["1f1b"] < peak["gpipe"]


@pytest.mark.alone
def test_backward_takes_two_thirds_of_the_emulated_time_and_a_slow_stage_more_of_both() -> None:
    forward, backward = slice(0, 2), slice(2, 4)  # 10 and 20 ms on worker:0, at first
    longer = itertools.count(1)

    def measured() -> None:
        fields = {
            "pipeline": "gpipe",
            "accumulate": 2,
            "device_ms": 120 * next(longer),
            "steps": 5,
            "slow": {"worker:1": 3},
        }
        with start("pipeline_parallel", framework="torch", workers=2, **fields) as run:
            trace = run.wait(60).trace

        def usual(task: str, which: slice) -> float:
            return statistics.median(
                p.end - p.start
                for step in range(1, 5)
                for p in trace.all(Phase, task, what="compute", step=step)[which]
            )

        with of_times():
            for task in trace.tasks:
                assert 1.3 < usual(task, backward) / usual(task, forward) < 3
            assert usual("worker:1", forward) > 2 * usual("worker:0", forward)

    undisturbed(measured)


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("tensor_parallel", "tensorflow"),
        *((s.name, "torch") for s in (TENSOR_PARALLEL, PIPELINE_PARALLEL, FULLY_SHARDED)),
    ],
)
def test_two_workers_halve_the_loss_in_fifty_steps(name: str, framework: str) -> None:
    with start(name, framework=framework, workers=2, steps=50) as run:
        result = run.wait(60).result
    found = losses(run.trace)
    assert found[-1] < found[0] / 2
    assert result["final_loss"] == pytest.approx(found[-1])
    assert result["test_accuracy"] > 0.8
    assert result["staleness"]["max"] == 0
    assert len(result["update_applied_by"]) == len(result["variables_on"]) == 2


@pytest.mark.parametrize("name", ["tensor_parallel", "pipeline_parallel", "fully_sharded"])
def test_a_killed_worker_ends_the_run_with_its_name(name: str) -> None:
    names_a_killed_worker(name)


@pytest.mark.parametrize("name", ["tensor_parallel", "pipeline_parallel", "fully_sharded"])
def test_one_worker_is_enough(name: str) -> None:
    with start(name, framework="torch", workers=1, steps=3) as run:
        assert run.wait(60).result["final_loss"] > 0


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        (
            "pipeline_parallel",
            {"workers": 3},
            "workers=3: at most 2",
        ),
        (
            "pipeline_parallel",
            {"workers": 2, "accumulate": 3, "global_batch": 128},
            "accumulate=3: must divide the 128 examples",
        ),
        (
            "pipeline_parallel",
            {"workers": 2, "accumulate": 1},
            "accumulate=1: 1f1b needs a microbatch for each stage, 2 at least",
        ),
        ("pipeline_parallel", {"framework": "tensorflow"}, "framework='tensorflow': "),
        ("fully_sharded", {"framework": "tensorflow"}, "framework='tensorflow': "),
        (
            "tensor_parallel",
            {"workload": "digits_cnn"},
            "workload='digits_cnn': tensor_parallel",
        ),
        (
            "tensor_parallel",
            {"workers": 65},
            "workers=65: at most 64",
        ),
        (
            "tensor_parallel",
            {"workload": "tiny_gpt", "workers": 3},
            "workers=3: must divide the 4",
        ),
        (
            "tensor_parallel",
            {"workload": "tiny_gpt", "framework": "tensorflow"},
            "wide only; framework=",
        ),
        (
            "tensor_parallel",
            {"framework": "tensorflow", "workers": 3},
            "workers=3: must divide the 64",
        ),
        (
            "tensor_parallel",
            {"framework": "tensorflow", "workload": "wide", "sizes": "parameters=7585"},
            "workers=2: must divide the 101 hidden units of wide, such as 101",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused_before_anything_starts(
    name: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(SpecError) as caught:
        spec_for(name, **{"framework": "torch", "workload": "digits", **given})
    assert says in str(caught.value)


# --- by hand ---


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "workers", "options"),
    [
        ("fully_sharded", 2, {}),
        ("fully_sharded", 3, {"optimizer": "adamw", "evaluate_every": 10}),
        ("tensor_parallel", 2, {}),
        ("tensor_parallel", 3, {"optimizer": "momentum"}),
        ("pipeline_parallel", 2, {"accumulate": 4}),
        ("pipeline_parallel", 4, {"workload": "digits_deep", "accumulate": 4}),
    ],
)
def test_the_naive_page_learns_what_the_frameworks_own_learns(
    name: str, workers: int, options: dict[str, Any]
) -> None:
    fields = {"framework": "torch", "workers": workers, "global_batch": BATCH, "steps": STEPS}
    found = []
    for function in ("naive", "worker"):
        role = keeping_weights(f"course_lib.strategies.torch.{name}:{function}")
        with start(role, **fields, **options) as run:
            found.append((run.wait(100).result, run.trace))
    (naive, naive_trace), (own, trace) = found
    np.testing.assert_allclose(losses(naive_trace), losses(trace), **SUM_ORDER)
    for metric in ("final_loss", "test_accuracy"):
        last = f"worker:{workers - 1}"
        assert naive[last][metric] == pytest.approx(own[last][metric], abs=1e-5)
    curves = [of.all(Metric, name="accuracy") for of in (naive_trace, trace)]
    assert [m.value for m in curves[0]] == [m.value for m in curves[1]]
