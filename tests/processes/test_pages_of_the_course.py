"""The strategies of `notebooks/strategies/`: each is equal to one device, or ends in a stated band
over several seeds, with our workloads and one of a learner's own; and what each page claims.
"""

import functools
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from course_lib import TaskFailed, Workload, check_strategy, start
from course_lib.racing import promises
from course_lib.record.events import Metric
from course_lib.strategies import pages
from tests import own_models
from tests.helpers import losses, of_times, undisturbed
from tests.processes.test_model_parallel import bubble

FOLDER = Path(__file__).parents[2] / "notebooks" / "strategies"
WORKLOADS: dict[str, tuple[Any, int]] = {  # the workload, and steps
    "digits": ("digits", 80),
    "tiny_gpt": ("tiny_gpt", 30),
    "mlp": (own_models.mlp, 60),
}
BANDS = {  # of the loss in the end, as a multiple of that of an all-reduce in each step
    "local_sgd.py:local_sgd": (0.9, 1.4),
    "local_sgd_in_tensorflow.py:local_sgd_in_tensorflow": (0.9, 1.4),
    "diloco.py:diloco": (0.25, 1.15),
    "float16_gradients.py:float16_gradients": (0.99, 1.01),
    "top_k.py:top_k": (0.95, 1.5),
    "power_sgd.py:power_sgd": (0.95, 1.1),
    "power_sgd_hook.py:power_sgd_hook": (0.95, 1.1),
    "rate_by_staleness.py:by_staleness": (0.3, 1.15),
}
SEEDS = 5 if os.environ.get("NIGHTLY") else 2
EXACT = ["zero_1", "zero_2", "zero_3", "hybrid_sharding", "recompute"]
PIPELINES = ["gpipe", "one_f_one_b", "interleaved", "zero_bubble"]
MESHES = ["data_tensor", "data_pipeline", "three_d"]
SLICED = ["sequence_parallel", "ring_attention"]


def page(name: str) -> Any:
    return pages.named(f"{FOLDER}/{name if ':' in name else f'{name}.py:{name}'}")


@functools.cache
def loss(name: str, workload: str, **fields: Any) -> float:
    """The loss in the end, averaged over ten batches and all seeds."""
    what, steps = WORKLOADS[workload]
    told = {"workload": what, "steps": steps, "workers": 4, "global_batch": 64} | fields
    strategy = page(name) if "." in name else name
    framework = "tensorflow" if "tensorflow" in name else "torch"
    runs = (
        start(strategy, framework=framework, seed=seed, **told).wait(120) for seed in range(SEEDS)
    )
    return fmean(float(run.digest.losses.means[-1]) for run in runs)


def test_every_page_is_tested() -> None:
    tested = {name.partition(".")[0] for name in BANDS} | {*EXACT, *SLICED, "async_momentum"}
    tested |= {"pipelines", "mesh", "experts"}
    assert {path.stem for path in FOLDER.glob("*.py")} == tested


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_page_is_short_and_names_its_source(path: Path) -> None:
    text = path.read_text()
    assert 20 <= len(text.splitlines()) <= 140
    assert "Source: " in text.split('"""')[1]


def pairs(names: Iterable[str], dear: str) -> list[Any]:
    """All of these pages with all workloads; tiny_gpt on those of `dear` is for the night."""
    cases = []
    for name, workload in itertools.product(names, WORKLOADS):
        late = dear in name and workload == "tiny_gpt"
        cases.append(pytest.param(name, workload, marks=pytest.mark.nightly if late else ()))
    return cases


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "workload"), pairs(BANDS, "tensorflow"))
def test_a_page_that_is_not_exact_ends_in_its_band(name: str, workload: str) -> None:
    low, high = BANDS[name]
    assert low < loss(name, workload) / loss("multi_worker_mirrored", workload) < high


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "workload"), pairs(EXACT, ""))
def test_a_page_that_is_exact_is_so_with_every_workload(name: str, workload: str) -> None:
    findings = check_strategy(page(name), workload=WORKLOADS[workload][0], optimizer="adamw")
    assert findings, findings


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", BANDS)
def test_a_page_that_is_not_exact_keeps_what_it_promises(name: str) -> None:
    assert (findings := check_strategy(page(name))), findings


@pytest.mark.sample(4)
@pytest.mark.parametrize("workload", ["digits_deep", "tiny_gpt", own_models.transformer])
@pytest.mark.parametrize("name", PIPELINES)
def test_every_schedule_of_a_pipeline_is_one_device(name: str, workload: Any) -> None:
    workers = 4 if workload == "digits_deep" else 2  # the others have four parts
    fields: dict[str, Any] = {"workload": workload, "steps": 4, "global_batch": 32}
    same_as_one_device(page(f"pipelines.py:{name}"), workers=workers, accumulate=4, **fields)


@pytest.mark.sample(4)
@pytest.mark.parametrize("workload", ["digits_deep", "tiny_gpt", own_models.transformer])
@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_is_one_device(name: str, workload: Any) -> None:
    workers = 8 if name == "three_d" else 4
    fields: dict[str, Any] = {"workload": workload, "steps": 4, "global_batch": 32}
    same_as_one_device(page(f"mesh.py:{name}"), workers=workers, accumulate=2, **fields)


def test_pieces_of_a_stage_drop_the_same_units() -> None:
    """Else what is whole on each of them would be trained apart."""

    def model() -> Any:
        from torch import nn

        hidden = [nn.Linear(20, 32), nn.Dropout(0.5), nn.Linear(32, 32), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(32, 4), nn.Dropout(0.5))

    drops = Workload("drops", **own_models.LARGEST, torch=model)
    run = start(page("mesh.py:data_tensor"), workload=drops, workers=4, steps=5).wait(60)
    assert len(set(run.result["parameter_digest"].values())) == 1


def test_a_pipeline_deeper_than_its_model_says_so() -> None:
    with pytest.raises(TaskFailed, match="4 stages need as many parts with weights; it has 2"):
        start(page("pipelines.py:gpipe"), workload="digits", workers=4, accumulate=2).wait(60)


@pytest.mark.parametrize("workload", ["tiny_gpt", own_models.numbered])
@pytest.mark.parametrize("name", SLICED)
def test_slices_of_sequences_are_one_device(name: str, workload: Any) -> None:
    fields: dict[str, Any] = {"workload": workload, "steps": 4, "global_batch": 32}
    same_as_one_device(page(name), workers=2, **fields)


@pytest.mark.parametrize(
    ("workload", "why"), [("digits", "tokens"), (own_models.transformer, "ar")]
)
def test_what_has_no_sequences_or_unknown_places_is_refused(workload: Any, why: str) -> None:
    for name in SLICED:
        with pytest.raises(TaskFailed, match=why):
            start(page(name), workload=workload, workers=2, steps=2).wait(60)


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("tokens", [False, True])
def test_experts_are_one_device_as_long_as_no_token_is_dropped(tokens: bool, top: int) -> None:
    experts = page("experts")
    fields: dict[str, Any] = {"workload": mixture(tokens, top), "steps": 6, "global_batch": 32}
    run = same_as_one_device(experts, workers=4, **fields)
    assert dropped(run) == [0] * 24
    run = start(experts, workers=4, **fields | {"workload": mixture(tokens, top, 1.0)}).wait(60)
    chosen = top * 32 // 4 * (8 if tokens else 1)
    assert all(0 < count < chosen for count in dropped(run))


def same_as_one_device(strategy: Any, **fields: Any) -> Any:
    """A run of a strategy in PyTorch that is over, and has the losses and weights of one device."""
    run = start(strategy, framework="torch", **fields).wait(120)
    one = start("one_device", framework="torch", **fields | {"workers": 1}).wait(60)
    assert promises.losses(run) == pytest.approx(promises.losses(one), rel=1e-5)
    weights, theirs = run.files.trained_weights(), one.files.trained_weights()
    assert weights.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_allclose(weights[name], values, atol=1e-5)
    return run


def mixture(tokens: bool, top: int, capacity: float | None = None) -> Any:
    """A workload whose model has a layer of eight experts."""
    layer = page("experts").__globals__["Mixture"]

    def model() -> Any:
        from torch import nn

        experts = layer(32, 32, 8, top, capacity)
        if tokens:
            return nn.Sequential(nn.Embedding(12, 32), experts, nn.Linear(32, 12))
        return nn.Sequential(nn.Linear(20, 32), experts, nn.Linear(32, 4))

    data, loss = (own_models.REPEATED, "next_token") if tokens else (own_models.LARGEST, None)
    how = {"loss": loss} if loss else {}
    return Workload("mixture", **data, torch=model, learning_rate=0.1, **how)


def dropped(run: Any) -> list[int]:
    return [int(metric.value) for metric in run.trace.all(Metric, name="dropped")]


# --- what they claim ---


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "formula", "relative"),
    [("gpipe", 3 / 11, 0.1), ("one_f_one_b", 3 / 11, 0.1), ("interleaved", 3 / 19, 0.4)],
)
def test_a_bubble_is_as_long_as_its_formula_says(
    name: str, formula: float, relative: float
) -> None:
    """Of 4 workers and 8 microbatches: (p-1)/(m+p-1), and of two rounds (p-1)/(2m+p-1). PyTorch's
    interleaved schedule waits longer than that, and still less than the other two.
    """
    longer = itertools.count(4)

    def measured() -> None:
        each_ms = 15 * next(longer)
        fields = {"workers": 4, "accumulate": 8, "device_ms": 32 * each_ms, "steps": 6}
        run = start(page(f"pipelines.py:{name}"), workload="digits_deep", **fields).wait(120)
        with of_times():
            for stage in range(4):
                assert bubble(run.trace, f"worker:{stage}") == pytest.approx(formula, rel=relative)

    undisturbed(measured)


@pytest.mark.alone
def test_zero_bubble_waits_least_and_interleaving_less_than_one_round() -> None:
    def measured() -> None:
        fields = {"workers": 4, "accumulate": 8, "device_ms": 1500, "steps": 6}
        idle = [
            bubble(
                start(page(f"pipelines.py:{n}"), workload="digits_deep", **fields).wait(120).trace,
                "worker:1",
            )
            for n in ("one_f_one_b", "interleaved", "zero_bubble")
        ]
        with of_times():
            assert idle[0] > 1.2 * idle[1] > 1.4 * idle[2]

    undisturbed(measured)


def test_a_bad_placement_sends_three_times_as_much_between_hosts() -> None:
    fields: dict[str, Any] = {"workload": "tiny_gpt", "steps": 10, "global_batch": 32}
    fields |= {"workers": 4, "hosts": 2, "device_ms": 60}
    good, bad = page("mesh.py:data_tensor"), {"worker:1": 1, "worker:2": 0}
    axes = functools.partial(page("mesh.py:mesh"), tensor=2, axes=("tensor", "stages", "data"))
    sent = [
        start(what, **fields, **how).wait(100).result["wire_bytes_per_step"]["host:0"]["sent"]
        for what, how in ((good, {}), (good, {"placement": bad}), (axes, {}))
    ]
    assert min(sent[1:]) > 3 * sent[0]
    assert sent[1] == pytest.approx(sent[2], rel=0.1)


def test_a_slice_of_a_sequence_has_that_part_of_the_activations() -> None:
    kept = []
    for workers in (1, 2, 4):
        fields: dict[str, Any] = {"workload": "tiny_gpt", "steps": 2, "global_batch": 32}
        run = start(page("sequence_parallel"), workers=workers, **fields).wait(60)
        kept.append(run.result["memory"]["worker:0"]["activations"])
    assert kept[0] == pytest.approx(2 * kept[1], rel=0.01) == pytest.approx(4 * kept[2], rel=0.01)


def test_top_k_fails_visibly_without_error_feedback_and_not_with_it() -> None:
    whole = loss("multi_worker_mirrored", "digits")
    assert loss("top_k.py:top_k", "digits") < 1.5 * whole
    assert loss("top_k.py:top_k_forgetful", "digits") > 2.5 * whole


def test_momentum_beside_asynchrony_is_too_much_and_what_is_left_of_it_is_not() -> None:
    rate = {"learning_rate": 0.1}
    whole = loss("multi_worker_mirrored", "digits", optimizer="momentum", **rate)
    assert loss("async_momentum.py:servers", "digits", **rate) < 1.6 * whole
    assert loss("async_momentum.py:servers_twice", "digits", **rate) > 3 * whole


def test_bytes_fall_by_what_the_pages_say() -> None:
    fields: dict[str, Any] = {"workers": 2, "hosts": 2, "workload": "wide", "steps": 48}
    fields |= {"sizes": {"parameters": 300_000}, "framework": "torch", "device_ms": 15}

    def sent(what: Any) -> float:
        return float(
            start(what, **fields).wait(120).result["wire_bytes_per_step"]["worker:0"]["sent"]
        )

    whole = sent("multi_worker_mirrored")
    assert whole / sent(page("local_sgd")) == pytest.approx(8, rel=0.15)
    assert whole / sent(page("float16_gradients.py:float16_gradients")) == pytest.approx(2, rel=0.1)
    assert whole / sent(page("top_k.py:top_k")) == pytest.approx(50, rel=0.2)
    # of rank 4, P and Q of the two matrices, 64 x 4,000 and 4,000 x 10, and a bias of 4,000
    assert whole / sent(page("power_sgd.py:power_sgd")) == pytest.approx(300 / 36.3, rel=0.1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sixteen_bytes_a_parameter_are_divided_as_in_figure_1_of_zero(
    stage: int, workers: int
) -> None:
    """Of Rajbhandari et al., SC 2020: 2 bytes for a value, 2 for its gradient, 12 for AdamW."""
    fields: dict[str, Any] = {"optimizer": "adamw", "precision": "bfloat16", "steps": 3}
    run = start(page(f"zero_{stage}"), workload="digits_deep", workers=workers, **fields).wait(120)
    formula = {1: 4 + 12 / workers, 2: 2 + 14 / workers, 3: 16 / workers}[stage]
    for kinds in run.result["memory"].values():
        state = sum(kinds[kind] for kind in ("parameters", "gradients", "optimizer_state"))
        assert state / run.result["parameters"] == pytest.approx(formula, rel=0.05)


def test_no_worker_of_zero_3_holds_parameters_between_two_steps() -> None:
    run = start(page("zero_3"), workers=4, steps=3, workload="digits_deep").wait(60)
    assert {kinds["parameters"] for kinds in run.result["memory"].values()} == {0}


def test_hybrid_sharding_sends_less_between_hosts_and_keeps_more() -> None:
    fields: dict[str, Any] = {"workers": 4, "hosts": 2, "workload": "wide", "steps": 30}
    fields |= {"sizes": {"parameters": 300_000}, "optimizer": "adamw", "device_ms": 20}
    hybrid, whole = (
        start(page(n), **fields).wait(120).result for n in ("hybrid_sharding", "zero_2")
    )
    across = [its["wire_bytes_per_step"]["host:0"]["sent"] for its in (hybrid, whole)]
    assert across[0] < 0.65 * across[1]
    state = [its["memory"]["worker:0"]["optimizer_state"] for its in (hybrid, whole)]
    assert state[0] == pytest.approx(2 * state[1], rel=0.01)


def test_recomputing_keeps_an_eighth_of_a_transformers_activations_and_changes_no_loss() -> None:
    fields: dict[str, Any] = {
        "workers": 2,
        "workload": "tiny_gpt",
        "steps": 4,
        "framework": "torch",
    }
    kept, dropped = (
        start(what, **fields).wait(120) for what in ("multi_worker_mirrored", page("recompute"))
    )
    bytes_of = [run.result["memory"]["worker:0"]["activations"] for run in (kept, dropped)]
    assert bytes_of[1] < bytes_of[0] / 6
    assert losses(dropped.trace) == pytest.approx(losses(kept.trace), rel=1e-6)
