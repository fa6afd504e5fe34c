"""Runs that were killed and resumed, in real processes: they end as if nothing had happened."""

import functools
from pathlib import Path
from typing import Any

import pytest

from course_lib import Run, Workload, start
from course_lib.errors import SpecError, TaskFailed
from course_lib.record.events import Phase
from tests.helpers import losses, until
from tests.own_models import LARGEST

STEPS, EVERY = 16, 6
ADAMW: dict[str, Any] = {"optimizer": "adamw", "schedule": "cosine", "warmup_steps": 3}
GPT: dict[str, Any] = {
    "workload": "tiny_gpt",
    "width": 32,
    "context": 16,
    "global_batch": 16,
    **ADAMW,
}
MORE: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"optimizer": "momentum"},
    "adamw": {**ADAMW, "clip_norm": 0.5},
    "tiny_gpt": GPT,
    "float16": {"precision": "float16", "optimizer": "momentum"},
    "own": {"workload": "own_of_checkpoints", **ADAMW},
}
ROWS = [
    ("torch", "one_device", "adamw", 1),
    ("torch", "multi_worker_mirrored", "sgd", 4),
    ("torch", "multi_worker_mirrored", "adamw", 2),
    ("torch", "multi_worker_mirrored", "tiny_gpt", 4),
    ("torch", "multi_worker_mirrored", "float16", 2),
    ("torch", "multi_worker_mirrored", "own", 2),
    ("torch", "mirrored", "momentum", 2),
    ("torch", "central_storage", "momentum", 3),
    ("torch", "central_storage", "float16", 2),
    ("torch", "fully_sharded", "adamw", 3),
    ("torch", "fully_sharded", "tiny_gpt", 2),
    ("torch", "fully_sharded", "own", 2),
    ("torch", "tensor_parallel", "adamw", 2),
    ("torch", "tensor_parallel", "tiny_gpt", 2),
    ("torch", "pipeline_parallel", "adamw", 2),
    ("torch", "pipeline_parallel", "tiny_gpt", 2),
    ("torch", "pipeline_parallel", "float16", 2),
]


def torch_own() -> Any:
    """With statistics of each replica, random numbers, and a layer that is not trained."""
    from torch import nn

    frozen = nn.Linear(20, 32).requires_grad_(False)
    layers = nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 16), nn.ReLU()
    return nn.Sequential(frozen, *layers, nn.Linear(16, 4))


Workload("own_of_checkpoints", **LARGEST, torch=torch_own)


def fields_of(framework: str, kind: str, workers: int) -> dict[str, Any]:
    return {"framework": framework, "workers": workers, "steps": STEPS, **MORE[kind]}


@functools.cache
def whole(framework: str, strategy: str, kind: str, workers: int) -> Run:
    """A run that nothing disturbs, and that saves nothing."""
    with start(strategy, **fields_of(framework, kind, workers)) as run:
        return run.wait(150)


def killed(strategy: str, after: int, **fields: Any) -> Run:
    """A run that saves, whose first task is killed once it has saved so many steps."""
    run = start(strategy, checkpoint_every=EVERY, device_ms=25, **fields)

    def saved() -> bool:
        return any(each.steps >= after and not each.problem for each in run.checkpoints())

    until(lambda: saved() or run.state not in ("starting", "running"), "a checkpoint", 100)
    run.kill("worker:0")
    with pytest.raises(TaskFailed, match="SIGKILL"):
        run.wait(60)
    return run


@pytest.mark.parametrize(("framework", "strategy", "kind", "workers"), ROWS)
def test_a_run_that_was_killed_and_resumed_ends_with_the_same_bits(
    framework: str, strategy: str, kind: str, workers: int
) -> None:
    fields = fields_of(framework, kind, workers)
    undisturbed = whole(framework, strategy, kind, workers)
    earlier = killed(strategy, EVERY, **fields)
    begun = next(c.steps for c in reversed(earlier.checkpoints()) if not c.problem)
    with start(strategy, resume=earlier.run_dir, **fields) as run:
        result = run.wait(150).result
    assert result["parameter_digest"] == undisturbed.result["parameter_digest"]
    assert result["resumed_from"] == {"step": begun, "run_dir": str(earlier.run_dir)}
    last = f"worker:{workers - 1 if strategy == 'pipeline_parallel' else 0}"
    assert losses(run.trace, last) == losses(undisturbed.trace, last)[begun:]
    accuracy = next(name for name in result if name.startswith("test_"))
    assert result[accuracy] == undisturbed.result[accuracy]


def test_a_finished_run_goes_on_with_more_steps() -> None:
    fields: dict[str, Any] = {"framework": "torch", "workers": 2, "optimizer": "momentum"}
    with start("multi_worker_mirrored", steps=30, **fields) as longer:
        longer.wait(60)
    with start("multi_worker_mirrored", steps=20, checkpoint_every=15, **fields) as run:
        run.wait(60)
    assert [each.steps for each in run.checkpoints()] == [15, 20]
    with start("multi_worker_mirrored", steps=30, resume=run.run_dir, **fields) as more:
        result = more.wait(60).result
    assert result["parameter_digest"] == longer.result["parameter_digest"]
    assert losses(more.trace) == losses(longer.trace)[20:]


def test_a_checkpoint_is_a_phase_of_its_own_on_every_task() -> None:
    with start("fully_sharded", framework="torch", workers=2, steps=8, checkpoint_every=4) as run:
        run.wait(60)
    for task in run.spec.tasks:
        found = [e.step for e in run.trace.all(Phase, task) if e.what == "checkpoint"]
        assert found == [3, 7]


def test_a_resumed_run_that_is_not_alike_is_refused_before_it_starts(tmp_path: Path) -> None:
    with start("one_device", framework="torch", steps=4, checkpoint_every=2) as run:
        run.wait(60)
    with pytest.raises(SpecError, match=r"optimizer='adamw': .* has 'sgd': set the same"):
        start("one_device", framework="torch", steps=9, resume=run.run_dir, optimizer="adamw")
    data = next((run.run_dir / "checkpoints/step-000004/worker-0").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    with start("one_device", framework="torch", steps=9, resume=run.run_dir) as again:
        assert again.wait(60).result["resumed_from"]["step"] == 2
    assert "distcp is damaged" in str(again.plan)
