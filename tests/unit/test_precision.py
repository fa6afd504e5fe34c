"""Precision without a framework: the rule of the loss scale, updates that are skipped, what is
refused.
"""

import math
from typing import Any

import pytest

from course_lib import RunSpec
from course_lib.errors import LockstepError
from course_lib.record.events import Metric, Update
from course_lib.strategies.optimizers import GROWS_AFTER, START, LossScale
from tests.helpers import refused, spec_for
from tests.unit.test_steps import toy

FINE, LOST = 1.0, math.inf


def scale_of(loss_scale: Any = "dynamic") -> LossScale:
    return LossScale(RunSpec(precision="float16", loss_scale=loss_scale))


def test_an_overflow_halves_the_scale_and_so_many_good_steps_in_a_row_double_it() -> None:
    scale = scale_of()
    assert (scale.on, scale.value) == (True, START)
    seen = []
    for norm in [LOST, math.nan, *[FINE] * (GROWS_AFTER - 1), LOST, *[FINE] * GROWS_AFTER]:
        scale.seen(norm, zeros=0.0)
        seen.append(scale.value)
    assert seen[:2] == [2**15, 2**14]
    assert set(seen[2 : GROWS_AFTER + 1]) == {2**14}  # one too few to grow
    assert set(seen[GROWS_AFTER + 1 : -1]) == {2**13}
    assert seen[-1] == 2**14


def test_what_is_recorded_is_the_scale_that_was_used_and_zeros_only_of_what_is_used() -> None:
    scale = scale_of()
    assert scale.seen(LOST, 0.3) == {"loss_scale": 2**16, "overflow": True}
    assert scale.seen(FINE, 0.3) == {"loss_scale": 2**15, "overflow": False, "zeros": 0.3}


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_fixed_scale_stays_and_only_float16_has_one(precision: Any) -> None:
    scale = LossScale(RunSpec(precision=precision, loss_scale=256))
    for norm in [LOST, *[FINE] * GROWS_AFTER]:
        scale.seen(norm, 0.0)
    assert (scale.on, scale.value) == ((True, 256) if precision == "float16" else (False, 1))


def test_a_gradient_that_no_smaller_scale_saves_ends_the_run_in_a_line() -> None:
    with pytest.raises(LockstepError, match=r"step 3 .* loss_scale"):
        scale_of(256).check(3)
    scale = scale_of()
    scale.check(3)
    for _ in range(17):
        scale.seen(LOST, 0.0)
    with pytest.raises(LockstepError, match="training diverged: lower learning_rate"):
        scale.check(3)


def test_an_update_that_is_skipped_is_not_in_the_trace_and_counts_for_nobody() -> None:
    step, events = toy(precision="float16")
    norms = [FINE, LOST, FINE]
    while step.begin():
        step.read()
        with step.computing():
            pass
        with step.applying():
            step.finite(norms[step.number], zeros=0.5)
        step.done(loss=1.0)
    updates = [(e.step, e.read, e.written) for e in events if isinstance(e, Update)]
    assert updates == [(0, 0, 1), (2, 1, 2)]
    assert step.updates == 2
    found = {
        name: [e.value for e in events if isinstance(e, Metric) and e.name == name]
        for name in ("loss_scale", "overflow", "zeros")
    }
    assert found == {
        "loss_scale": [2**16, 2**16, 2**15],
        "overflow": [0, 1, 0],
        "zeros": [0.5, 0.5],
    }


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        ("one_device", {"precision": "float8"}),
        ("one_device", {"loss_scale": 2}),
        ("one_device", {"precision": "float16", "loss_scale": 0}),
        ("tpu", {"precision": "float16", "emulate": True}),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(strategy: str, given: dict[str, Any]) -> None:
    refused("precision", strategy, **given)


def test_bfloat16_is_usual_for_a_tpu_and_float32_elsewhere() -> None:
    assert spec_for("tpu", emulate=True).precision == "bfloat16"
    assert spec_for("tpu", emulate=True, precision="float32").precision == "float32"
    assert spec_for("mirrored").precision == "float32"


def test_the_loss_scale_is_in_the_record_of_a_run_in_float16_only() -> None:
    assert "loss_scale" not in spec_for("one_device").model_dump()
    kept = spec_for("one_device", precision="float16").model_dump()
    assert (kept["precision"], kept["loss_scale"]) == ("float16", "dynamic")
