"""Precision in real processes: several workers do what one device does in 16 bits too, both
frameworks do the same, and an update that overflows is skipped by all.
"""

import functools
from typing import Any

import numpy as np
import pytest

from course_lib import Run, Workload, start
from course_lib.errors import SpecError
from course_lib.record.events import Metric, Update
from course_lib.strategies import catalog
from course_lib.strategies.optimizers import START
from tests.helpers import losses, losses_of
from tests.own_models import LARGEST, keras_mlp, torch_mlp

STEPS, BATCH = 8, 48
LOUDER = 50.0
ROUNDED = {"bfloat16": 0.01, "float16": 0.002}
"""By how much of it a loss may differ between two ways to do the same, and from that in float32,
after a few steps. A product is rounded to 8 or 11 significant bits, so by 1 part in 512 or 4096 at
most, and such errors mostly cancel; seen: half of these.
"""
ROWS = [
    (framework, strategy.name)
    for framework in ("torch", "tensorflow")
    for strategy in catalog.STRATEGIES.values()
    if strategy.jobs.get(framework)
    and strategy.name != "one_device"
    and (framework, strategy.name) != ("torch", "mirrored")  # multi_worker_mirrored's program
]
ASYNCHRONOUS = ("parameter_server", "stale_synchronous")
NO_ORDER = (*ASYNCHRONOUS, "backup_workers")
SERVED = (*NO_ORDER, "sync_parameter_server")
NO_HALF = [("tensorflow", name) for name in ("tpu", "parameter_server", "sync_parameter_server")]


def loud(framework: str) -> Any:
    """Cross entropy that is so large that the first loss scales overflow."""

    def loss(outputs: Any, targets: Any) -> Any:
        if framework == "torch":
            from torch.nn.functional import cross_entropy
        else:
            from course_lib.strategies.tensorflow.models import cross_entropy
        return LOUDER * cross_entropy(outputs, targets)

    return loss


LOUD = {
    framework: Workload(
        f"loud_{framework}",
        **LARGEST,
        torch=torch_mlp if framework == "torch" else None,
        tensorflow=keras_mlp if framework == "tensorflow" else None,
        loss=loud(framework),
        learning_rate=0.3 / LOUDER,
    )
    for framework in ("torch", "tensorflow")
}


@functools.cache
def trained(framework: str, strategy: str, precision: str, workload: str, **more: Any) -> Run:
    fields = {"global_batch": BATCH, "steps": STEPS, "precision": precision, **more}
    if strategy != "one_device":
        fields["workers"] = 2
    if strategy == "tpu":
        fields["emulate"] = True
    given = LOUD[framework] if workload == "loud" else workload
    with start(strategy, framework=framework, workload=given, **fields) as run:
        return run.wait(150)


def curve(run: Run) -> list[float]:
    """The mean loss of each step, as the first task has it that knows it."""
    return next(found for task in run.spec.tasks if (found := losses(run.trace, task)))


def noted(run: Run, name: str, task: str = "worker:0") -> list[float]:
    return [metric.value for metric in run.trace.all(Metric, task, name=name)]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("framework", "strategy", "precision"),
    [
        (*row, precision)
        for row in ROWS
        for precision in ROUNDED
        if row[1] not in NO_ORDER and not (row in NO_HALF and precision == "float16")
    ],
)
def test_several_workers_do_what_one_device_does_and_follow_float32(
    framework: str, strategy: str, precision: str
) -> None:
    exact, alone = (
        curve(trained(framework, "one_device", p, "digits")) for p in ("float32", precision)
    )
    together = curve(trained(framework, strategy, precision, "digits"))
    assert together == pytest.approx(alone, rel=ROUNDED[precision])
    assert together == pytest.approx(exact, rel=ROUNDED[precision])
    assert together != pytest.approx(exact, rel=1e-6)  # it did round


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("workload", ["digits", "tiny_gpt"])
def test_both_frameworks_do_the_same(precision: str, workload: str) -> None:
    small = {"sizes": "layers=1,heads=2,width=32,context=16"} if workload == "tiny_gpt" else {}
    found = [
        curve(trained(f, "one_device", precision, workload, **small))
        for f in ("torch", "tensorflow")
    ]
    assert found[0] == pytest.approx(found[1], rel=ROUNDED[precision])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("framework", "strategy"),
    [
        *(("torch", name) for name in ("one_device", "multi_worker_mirrored", "central_storage")),
        *(("torch", name) for name in ("tensor_parallel", "pipeline_parallel", "fully_sharded")),
        *(("tensorflow", name) for name in ("mirrored", "multi_worker_mirrored")),
        ("tensorflow", "central_storage"),
    ],
)
def test_all_skip_the_updates_that_overflow_together(framework: str, strategy: str) -> None:
    how: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 0.02}
    parts = {} if strategy == "pipeline_parallel" else {"accumulate": 2}
    run = trained(framework, strategy, "float16", "loud", steps=20, **how, **parts)
    lost, scales = noted(run, "overflow"), noted(run, "loss_scale")
    assert lost[0] and not any(lost[10:])
    assert scales == [START / 2 ** sum(lost[:step]) for step in range(20)]
    for task in run.spec.tasks:
        assert noted(run, "overflow", task) in (lost, [])
    kept = [step for step in range(20) if not lost[step]]
    updates = {(u.step, u.read, u.written) for u in run.trace.all(Update)}
    assert updates == {(step, n, n + 1) for n, step in enumerate(kept)}
    exact = trained(framework, "one_device", "float32", "loud", steps=20, **how)
    assert curve(run)[0] == pytest.approx(curve(exact)[0], rel=ROUNDED["float16"])
    assert curve(run)[-1] < 0.8 * curve(run)[0]


@pytest.mark.parametrize("strategy", SERVED)
def test_a_worker_drops_a_gradient_that_overflows_and_computes_it_again(strategy: str) -> None:
    run = trained("torch", strategy, "float16", "loud", steps=30)
    lost = [sum(noted(run, "overflow", f"worker:{k}")) for k in range(2)]
    assert sum(lost) >= 1
    assert run.result["dropped_gradients"] == sum(lost) or strategy == "backup_workers"
    updates = sorted(u.written for u in run.trace.all(Update))
    each = 2 if strategy in ASYNCHRONOUS else 1
    assert updates == list(range(1, 30 * each + 1))
    # of all workers: one of them is not told of steps that went on without it
    means = losses_of(run.trace)
    assert np.mean(means[-5:]) < 0.8 * means[0]
    if strategy == "sync_parameter_server":
        exact = trained("torch", "one_device", "float32", "loud", steps=30)
        assert curve(run) == pytest.approx(curve(exact), rel=5 * ROUNDED["float16"])


def test_tensorflow_skips_with_all_devices_of_a_model_that_is_cut() -> None:
    run = trained("tensorflow", "tensor_parallel", "float16", "digits", loss_scale=2.0**32)
    assert noted(run, "overflow") == [1] * STEPS
    assert not run.trace.all(Update)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_without_a_loss_scale_small_gradients_become_zeros(framework: str) -> None:
    scaled, small = (
        trained(framework, "one_device", "float16", "digits", loss_scale=scale)
        for scale in ("dynamic", 2.0**-18)
    )
    assert np.mean(noted(small, "zeros")) > 1.5 * np.mean(noted(scaled, "zeros"))


def recurrent() -> Any:
    """The last output of an LSTM."""
    from torch import nn

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(20, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, inputs: Any) -> Any:
            return self.out(self.lstm(inputs[:, None])[0][:, -1])

    return Last()


def test_what_a_layer_cannot_do_in_float16_is_said_before_the_start() -> None:
    """PyTorch 2.13 has no LSTM in float16 for most CPUs."""
    mine = Workload("recurrent", **LARGEST, torch=recurrent)
    try:
        with start("one_device", workload=mine, precision="float16", steps=2) as run:
            run.wait(60)
    except SpecError as error:
        assert (
            "its model cannot take the inputs of two examples, of shape (2, 20): RuntimeError"
            in str(error)
        )
        assert "\n" not in str(error)
