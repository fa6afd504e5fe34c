"""Runs that go on from the checkpoint of another layout: with other workers, or under another
strategy. Where the global batch stays the same, they end as one device that nothing disturbed.
"""

import functools
from typing import Any

import numpy as np
import pytest

from course_lib import Run, Workload, start
from course_lib.record.events import Metric, Read
from tests.helpers import losses
from tests.own_models import LARGEST

STEPS, LEFT = 18, 8  # it is left in the first epoch, and over in the second
BATCH = 96
SHORT = {"checkpoint_every": LEFT, "steps": LEFT}
KINDS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "momentum"},
    "adamw": {"optimizer": "adamw", "warmup_steps": 3},
}
Place = tuple[str, int]
"""A strategy and its workers."""

ONE: Place = ("one_device", 1)
FOUR: Place = ("multi_worker_mirrored", 4)
PLACES: dict[str, list[Place]] = {
    "torch": [
        ONE,
        ("mirrored", 3),
        ("fully_sharded", 3),
        ("central_storage", 2),
        ("sync_parameter_server", 2),
        ("multi_worker_mirrored", 3),
    ],
    "tensorflow": [
        ONE,
        ("mirrored", 3),
        ("central_storage", 2),
        ("sync_parameter_server", 2),
        ("multi_worker_mirrored", 3),
    ],
}
PAIRS = [
    *((framework, FOUR, place) for framework in PLACES for place in PLACES[framework]),
    *((framework, place, FOUR) for framework in PLACES for place in PLACES[framework]),
    ("torch", FOUR, ("multi_worker_mirrored", 2)),
    ("torch", ("fully_sharded", 3), ("sync_parameter_server", 4)),
    ("torch", ("sync_parameter_server", 2), ("fully_sharded", 2)),
    ("torch", ("fully_sharded", 3), ("central_storage", 3)),
    ("tensorflow", FOUR, ("multi_worker_mirrored", 2)),
    ("tensorflow", ("mirrored", 3), ("sync_parameter_server", 4)),
    ("tensorflow", ("sync_parameter_server", 2), ("central_storage", 3)),
]


def begin(framework: str, place: Place, kind: str = "momentum", **fields: Any) -> Run:
    strategy, workers = place
    usual = {"framework": framework, "global_batch": BATCH, "steps": STEPS, **KINDS.get(kind, {})}
    usual |= {} if strategy == "one_device" else {"workers": workers}
    usual |= {"ps": 2} if "server" in strategy else {}
    return start(strategy, **usual | fields)


@functools.cache
def whole(framework: str, kind: str) -> Run:
    """One device, which nothing disturbs."""
    with begin(framework, ONE, kind) as run:
        return run.wait(100)


@functools.cache
def left(framework: str, place: Place, kind: str) -> Run:
    """A run that is over with its checkpoint."""
    with begin(framework, place, kind, **SHORT) as run:
        return run.wait(100)


def weights(run: Run) -> list[np.ndarray]:
    return list(run.files.trained_weights().values())


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("framework", "there", "here"), PAIRS)
def test_a_run_goes_on_elsewhere_as_one_device_that_nothing_disturbed(
    framework: str, there: Place, here: Place, kind: str
) -> None:
    earlier, undisturbed = left(framework, there, kind), whole(framework, kind)
    with begin(framework, here, kind, resume=earlier.run_dir) as run:
        run.wait(100)
    ours, theirs = (losses(each.trace, each.spec.tasks[0]) for each in (run, undisturbed))
    np.testing.assert_allclose(ours, theirs[LEFT:], rtol=0, atol=2e-6)
    for mine, its in zip(weights(run), weights(undisturbed), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=2e-6)


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "sync_parameter_server"])
@pytest.mark.parametrize("framework", PLACES)
def test_another_global_batch_goes_on_with_the_next_example(framework: str, strategy: str) -> None:
    """Examples of 128 do not divide over three workers, which take 126."""
    fields: dict[str, Any] = {"global_batch": None, "record_examples": True}
    with begin(framework, FOUR, **fields, **SHORT) as earlier:
        earlier.wait(100)
    with begin(framework, (strategy, 3), resume=earlier.run_dir, **fields) as run:
        run.wait(100)
    assert (earlier.spec.batch, run.spec.batch) == (128, 126)
    used = [e for each in (earlier, run) for e in each.trace.all(Read)]
    epochs = [[x for e in used if e.epoch == n for x in e.examples] for n in (0, 1)]
    assert sorted(epochs[0]) == list(range(1437))
    count = LEFT * 128 + (STEPS - LEFT) * 126
    assert len(epochs[1]) == len(set(epochs[1])) == count - 1437
    assert max(m.samples for m in run.trace.all(Metric, name="loss")) == count
    assert run.result["steps_done"] == STEPS


def torch_counting() -> Any:
    """With a buffer that counts the batches, statistics, and random numbers."""
    import torch
    from torch import nn

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("batches", torch.zeros(1))

        def forward(self, values: Any) -> Any:
            if self.training:
                self.batches += 1
            return values

    parts = [nn.Linear(20, 32), nn.BatchNorm1d(32), Counting(), nn.Dropout(0.3)]
    return nn.Sequential(*parts, nn.Linear(32, 4))


def keras_counting() -> Any:
    """The same."""
    import keras

    class Counting(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.batches = self.add_weight(shape=(1,), initializer="zeros", trainable=False)

        def call(self, values: Any, training: bool = False) -> Any:
            if training:
                self.batches.assign_add(keras.ops.ones((1,)))
            return values

    parts = [keras.layers.Dense(32), keras.layers.BatchNormalization(), Counting()]
    return keras.Sequential([*parts, keras.layers.Dropout(0.3), keras.layers.Dense(4)])


Workload("own_counting", **LARGEST, torch=torch_counting, tensorflow=keras_counting)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("framework", "here"),
    [(framework, here) for framework in PLACES for here in PLACES[framework]],
)
def test_what_is_not_trained_goes_on_from_the_first_worker(framework: str, here: Place) -> None:
    fields: dict[str, Any] = {"workload": "own_counting", "global_batch": 48}
    with begin(framework, ("multi_worker_mirrored", 2), **fields, **SHORT) as earlier:
        earlier.wait(100)
    with begin(framework, here, resume=earlier.run_dir, **fields) as run:
        run.wait(100)
    ours, theirs = ({v.shape: v for v in weights(each)} for each in (run, earlier))
    assert (ours[(1,)], theirs[(1,)]) == (STEPS, LEFT)


@pytest.mark.parametrize("framework", PLACES)
def test_the_loss_scale_goes_on(framework: str) -> None:
    with begin(framework, FOUR, "momentum", precision="float16") as undisturbed:
        undisturbed.wait(100)
    with begin(framework, FOUR, "momentum", precision="float16", **SHORT) as earlier:
        earlier.wait(100)
    for place in (ONE, ("sync_parameter_server", 2))[: 2 if framework == "torch" else 1]:
        with begin(framework, place, precision="float16", resume=earlier.run_dir) as run:
            run.wait(100)
        scales = [
            [m.value for m in each.trace.all(Metric, "worker:0", name="loss_scale")]
            for each in (undisturbed, run)
        ]
        if place == ONE:
            assert scales[1] == scales[0][LEFT:]
        assert scales[1][0] == scales[0][LEFT]
