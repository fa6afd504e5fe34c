"""Optimizers and learning rates, without a framework: the rules are arithmetic."""

from typing import Any

import numpy as np
import pytest

from course_lib import RunSpec
from course_lib.errors import SpecError
from course_lib.strategies.optimizers import STATE, Optimizer, rates, usual_rate
from tests.helpers import refused, spec_for


def by_the_book(
    optimizer: str, gradients: np.ndarray, start: np.ndarray, rate: np.ndarray, decay: float
) -> np.ndarray:
    """Parameters after these gradients, in float64, written as the papers have it."""
    value, velocity, mean, square = start.astype(np.float64), 0.0, 0.0, 0.0
    for t, (g, r) in enumerate(zip(gradients.astype(np.float64), rate, strict=True), 1):
        if optimizer == "sgd":
            value = value - r * g
        elif optimizer == "momentum":
            velocity = 0.9 * velocity + g
            value = value - r * velocity
        else:
            mean = 0.9 * mean + 0.1 * g
            square = 0.999 * square + 0.001 * g**2
            unbiased = (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
            value = value * (1 - r * decay) - r * unbiased
    return value


@pytest.mark.parametrize("name", STATE)
def test_a_rule_does_what_the_paper_says(name: Any) -> None:
    draw = np.random.default_rng(0)
    start = draw.normal(size=50).astype(np.float32)
    gradients = draw.normal(size=(40, 50)).astype(np.float32)
    spec = RunSpec(optimizer=name, steps=40, warmup_steps=5)
    optimizer, value = Optimizer(spec), start.copy()
    state = [np.zeros_like(value) for _ in range(STATE[name])]
    for step, gradient in enumerate(gradients):
        now = np.float32(optimizer.rates[step]), optimizer.corrections(step + 1)
        changes = optimizer.changes(value, gradient, state, *now)
        value, *state = (a + b for a, b in zip([value, *state], changes, strict=True))
    expected = by_the_book(name, gradients, start, optimizer.rates, 0.01)
    np.testing.assert_allclose(value, expected, rtol=0, atol=5e-6)


def test_a_correction_keeps_its_digits_in_float32() -> None:
    optimizer = Optimizer(RunSpec(optimizer="adamw"))
    first, second = optimizer.corrections(np.float32(1), np.expm1)
    assert float(first) == pytest.approx(0.1, rel=1e-6)
    assert float(second) == pytest.approx(0.001, rel=1e-6)


def test_the_learning_rate_is_constant_without_a_warm_up() -> None:
    assert rates(RunSpec(steps=3, learning_rate=0.5)).tolist() == [0.5, 0.5, 0.5]


def test_the_learning_rate_grows_in_equal_parts() -> None:
    warm = RunSpec(steps=6, learning_rate=0.4, warmup_steps=4)
    np.testing.assert_allclose(rates(warm), [0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_the_usual_learning_rate_suits_the_optimizer() -> None:
    assert usual_rate(RunSpec()) == 0.2  # that of digits
    assert usual_rate(RunSpec(optimizer="momentum")) == pytest.approx(0.02)
    assert usual_rate(RunSpec(optimizer="adamw")) == 0.001
    assert usual_rate(RunSpec(optimizer="adamw", learning_rate=0.3)) == 0.3


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        ("one_device", {"optimizer": "adam"}),
        ("one_device", {"warmup_steps": 201}),
        ("one_device", {"weight_decay": 0.1}),
        ("one_device", {"accumulate": 3, "global_batch": 64}),
        ("multi_worker_mirrored", {"accumulate": 32, "global_batch": 64, "workers": 4}),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(strategy: str, given: dict[str, Any]) -> None:
    refused("optimizers", strategy, **given)


@pytest.mark.parametrize(
    ("strategy", "workers", "share"),
    [("multi_worker_mirrored", 4, 15), ("tensor_parallel", 2, 60), ("backup_workers", 4, 20)],
)
def test_the_parts_of_a_batch_divide_what_is_computed_at_a_time(
    strategy: str, workers: int, share: int
) -> None:
    given = {"framework": "torch", "workers": workers, "global_batch": 60, "workload": "digits"}
    for parts in range(1, 61):
        if share % parts == 0:
            assert spec_for(strategy, accumulate=parts, **given).accumulate == parts
        else:
            with pytest.raises(SpecError, match="accumulate"):
                spec_for(strategy, accumulate=parts, **given)


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "backup_workers", "one_device"])
def test_the_usual_batch_can_be_accumulated(strategy: str) -> None:
    for parts in (2, 3, 4, 50):
        assert spec_for(strategy, framework="torch", accumulate=parts).batch >= parts


def test_an_optimizers_fields_are_in_the_record_of_a_run_where_it_uses_them() -> None:
    assert "loss_scale" not in spec_for("one_device").model_dump()
    assert "loss_scale" in spec_for("one_device", precision="float16").model_dump()
