"""tiny_gpt under the strategies of both frameworks; FLOPs as frameworks count them; MFU."""

from typing import Any

import numpy as np
import pytest

from course_lib import Run, Workload, start, workloads
from course_lib.errors import SpecError
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import catalog, trial
from course_lib.workloads import tiny_gpt
from tests import own_models
from tests.helpers import losses, losses_of

SMALL: dict[str, Any] = {"workload": "tiny_gpt", "global_batch": 16, "steps": 20, "seed": 1}
SMALL |= {"sizes": {"layers": 2, "heads": 2, "width": 32, "context": 16}}
TOLERANCE = 1e-4  # of a loss: the order of additions differs, and nothing else
ROWS = [
    (framework, strategy.name)
    for framework in ("torch", "tensorflow")
    for strategy in catalog.STRATEGIES.values()
    if strategy.jobs.get(framework) and strategy.max_workers > 1
]


def trained(strategy: str, framework: str, **fields: Any) -> Run:
    if strategy == "tpu":
        fields["emulate"] = True
    with start(strategy, framework=framework, **SMALL | fields) as run:
        return run.wait(120)


@pytest.fixture(scope="module")
def alone() -> dict[str, Run]:
    return {framework: trained("one_device", framework) for framework in ("torch", "tensorflow")}


def test_both_frameworks_train_the_same(alone: dict[str, Run]) -> None:
    torch, tensorflow = alone["torch"], alone["tensorflow"]
    assert losses(torch.trace) == pytest.approx(losses(tensorflow.trace), rel=TOLERANCE)
    assert losses(torch.trace)[-1] < losses(torch.trace)[0]
    bits = [run.result["test_bits_per_character"] for run in (torch, tensorflow)]
    assert bits[0] == pytest.approx(bits[1], rel=TOLERANCE) and bits[0] < np.log2(96)


@pytest.mark.sample(5)
@pytest.mark.parametrize(("framework", "strategy"), ROWS)
def test_strategies_train_it_as_one_device_does_and_show_a_sample(
    framework: str, strategy: str, alone: dict[str, Run]
) -> None:
    if (framework, strategy) == ("tensorflow", "tensor_parallel"):
        with pytest.raises(SpecError, match="in TensorFlow cuts digits, digits_deep and wide only"):
            trained(strategy, framework, workers=2)
        return
    run, one = trained(strategy, framework, workers=2), alone[framework]
    first = min(run.spec.tasks, key=lambda task: (not losses(run.trace, task), task))
    found, expected = losses(run.trace, first), losses(one.trace)
    facts = catalog.find(strategy)
    if facts.asynchronous or "backups" in facts.takes:  # it has other updates, or batches
        found = losses_of(run.trace)
        assert np.mean(found[-3:]) < found[0]
    elif strategy == "tpu":  # it rounds to 8 significant bits, which adds up from step to step
        assert found[:10] == pytest.approx(expected[:10], rel=0.02)
        assert found[-1] < found[0]
    else:
        assert found == pytest.approx(expected, rel=TOLERANCE)
    beginning, written = run.result["sample"].split("»")
    assert beginning == tiny_gpt.decode(workloads.load(run.spec).test.inputs[0])
    assert len(written) == tiny_gpt.WRITTEN
    assert run.result["flops_per_step"] == one.result["flops_per_step"] > 0


def test_two_hundred_steps_bring_it_below_the_stated_bits_per_character() -> None:
    with start("one_device", framework="torch", workload="tiny_gpt", steps=200) as run:
        assert run.wait(150).result["test_bits_per_character"] < 3.4


def test_frameworks_count_as_many_operations_as_the_formula() -> None:
    ours = workloads.load(RunSpec(**{**SMALL, "steps": 1}))
    known = ours.sketch_in("torch")
    same = Workload(
        "same_gpt",
        train=ours.train,
        test=ours.test,
        torch=ours.torch,
        tensorflow=ours.tensorflow,
        loss="next_token",
    )
    for framework in ("torch", "tensorflow"):
        found = trial.sketch(RunSpec(framework=framework, workload=same))
        assert (found.flops, found.parameters) == (known.flops, known.parameters)  # type: ignore[union-attr]
    for model in (own_models.mlp, own_models.convolutions, own_models.transformer):
        torch, keras = (
            trial.sketch(RunSpec(framework=name, workload=model)).flops
            for name in ("torch", "tensorflow")
        )
        assert torch == keras > 0
    mlp = trial.sketch(RunSpec(framework="torch", workload=own_models.mlp))
    assert mlp.flops == 2 * (2 * 20 * 32 + 3 * 32 * 4)


def test_utilization_is_a_share_of_what_a_product_does_here(alone: dict[str, Run]) -> None:
    for run in alone.values():
        result = run.result
        assert 0 < result["mfu"] < 1.2
        assert "GFLOP/s that a float32 matrix product does on" in result["mfu_why"]
    late = trained("one_device", "torch", device_ms=1.0, steps=3).result
    assert late["mfu"] is None and "emulated" in late["mfu_why"]
