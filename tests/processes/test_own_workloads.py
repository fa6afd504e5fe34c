"""A learner's own models and data under every strategy."""

import copy
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course_lib import Run, Workload, hardware, race, start, workloads
from course_lib.errors import SpecError, TaskFailed
from course_lib.record.events import Lifecycle
from course_lib.strategies import catalog
from course_lib.workloads.layers import digest
from tests import own_models
from tests.helpers import compares_times, losses, of_times, planned, until

MODELS = ("mlp", "convolutions", "transformer", "tied")
STEPS = 30
TOLERANCE = 1e-4  # of a loss: the order of additions differs, and nothing else
BFLOAT16 = 0.02  # a tpu rounds what it multiplies to 8 significant bits
REFUSED = {
    ("torch", "convolutions", "tensor_parallel"): "model has no two",
    ("torch", "tied", "tensor_parallel"): "has no two Linear",
    ("torch", "tied", "pipeline_parallel"): "no torch.nn.Sequential",
} | {
    (
        "tensorflow",
        model,
        "tensor_parallel",
    ): "only; framework=.torch"
    for model in MODELS
}
ROWS = [
    (framework, model, strategy.name)
    for framework in ("torch", "tensorflow")
    for model in MODELS
    for strategy in catalog.STRATEGIES.values()
    if strategy.jobs.get(framework)
]


def trained(model: str, strategy: str, framework: str) -> Run:
    fields: dict[str, Any] = {"workload": getattr(own_models, model), "seed": 1}
    if strategy == "tpu":
        fields |= {"emulate": True, "workers": 2}  # XLA compiles each replica for itself
    if catalog.find(strategy).asynchronous:  # four updates a step, one by each worker
        fields["learning_rate"] = fields["workload"].learning_rate / 4
    with start(strategy, framework=framework, steps=STEPS, **fields) as run:
        return run.wait(120)


def curve(run: Run) -> list[float]:
    """The mean loss of each step over the workers that recorded it."""
    first = min(run.spec.tasks, key=lambda task: (not losses(run.trace, task), task))
    return losses(run.trace, first)


def in_its_order(model: Any, strategy: str) -> Any:
    """A PyTorch model with its weights in the order in which a strategy holds them: where attention
    is cut, those of each head lie together.
    """
    from course_lib.strategies.torch.tensor_parallel import HEADS, Heads, plan_of

    if strategy != "tensor_parallel":
        return model
    model = copy.deepcopy(model)
    for name in [name for name, how in plan_of(model, {}).items() if how == HEADS]:
        model.set_submodule(name, Heads(model.get_submodule(name)))
    return model


def check_model(run: Run) -> None:
    """The trained model comes back: its weights are those that the run ended with, to the last bit,
    and its buffers make it as good on the test examples.
    """
    model, framework = run.model(), run.spec.framework
    models = importlib.import_module(f"course_lib.strategies.{framework}.models")
    if run.spec.strategy != "pipeline_parallel":  # whose stages have digests of their own
        weights = model
        if framework == "torch":
            weights = in_its_order(model, run.spec.strategy).parameters()
        assert digest(models.weights_of(weights)) in run.result["parameter_digest"].values()
    measured = workloads.load(run.spec).measure(lambda x: models.outputs_of(model, x))
    assert measured == pytest.approx(run.result["test_accuracy"], abs=0.015)  # one of 100


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, str], Run]:
    """Each model on one device, by framework and model."""
    pairs = {(framework, model) for framework, model, _ in ROWS}
    return {pair: trained(pair[1], "one_device", pair[0]) for pair in sorted(pairs)}


@pytest.mark.sample(5)
@pytest.mark.parametrize(("framework", "model", "strategy"), ROWS)
def test_every_strategy_trains_own_models_as_one_device_does(
    framework: str, model: str, strategy: str, alone: dict[tuple[str, str], Run]
) -> None:
    if why := REFUSED.get((framework, model, strategy)):
        with pytest.raises(SpecError, match=why) as caught:
            trained(model, strategy, framework)
        assert "\n" not in str(caught.value)
        return
    one = alone[framework, model]
    if strategy == "one_device":
        return check_model(one)
    run = trained(model, strategy, framework)
    check_model(run)
    assert run.result["parameters"] == one.result["parameters"]
    facts = catalog.find(strategy)
    if facts.asynchronous or strategy in ("backup_workers", "sync_parameter_server"):
        # other batches, or another order; a worker may record its first loss late
        assert np.mean(curve(run)[-5:]) < 0.95 * curve(one)[0]
    elif strategy == "tpu":  # its rounding adds up from step to step
        assert curve(run)[:10] == pytest.approx(curve(one)[:10], rel=BFLOAT16)
        assert np.mean(curve(run)[-5:]) < 0.95 * curve(run)[0]
    else:
        assert curve(run) == pytest.approx(curve(one), rel=TOLERANCE)
        assert run.result["test_accuracy"] == pytest.approx(one.result["test_accuracy"], abs=0.01)


BUILDERS: dict[str, tuple[Any, str]] = {
    "raises": (lambda: 1 / 0, "torch builder .*ZeroDivisionError"),
    "returns_a_number": (lambda: 3, "an int, no torch.nn.Module"),
    "has_other_inputs": (
        lambda: __import__("torch").nn.Linear(21, 4),
        r"shape \(2, 20\): RuntimeError",
    ),
    "has_too_few_classes": (
        lambda: __import__("torch").nn.Linear(20, 2),
        "its train targets are from 0 to 3, and its model has 2 outputs: make one for each class",
    ),
    "has_nothing_to_train": (
        lambda: __import__("torch").nn.ReLU(),
        "no parameters to train",
    ),
    "leaves": (lambda: sys.exit(3), r"it called sys.exit\(3\)"),
    "returns_more_than_outputs": (
        lambda: __import__("torch").nn.LSTM(20, 4),
        "tuple of arrays: .*loss and metric",
    ),
}


def cannot_be_trained(name: str, framework: str, builder: Any, said: str) -> None:
    workload = Workload(name, **own_models.LARGEST, **{framework: builder})
    with pytest.raises(SpecError, match=f"workload='{name}': .*{said}") as caught:
        start("multi_worker_mirrored", framework=framework, workload=workload)
    assert "\n" not in str(caught.value)
    assert Run.going() == []


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_that_cannot_be_trained_is_named_in_one_line_and_nothing_starts(name: str) -> None:
    cannot_be_trained(name, "torch", *BUILDERS[name])


KERAS_BUILDERS: dict[str, tuple[Any, str]] = {
    "fails": (lambda: 1 / 0, "tensorflow builder .*ZeroDivisionError"),
    "is_a_layer": (
        lambda: __import__("keras").layers.Dense(4),
        "a Dense, no keras.Model",
    ),
    "takes_other_inputs": (
        lambda: __import__("keras").Sequential(
            [__import__("keras").Input((21,)), __import__("keras").layers.Dense(4)]
        ),
        r"shape \(2, 20\): ValueError",
    ),
    "has_two_classes": (
        lambda: __import__("keras").Sequential([__import__("keras").layers.Dense(2)]),
        "its train targets are from 0 to 3, and its model has 2 outputs: make one for each class",
    ),
    "ends_with_a_softmax": (
        lambda: __import__("keras").Sequential(
            [__import__("keras").layers.Dense(4, activation="softmax")]
        ),
        "like probabilities, .*softmax",
    ),
    "is_frozen": (
        lambda: __import__("keras").Sequential(
            [__import__("keras").layers.Dense(4, trainable=False)]
        ),
        "no parameters to train",
    ),
}


@pytest.mark.parametrize("name", KERAS_BUILDERS)
def test_a_keras_model_that_cannot_be_trained_is_named_in_one_line(name: str) -> None:
    cannot_be_trained(name, "tensorflow", *KERAS_BUILDERS[name])


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage", "sync_parameter_server"])
def test_a_run_of_a_keras_model_with_dropout_and_batch_normalisation_can_be_repeated(
    strategy: str,
) -> None:
    def builder() -> Any:
        import keras
        from keras import layers

        parts = [layers.Dense(32), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.3)]
        return keras.Sequential([*parts, layers.Dense(4)])

    noisy = Workload("noisy", **own_models.LARGEST, tensorflow=builder, learning_rate=0.3)
    fields: dict[str, Any] = {"framework": "tensorflow", "workers": 2, "steps": STEPS}
    with start(strategy, workload=noisy, **fields) as run:
        first = run.wait(120).result
    with start(strategy, workload=noisy, **fields) as run:
        second = run.wait(120).result
    assert any("BatchNormalization(synchronized=True)" in why.why for why in run.plan.reasons)
    assert first["final_loss"] == second["final_loss"]
    assert first["test_accuracy"] == second["test_accuracy"] > 0.6
    check_model(run)


def test_what_does_not_fit_the_loss_or_the_test_data_is_said_before_the_training() -> None:
    from torch import nn

    x, y = own_models.LARGEST["train"]

    def builder() -> Any:
        return nn.Linear(20, 4)

    for fields, said in (
        ({"torch": nn.Linear(20, 4)}, "torch is a model: give a function"),
        (
            {"train": (np.zeros((8, 20), np.uint8), y[:8])},
            r"of shape \(2, 20\), whole numbers \(.* x.astype\(\"float32\"\)\): RuntimeError",
        ),
        (
            {"torch": lambda: nn.Sequential(nn.Linear(20, 4), nn.Softmax(1))},
            "its outputs look like probabilities, and cross_entropy wants logits: leave the",
        ),
        ({"loss": "mean_squared_error"}, r"the shape \(2, 4\), their targets \(2,\); both must"),
        ({"train": (x, np.eye(4)[y])}, "cross_entropy wants a class for each row"),
        ({"loss": lambda outputs, targets: None}, "its loss returns nothing, neither one number"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, r"its loss returns \(2,\), neither one"),
        ({"test": (x[:, :10], y)}, r"cannot take test inputs of shape \(32, 10\)"),
    ):
        given: dict[str, Any] = {**own_models.LARGEST, "torch": builder, **fields}
        with pytest.raises(SpecError, match=said) as caught:
            start("mirrored", framework="torch", workload=Workload("wrong", **given))
        assert "\n" not in str(caught.value)


@compares_times()
def test_a_fast_worker_waits_for_a_slow_one_with_batch_normalisation_too() -> None:
    """Its statistics are each replica's own: nothing is exchanged before the backward pass."""

    def builder() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    normed = Workload("normed", **own_models.LARGEST, torch=builder)
    fields: dict[str, Any] = {"workers": 2, "steps": 30, "device_ms": 20, "slow": {"worker:1": 3}}
    run = start("multi_worker_mirrored", workload=normed, **fields).wait(120)
    with of_times():
        assert run.result["idle_share"]["worker:0"] > 0.4  # two thirds, but for the first step
    check_model(run)  # with its buffers


def test_what_a_failed_task_printed_is_the_learner_s() -> None:
    def fails(outputs: Any, targets: Any) -> Any:
        if len(targets) > 32:  # not in the trial
            raise ValueError("too many")
        return outputs.square().mean()

    model = Workload("failing", **own_models.LARGEST, torch=own_models.torch_mlp, loss=fails)
    with start("multi_worker_mirrored", workload=model, framework="torch", workers=2) as run:
        with pytest.raises(TaskFailed, match="too many"):
            run.wait(60)
        assert "Warning" not in run.log("worker:0")


def test_fully_sharded_keeps_a_part_of_shared_and_of_loose_parameters_too() -> None:
    def builder() -> Any:
        import torch
        from torch import nn

        class Loose(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tied = own_models.torch_tied()
                self.bias = nn.Parameter(torch.zeros(12))

            def forward(self, tokens):  # type: ignore[no-untyped-def]  # sent by value
                return self.tied(tokens) + self.bias

        return Loose()

    loose = Workload("loose", **own_models.REPEATED, torch=builder, loss="next_token")
    run = start("fully_sharded", workload=loose, workers=2, steps=5).wait(60)
    whole = 4 * run.result["parameters"]
    assert set(run.result["variables_on"].values()) == {whole // 2}


def test_other_losses_and_metrics() -> None:
    x = np.random.default_rng(0).normal(size=(300, 3))
    data: dict[str, Any] = {"train": (x, x @ [[1], [2], [3]]), "test": (x, x @ [[1], [2], [3]])}

    def builder() -> Any:
        from torch import nn

        return nn.Linear(3, 1)

    def worst(outputs: np.ndarray, targets: np.ndarray) -> float:
        return float(np.abs(outputs - targets).max())

    def huber(outputs: Any, targets: Any) -> Any:
        from torch import nn

        return nn.functional.huber_loss(outputs, targets)

    squares = Workload("squares", **data, torch=builder, loss="mean_squared_error")
    run = start("multi_worker_mirrored", workload=squares, workers=2, steps=80).wait(60)
    assert run.spec.framework == "torch"  # it has no other model
    assert run.result["test_mean_squared_error"] < 0.01
    functions = Workload("functions", **data, torch=builder, loss=huber, metric=worst)
    run = start("parameter_server", workload=functions, workers=2, steps=80).wait(60)
    assert run.result["test_worst"] < 2


def test_batch_normalisation_is_trained_and_the_plan_says_what_it_sees() -> None:
    def builder() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    normed = Workload("normed", **own_models.LARGEST, torch=builder, learning_rate=0.3)
    run = start("multi_worker_mirrored", workload=normed, workers=2, steps=60).wait(60)
    assert run.result["test_accuracy"] > 0.7
    (reason,) = [reason for reason in run.plan.reasons if reason.what == "model"]
    assert reason.choice == "868 parameters" and "each replica's own share" in reason.why


SIX = {"workers": 3, "global_batch": 6}
PIECES: list[tuple[str, str, dict[str, int], dict[str, int], str]] = [
    ("torch", "one_device", {"global_batch": 1}, {"global_batch": 2}, "shares 1, accumulate 1"),
    ("torch", "multi_worker_mirrored", {"workers": 4}, {"workers": 2}, "shares 4, accumulate 1"),
    ("torch", "mirrored", {"accumulate": 2}, {"accumulate": 1}, "shares 2, accumulate 2"),
    ("torch", "parameter_server", {"workers": 4}, {"workers": 2}, "shares 4, accumulate 1"),
    ("torch", "backup_workers", {**SIX, "accumulate": 3}, SIX, "shares 2, accumulate 3"),
    ("torch", "pipeline_parallel", {"accumulate": 4}, {"accumulate": 2}, ".*accumulate 4"),
    ("tensorflow", "mirrored", {"workers": 4}, {"workers": 2}, "shares 4, accumulate 1"),
    ("tensorflow", "multi_worker_mirrored", {"accumulate": 2}, {}, "shares 2, accumulate 2"),
]


def torch_normed() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


def keras_normed() -> Any:
    from keras import Sequential, layers

    return Sequential([layers.Dense(32), layers.BatchNormalization(), layers.Dense(4)])


one_by_one = Workload(
    "one_by_one", **own_models.LARGEST, torch=torch_normed, tensorflow=keras_normed
)


@pytest.mark.parametrize(("framework", "strategy", "refused", "taken", "pieces"), PIECES)
def test_batch_normalisation_of_pieces_of_one_example_is_refused_with_the_piece_and_the_cure(
    framework: str, strategy: str, refused: dict[str, int], taken: dict[str, int], pieces: str
) -> None:
    """The gate tries the model once, and compares with the pieces of each run."""
    usual = {"workers": 1 if strategy == "one_device" else 2, "global_batch": 4}
    fields: dict[str, Any] = {"framework": framework, "workload": one_by_one, "steps": 2, **usual}
    batch = (usual | refused)["global_batch"]
    said = (
        rf"global_batch={batch}: each piece is one example \({pieces}\), and .*; take {2 * batch}"
    )
    with pytest.raises(SpecError, match=f"{said}, fewer workers, .*LayerNorm") as caught:
        start(strategy, **fields | refused)
    assert "\n" not in str(caught.value) and Run.going() == []
    assert start(strategy, **fields | taken).wait(60).result["final_loss"] > 0


def test_pieces_of_one_example_are_taken_where_the_model_takes_them() -> None:
    """With another norm; with batch normalisation over an image; with statistics that are frozen;
    and where batch normalisation looks at all replicas.
    """

    def layered() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(20, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))

    def convolved() -> Any:
        from torch import nn

        layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(400, 2))

    def frozen() -> Any:
        from keras import Sequential, layers

        return Sequential([layers.BatchNormalization(trainable=False), layers.Dense(4)])

    def together() -> Any:
        from keras import Sequential, layers

        return Sequential([layers.BatchNormalization(synchronized=True), layers.Dense(4)])

    for data, made in (
        (own_models.LARGEST, {"torch": layered}),
        (own_models.BRIGHTER, {"torch": convolved}),
        (own_models.LARGEST, {"tensorflow": frozen}),
        (own_models.LARGEST, {"tensorflow": together}),
    ):
        fields: dict[str, Any] = {"workers": 2, "global_batch": 2, "steps": 2}
        taken = Workload("taken", **data, **made)  # type: ignore[arg-type]
        assert start("mirrored", workload=taken, **fields).wait(60).result["final_loss"] > 0


def test_a_pipeline_s_batch_normalisation_sees_its_microbatches_and_nothing_else() -> None:
    def builder() -> Any:
        from torch import nn

        first = nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU()
        return nn.Sequential(*first, nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))

    normed = Workload("normed", **own_models.LARGEST, torch=builder, learning_rate=0.3)
    fields: dict[str, Any] = {"framework": "torch", "workload": normed, "steps": 20}
    alone = start("one_device", accumulate=4, **fields).wait(60)
    run = start("pipeline_parallel", workers=2, accumulate=4, **fields).wait(60)
    expected, found = alone.model().state_dict(), run.model().state_dict()
    assert found["4.num_batches_tracked"] == 20 * 4
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), atol=1e-4, err_msg=name)
    assert run.result["test_accuracy"] == alone.result["test_accuracy"] > 0.7
    (reason,) = [reason for reason in run.plan.reasons if reason.what == "model"]
    assert "of each microbatch" in reason.why


def test_frozen_weights_stay_as_they_are() -> None:
    from course_lib.strategies.torch.models import build

    def builder() -> Any:
        from torch import nn

        first = nn.Linear(20, 32).requires_grad_(False)
        return nn.Sequential(first, nn.ReLU(), nn.Linear(32, 4))

    frozen = Workload("frozen", **own_models.LARGEST, torch=builder)
    for strategy in ("multi_worker_mirrored", "fully_sharded", "parameter_server"):
        run = start(strategy, workload=frozen, workers=2, steps=20).wait(60)
        assert run.result["parameters"] == 132  # of the second layer
        before = build(frozen, run.spec.seed).state_dict()
        same = {n: bool((before[n] == each).all()) for n, each in run.model().state_dict().items()}
        assert same == {"0.weight": True, "0.bias": True, "2.weight": False, "2.bias": False}


@pytest.mark.parametrize("strategy", ["mirrored", "parameter_server"])
def test_frozen_keras_weights_stay_as_they_were_whatever_the_optimizer(strategy: str) -> None:
    def builder() -> Any:
        import keras

        layers = [keras.layers.Dense(32, "relu", trainable=False), keras.layers.Dense(4)]
        return keras.Sequential([keras.Input([20]), *layers])

    frozen = Workload("frozen", **own_models.LARGEST, tensorflow=builder)
    run = start(strategy, workload=frozen, workers=2, steps=5, optimizer="adamw").wait(60)
    assert run.result["parameters"] == 132  # of the second layer
    models = importlib.import_module("course_lib.strategies.tensorflow.models")
    before, after = models.build(frozen, run.spec.seed).get_weights(), run.model().get_weights()
    assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [True] * 2 + [
        False
    ] * 2


def test_synchronized_batch_normalisation_makes_two_replicas_equal_one_device() -> None:
    def in_keras() -> Any:
        import keras
        from keras import layers

        norm = layers.BatchNormalization(synchronized=True)
        return keras.Sequential([layers.Dense(32), norm, layers.ReLU(), layers.Dense(4)])

    def in_torch() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(20, 32), nn.SyncBatchNorm(32), nn.Linear(32, 4))

    both = {"torch": in_torch, "tensorflow": in_keras}
    synced = Workload("synced", **own_models.LARGEST, **both, learning_rate=0.3)
    fields: dict[str, Any] = {"framework": "tensorflow", "workload": synced}
    alone = start("one_device", **fields, steps=10).wait(60)
    two = start("mirrored", **fields, steps=10, workers=2).wait(60)
    assert curve(two) == pytest.approx(curve(alone), rel=TOLERANCE)
    assert "means and variances" in str(two.plan)
    servers = planned("parameter_server", **fields)
    assert "own share" in str(servers)
    if not hardware.probe().gpus:
        with pytest.raises(SpecError, match=r"SyncBatchNorm .*GPUs"):
            start("multi_worker_mirrored", framework="torch", workload=synced)


@pytest.mark.skipif(sys.platform != "linux", reason="reads how Linux accounts for memory")
def test_all_tasks_map_the_same_data() -> None:
    """No task has a copy of its own: what memory it has filled itself does not grow with them."""

    def builder() -> Any:
        from torch import nn

        return nn.Linear(1000, 2)

    def filled(examples: int) -> int:
        """kB of memory in a task that are not those of a file."""
        x = np.ones((examples, 1000), np.float32)
        data = x, np.zeros(examples, int)
        workload = Workload("large", train=data, test=(x[:2], [0, 1]), torch=builder)
        fields: dict[str, Any] = {"workload": workload, "workers": 2, "steps": 100_000}
        with start("mirrored", framework="torch", **fields) as run:
            until(lambda: len(losses(run.trace)) > 3 * examples / run.spec.batch, "three epochs")
            pids = [e.pid for e in run.trace.all(Lifecycle, state="starting")]
            rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
            return max(int(text.partition("Anonymous:")[2].split()[0]) for text in rollups)

    assert filled(50_000) - filled(500) < 40_000  # the data are 200,000 kB


def test_a_race_and_the_command_line_take_them(tmp_path: Path) -> None:
    def hits(outputs: np.ndarray, targets: np.ndarray) -> int:
        return int(np.sum(outputs.argmax(-1) == targets))

    makes: dict[str, Any] = {"torch": own_models.torch_mlp, "metric": hits, "learning_rate": 0.3}
    workload = Workload("hits_of_mlp", **own_models.LARGEST, **makes)
    fields: dict[str, Any] = {"framework": "torch", "workers": 2, "steps": 40}
    with race("multi_worker_mirrored", "parameter_server", workload=workload, **fields) as raced:
        comparison = raced.wait(120).comparison
    entrants = comparison.entrants
    assert all(figures.loss < 1.3 for figures in entrants.values())
    measured = [run.result["test_hits"] for run in raced.runs.values()]
    assert ["test hits", *(f"{each:.3f}" for each in measured)] in comparison.rows()
    command = [sys.executable, "-m", "course_lib", "run", "fully_sharded", "--framework", "torch"]
    file = Path(own_models.__file__)
    command += ["--workload", f"{file}:mlp", "--steps", "20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    result = json.loads(done.stdout)
    assert (result["workload"], result["parameters"]) == ("mlp", 804)


SETTINGS = """
import os

WIDTH, WEIGHT, MODE = 8, 1.0, os.environ.setdefault("SEEN_BY_IMPORT", "yes")


class Width:
    def __init__(self, width):
        self.width, self.seen = width, os.environ.get("SEEN_BY_IMPORT")


def model():
    from torch import nn

    return nn.Sequential(nn.Linear(20, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))


def loss(outputs, targets):
    from torch.nn import functional

    return WEIGHT * functional.cross_entropy(outputs, targets)


def width(task):
    return Width(WIDTH)
"""


def test_values_set_in_a_module_of_the_learners_own_reach_the_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_settings.py").write_text(SETTINGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SEEN_BY_IMPORT", "")
    monkeypatch.delenv("SEEN_BY_IMPORT")
    settings: Any = importlib.import_module("own_settings")
    made = Workload("by_module", **own_models.LARGEST, torch=settings.model, loss=settings.loss)

    def trained() -> Any:
        with start("one_device", workload=made, framework="torch", steps=1) as run:
            return run.wait(60).result

    before = trained()
    settings.WEIGHT = 5.0
    assert trained()["final_loss"] == pytest.approx(5 * before["final_loss"])
    settings.WIDTH = 64
    assert (before["parameters"], trained()["parameters"]) == (204, 1604)
    monkeypatch.delenv("SEEN_BY_IMPORT")
    with start(settings.width, workers=1) as run:
        value = run.wait(30).values["worker:0"]
    # an object of its class; and the module was imported as well
    assert isinstance(value, settings.Width) and (value.width, value.seen) == (64, "yes")


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_what_was_trained_is_kept_where_the_test_fails(framework: str, strategy: str) -> None:
    def fails(outputs: np.ndarray, targets: np.ndarray) -> float:
        assert len(outputs) < 200, "too many"
        return 1.0

    makes = {"torch": own_models.torch_mlp, "tensorflow": own_models.keras_mlp}[framework]
    fields: dict[str, Any] = {framework: makes, "metric": fails}
    workload = Workload("fails_in_test", **own_models.LARGEST, **fields)
    run = start(strategy, workload=workload, framework=framework, workers=2, steps=20)
    with pytest.raises(TaskFailed, match="too many"):
        run.wait(60)
    weights = (
        [each.detach().numpy() for each in run.model().parameters()]
        if framework == "torch"
        else run.model().get_weights()
    )
    assert max(np.abs(each).max() for each in weights) > 0
    run.stop()
