"""mirrored and central_storage in PyTorch: copies that stay equal, and one copy that all replicas
read, as the traces and the weights show.
"""

import functools
from typing import Any

import numpy as np
import pytest

from course_lib import Trace, start
from course_lib.record.events import Phase, Update
from tests.helpers import SUM_ORDER, keeping_weights, losses, names_a_killed_worker

NAMES = ("mirrored", "central_storage")
STEPS = 50


@functools.cache
def trained(name: str, workers: int = 2) -> tuple[dict[str, Any], dict[str, Any], Trace, bool]:
    """Summary, what each task returned, and trace of a short run; and whether it left shared memory
    behind.
    """
    with start(name, framework="torch", workers=workers, global_batch=64, steps=STEPS) as run:
        run.wait(100)
        return run.result, run.values, run.trace, (run.run_dir / "meetings").exists()


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_replicas_learn_what_one_device_learns(name: str, workers: int) -> None:
    result, _, trace, _ = trained(name, workers)
    alone, _, alone_trace, _ = trained("one_device", 1)
    np.testing.assert_allclose(losses(trace), losses(alone_trace), **SUM_ORDER)
    assert len(losses(trace)) == STEPS
    assert losses(trace)[-1] < losses(trace)[0] / 2
    assert result["test_accuracy"] == pytest.approx(alone["test_accuracy"], abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_replicas_end_with_the_weights_of_one_device(name: str) -> None:
    ours, alone = with_weights(name, 3), with_weights("one_device", 1)
    for task, weights in ours.items():
        for mine, whole in zip(weights, alone["worker:0"], strict=True):
            np.testing.assert_allclose(mine, whole, **SUM_ORDER, err_msg=task)


@functools.cache
def with_weights(name: str, workers: int) -> dict[str, list[np.ndarray]]:
    """The weights that each task of a short run ended with."""
    role = keeping_weights(f"course_lib.strategies.torch.{name}:worker")
    with start(role, framework="torch", workers=workers, global_batch=96, steps=30) as run:
        return {task: value["weights"] for task, value in run.wait(60).result.items()}


def test_mirrored_every_device_applies_the_update_to_a_copy_of_its_own() -> None:
    result, values, trace, _ = trained("mirrored")
    assert len({value["digest"] for value in values.values()}) == 1
    assert result["variables_on"] == {"worker:0/cpu": 4 * 4810, "worker:1/cpu": 4 * 4810}
    for task in values:
        assert [(u.read, u.written, u.device, u.variables) for u in trace.all(Update, task)] == [
            (n, n + 1, "cpu", "all") for n in range(STEPS)
        ]


@pytest.mark.parametrize("workers", [2, 4])
def test_central_storage_one_process_applies_the_mean_of_all_gradients_to_the_only_copy(
    workers: int,
) -> None:
    result, values, trace, _ = trained("central_storage", workers)
    assert result["update_applied_by"] == ["worker:0/cpu"]
    assert result["variables_on"] == {"worker:0/cpu": 4 * 4810}
    assert [(u.step, u.read, u.written, u.gradients) for u in trace.all(Update)] == [
        (n, n, n + 1, workers) for n in range(STEPS)
    ]
    assert result["staleness"] == {"mean": 0.0, "max": 0, "updates": {"0": STEPS}, "by_worker": {}}
    # what each finds in the shared memory when all is over
    assert len({value["digest"] for value in values.values()}) == 1


def test_central_storage_nobody_computes_before_the_update_of_the_step_before_is_made() -> None:
    _, values, trace, _ = trained("central_storage", 4)
    updates = trace.all(Phase, "worker:0", what="apply")
    for task in values:
        computing = trace.all(Phase, task, what="compute")
        assert len(computing) == len(updates) > 1
        for begun, applied in zip(computing[1:], updates[:-1], strict=True):
            assert begun.step == applied.step + 1
            assert begun.start >= applied.end
    for step, applied in enumerate(updates):
        waits = [wait for wait in trace.all(Phase, what="wait") if wait.step == step]
        assert [wait.task for wait in sorted(waits)] == ["worker:1", "worker:2", "worker:3"]
        assert all(wait.end >= applied.end for wait in waits)


def test_central_storage_the_order_of_arrival_changes_no_bit() -> None:
    with start(
        "central_storage",
        framework="torch",
        workers=2,
        global_batch=64,
        steps=STEPS,
        slow={"worker:0": 1.5},
        device_ms=1,
    ) as run:
        slowed = run.wait(100).result
    assert slowed["parameter_digest"] == trained("central_storage")[0]["parameter_digest"]


def test_what_one_process_writes_into_the_shared_parameters_the_others_read() -> None:
    def work(task):
        import torch.distributed as dist

        from course_lib.strategies.torch import central_storage as page

        dist.init_process_group("gloo")
        build = page.build
        page.build = lambda workload, seed: build(workload, task.index)  # another seed for each
        model, *_ = page.common(task)
        before = float(next(model.parameters())[0, 0])
        page.meet("all")
        if task.index == 1:
            next(model.parameters()).data[0, 0] = 7
        page.meet("worker:1")
        return before, float(next(model.parameters())[0, 0])

    with start(work, framework="torch", workers=3) as run:
        seen = run.wait(60).result
    assert len(set(seen.values())) == 1
    assert seen["worker:0"][1] == 7


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_worker_ends_the_run_with_its_name(name: str) -> None:
    names_a_killed_worker(name)


def test_nothing_is_left_of_the_shared_memory() -> None:
    assert not trained("central_storage")[3]
