"""The test accuracy on the way: what is measured, when, by whom, and that it changes nothing
else.
"""

import functools
from typing import Any

import pytest

from course_lib import Trace, start
from course_lib.record.events import Metric, Phase
from course_lib.strategies import catalog

EVERY, STEPS = 10, 30
# one test image more or less: sums in another order may turn one that is on the brink
APART = 1 / 360 + 1e-9
ROWS = [
    (name, framework)
    for name, strategy in catalog.STRATEGIES.items()
    for framework in strategy.programs
    if (name, framework) != ("tpu", "torch")
]
# which gradients an update is made of is another in each run
NO_ORDER = ("parameter_server", "stale_synchronous", "backup_workers")


@functools.cache
def ran(name: str, framework: str, every: int = EVERY) -> tuple[dict[str, Any], Trace]:
    """Summary and trace of a short run; all train on the same batches."""
    fields: dict[str, Any] = {"emulate": True} if name == "tpu" else {}
    fields |= {} if name == "one_device" else {"workers": 2}
    with start(
        name, framework=framework, steps=STEPS, global_batch=128, evaluate_every=every, **fields
    ) as run:
        return run.wait(60).result, run.trace


def readings(trace: Trace) -> list[Metric]:
    return sorted(trace.all(Metric, name="accuracy"), key=lambda m: m.at)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "framework"), ROWS)
def test_accuracy_is_measured_every_so_many_steps_between_the_phases_of_whoever_measures_it(
    name: str, framework: str
) -> None:
    result, trace = ran(name, framework)
    found = readings(trace)
    assert [n // (EVERY * 128) for n in sorted({m.samples for m in found})] == [1, 2, 3]
    assert found[-1].value == pytest.approx(
        result["test_accuracy"], abs=0 if name != "parameter_server" else 0.03
    )
    for m in found:
        assert m.step == m.samples // 128 - 1
        assert not any(p.start < m.at < p.end for p in trace.all(Phase, m.task))


@pytest.mark.parametrize(
    ("name", "framework"), [row for row in ROWS if row[0] not in (*NO_ORDER, "tpu")]
)
def test_every_synchronous_strategy_reads_what_one_device_reads(name: str, framework: str) -> None:
    alone = [m.value for m in readings(ran("one_device", framework)[1])]
    _, trace = ran(name, framework)
    by_step = {m.step: m.value for m in readings(trace)}
    # the chief looks while the workers go on, so it may see later steps
    if (name, framework) == ("sync_parameter_server", "tensorflow"):
        assert min(by_step.values()) >= alone[0] - 0.1
    else:
        assert list(by_step) == [9, 19, 29]
        assert list(by_step.values()) == pytest.approx(alone, abs=APART)


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("multi_worker_mirrored", "tensorflow"),
        ("fully_sharded", "torch"),
        ("sync_parameter_server", "torch"),
    ],
)
def test_a_run_that_is_not_asked_measures_none_and_learns_the_same_to_the_last_bit(
    name: str, framework: str
) -> None:
    asked, asked_trace = ran(name, framework)
    unasked, trace = ran(name, framework, every=0)
    assert not readings(trace)
    assert unasked["parameter_digest"] == asked["parameter_digest"]
    losses = [
        sorted((m.step, m.value) for m in t.all(Metric, name="loss")) for t in (trace, asked_trace)
    ]
    assert losses[0] == losses[1]
