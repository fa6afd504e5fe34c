"""Runs that were killed, in real processes: started again or resumed, they end as if nothing had
happened.
"""

import functools
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from course_lib import Run, Workload, start
from course_lib.errors import SpecError, TaskFailed
from course_lib.record.checkpoints import MANIFEST
from course_lib.record.events import Lifecycle, Metric, Phase
from tests.helpers import losses, until
from tests.own_models import LARGEST

STEPS, EVERY = 16, 6
ADAMW: dict[str, Any] = {"optimizer": "adamw", "warmup_steps": 3}
GPT: dict[str, Any] = {
    "workload": "tiny_gpt",
    "sizes": {"width": 32, "context": 16},
    "global_batch": 16,
    **ADAMW,
}
MORE: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"optimizer": "momentum"},
    "adamw": ADAMW,
    "buckets": {"all_reduce": "ring", "bucket_mb": 0.005, "accumulate": 2},
    "tiny_gpt": GPT,
    "float16": {"precision": "float16", "optimizer": "momentum"},
    "emulated": {"optimizer": "momentum", "emulate": True},
    "own": {"workload": "own_of_checkpoints", **ADAMW},
    "large": {"workload": "wide", "sizes": {"parameters": 500_000}, "global_batch": 8, **ADAMW},
}
ROWS = [
    ("torch", "one_device", "adamw", 1),
    ("torch", "multi_worker_mirrored", "sgd", 4),
    ("torch", "multi_worker_mirrored", "adamw", 2),
    ("torch", "multi_worker_mirrored", "buckets", 3),
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
    ("tensorflow", "one_device", "adamw", 1),
    ("tensorflow", "mirrored", "own", 2),
    ("tensorflow", "central_storage", "own", 2),
    ("tensorflow", "tpu", "emulated", 2),
    ("tensorflow", "multi_worker_mirrored", "sgd", 3),
    ("tensorflow", "multi_worker_mirrored", "tiny_gpt", 2),
    ("tensorflow", "multi_worker_mirrored", "float16", 2),
    ("tensorflow", "multi_worker_mirrored", "own", 2),
    ("tensorflow", "tensor_parallel", "adamw", 2),
    ("tensorflow", "sync_parameter_server", "own", 2),
]
RESUMED = [
    ("torch", "multi_worker_mirrored", "own", 3),
    ("torch", "fully_sharded", "adamw", 3),
    ("torch", "pipeline_parallel", "adamw", 2),
    ("tensorflow", "multi_worker_mirrored", "own", 2),
    ("tensorflow", "sync_parameter_server", "own", 2),
]
SAVED = [
    ("torch", "multi_worker_mirrored"),
    ("torch", "fully_sharded"),
    ("tensorflow", "multi_worker_mirrored"),
    ("tensorflow", "sync_parameter_server"),
]


def torch_own() -> Any:
    """With statistics of each replica, random numbers, and a layer that is not trained."""
    from torch import nn

    frozen = nn.Linear(20, 32).requires_grad_(False)
    layers = nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 16), nn.ReLU()
    return nn.Sequential(frozen, *layers, nn.Linear(16, 4))


def keras_own() -> Any:
    """The same."""
    import keras
    from keras import layers

    parts = [layers.Dense(32, trainable=False), layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential([*parts, layers.Dropout(0.3), layers.Dense(4)])


Workload("own_of_checkpoints", **LARGEST, torch=torch_own, tensorflow=keras_own)


def fields_of(framework: str, kind: str, workers: int) -> dict[str, Any]:
    return {"framework": framework, "workers": workers, "steps": STEPS, **MORE[kind]}


@functools.cache
def whole(framework: str, strategy: str, kind: str, workers: int) -> Run:
    """A run that nothing disturbs, and that saves nothing."""
    with start(strategy, **fields_of(framework, kind, workers)) as run:
        return run.wait(150)


def same(run: Run, undisturbed: Run, begun: int = 0) -> None:
    """Hold that a run, begun after so many steps, is as one that was not disturbed."""
    result, task = run.result, next(t for t in reversed(run.spec.tasks) if losses(run.trace, t))
    assert result["parameter_digest"] == undisturbed.result["parameter_digest"]
    ours = {m.step: m.value for m in run.trace.all(Metric, task, name="loss")}
    assert [ours[step] for step in range(begun, STEPS)] == losses(undisturbed.trace, task)[begun:]
    accuracy = next(name for name in result if name.startswith("test_"))
    assert result[accuracy] == undisturbed.result[accuracy]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("framework", "strategy", "kind", "workers"), ROWS)
def test_a_run_that_was_killed_and_started_again_ends_with_the_same_bits(
    framework: str, strategy: str, kind: str, workers: int
) -> None:
    fields = fields_of(framework, kind, workers) | {"checkpoint_every": EVERY, "max_restarts": 1}
    with start(strategy, **fields, faults=["kill worker:0 at step 9"]) as run:
        result = run.wait(150).result
    same(run, whole(framework, strategy, kind, workers))
    assert result["restarts"] == 1
    assert result["steps_again"] in (3, 4)  # another worker may have computed step 9 already


@pytest.mark.sample(2)
@pytest.mark.parametrize(("framework", "strategy", "kind", "workers"), RESUMED)
def test_a_run_that_was_killed_and_resumed_ends_with_the_same_bits(
    framework: str, strategy: str, kind: str, workers: int
) -> None:
    fields = fields_of(framework, kind, workers)
    faults = ["kill worker:0 at step 9"]
    earlier = start(strategy, checkpoint_every=EVERY, faults=faults, **fields)
    with pytest.raises(TaskFailed):
        earlier.wait(150)
    with start(strategy, resume=earlier.run_dir, **fields) as run:
        result = run.wait(150).result
    same(run, whole(framework, strategy, kind, workers), EVERY)
    assert result["resumed_from"] == {"step": EVERY, "run_dir": str(earlier.run_dir)}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("framework", "strategy"), SAVED)
def test_kills_in_the_middle_of_saves_lose_no_checkpoint(framework: str, strategy: str) -> None:
    """`LOCKSTEP_KILLS=50` kills as often, one task or all; usually two have to do. The tasks go on
    from the last checkpoint each time, and end with the weights of a run that was not disturbed.
    """
    kills, dice = int(os.environ.get("LOCKSTEP_KILLS", "2")), random.Random(strategy)
    fields = fields_of(framework, "large", 2) | {"steps": 8 * kills + 8}
    torn, steps = 0, 0
    with start(strategy, checkpoint_every=1, max_restarts=kills, **fields) as run:
        for attempt in range(kills):
            tasks, beyond = partial(pids, run, attempt), steps + dice.randrange(3)
            until(lambda t=tasks: len(t()) == len(run.spec.tasks), "all tasks")  # type: ignore[misc]  # mypy infers no type for `t`
            until(partial(being_saved, run, attempt, beyond), "a save", every=0.001)
            time.sleep(dice.uniform(0, 0.03))
            for pid in dice.choice([tasks(), dice.sample(tasks(), 1)]):
                os.kill(pid, signal.SIGKILL)
            until(partial(pids, run, attempt + 1), "the restart", every=0.005)
            found = run.checkpoints()
            steps = max((each.steps for each in found if not each.problem), default=0)
            hit = [e for e in found if e.problem and attempt_of(e.path) == attempt]
            assert all("was not finished" in each.problem for each in hit)
            assert [each.steps for each in hit] in ([], [steps + 1])
            torn += len(hit)
        result = run.wait(300).result
    print(f"{strategy} with {framework}: {kills} kills, {torn} torn saves, none lost before them")
    assert result["restarts"] == kills
    with start(strategy, **fields) as calm:
        assert calm.wait(300).result["parameter_digest"] == result["parameter_digest"]


def pids(run: Run, attempt: int) -> list[int]:
    return [e.pid for e in run.trace.all(Lifecycle, state="starting", attempt=attempt)]


def being_saved(run: Run, attempt: int, beyond: int) -> bool:
    """Whether a task of this attempt is saving the state after more than so many steps."""
    return any(
        attempt_of(path) == attempt and int(path.stem.removeprefix("step-")) > beyond
        for path in run.files.checkpoints.glob("step-*")
        if not any((path / part / MANIFEST).exists() for part in ("worker-0", "chief-0"))
    )


def attempt_of(checkpoint: Path) -> int:
    return int(checkpoint.suffix.removeprefix(".") or 0)


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
    with pytest.raises(SpecError, match=r"optimizer='adamw': .* has 'sgd'"):
        start("one_device", framework="torch", steps=9, resume=run.run_dir, optimizer="adamw")
    data = next((run.run_dir / "checkpoints/step-000004/worker-0").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    with start("one_device", framework="torch", steps=9, resume=run.run_dir) as again:
        assert again.wait(60).result["resumed_from"]["step"] == 2
    assert "distcp is damaged" in str(again.plan)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("framework", "strategy", "name"),
    [
        ("torch", "one_device", "model.1."),
        ("torch", "sync_parameter_server", "model.1."),
        ("tensorflow", "one_device", "(20, 3)"),
        ("tensorflow", "sync_parameter_server", "(20, 3)"),
    ],
)
def test_a_model_with_other_layers_of_as_many_numbers_is_told_in_a_line(
    framework: str, strategy: str, name: str
) -> None:
    def torch_model(first: bool) -> Any:
        from torch import nn

        return nn.Sequential(*[nn.Identity()] * (not first), nn.Linear(20, 4))

    def keras_model(first: bool) -> Any:
        from keras import layers, models

        split = layers.Dense(3, use_bias=False), layers.Dense(8, use_bias=False)
        return models.Sequential([layers.Dense(4)] if first else [*split])

    def taught(first: bool) -> None:
        builders = {"torch": partial(torch_model, first), "tensorflow": partial(keras_model, first)}
        Workload("own_of_other_layers", **LARGEST, **builders)

    fields: dict[str, Any] = {"framework": framework, "workload": "own_of_other_layers"}
    fields |= {} if strategy == "one_device" else {"workers": 2}
    taught(first=True)
    with start(strategy, steps=4, checkpoint_every=2, **fields) as run:
        run.wait(60)
    taught(first=False)
    with pytest.raises(TaskFailed) as caught:
        start(strategy, steps=6, resume=run.run_dir, **fields).wait(60)
    assert "not that of the checkpoint" in caught.value.reason
    assert name in caught.value.reason and "\n" not in caught.value.reason
