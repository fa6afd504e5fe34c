"""Losses and metrics that are no mean over examples: every strategy divides by the count of the
whole global batch, as one process does that computes the batch at once.
"""

import functools
from typing import Any

import numpy as np
import pytest

from course_lib import Run, Workload, start
from course_lib.errors import SpecError
from course_lib.record.events import Metric
from course_lib.strategies import catalog
from tests.helpers import examples_of

STEPS, BATCH, RATE, SEED = 4, 16, 0.5, 3
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 3e-6}  # float32 sums in another order
FAR = 1e-3  # how much weights differ at least that were trained by means of means
LENGTH, TOKENS = 10, 12
FRAMEWORKS = ("torch", "tensorflow")

_rng = np.random.default_rng(1)
_tokens = _rng.integers(1, TOKENS, size=(400, LENGTH))
_lengths = _rng.integers(1, LENGTH + 1, size=(400, 1))
_counts = np.arange(LENGTH) < _lengths
_inputs = np.where(_counts, _tokens, 0)
# a token's target is what comes before it in the alphabet; -100 where there is only padding
_targets = np.where(_counts, _tokens - 1, -100)
PADDED: dict[str, Any] = {
    "train": (_inputs[:300], _targets[:300]),
    "test": (_inputs[300:], _targets[300:]),
    "learning_rate": RATE,
}


def torch_tagger() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Embedding(TOKENS, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, TOKENS)
    )


def keras_tagger() -> Any:
    import keras

    layers = keras.layers.Embedding(TOKENS, 8), keras.layers.Dense(16, "relu")
    return keras.Sequential([keras.Input((LENGTH,)), *layers, keras.layers.Dense(TOKENS)])


def torch_loss(logits: Any, targets: Any, pair: bool = True) -> Any:
    from torch.nn.functional import cross_entropy

    counts = targets >= 0
    total = cross_entropy(logits[counts], targets[counts], reduction="sum")
    return (total, counts.sum()) if pair else total / counts.sum()


def keras_loss(logits: Any, targets: Any, pair: bool = True) -> Any:
    import tensorflow as tf

    counts = tf.cast(targets >= 0, tf.float32)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(targets, 0), logits)
    total, count = tf.reduce_sum(each * counts), tf.reduce_sum(counts)
    return (total, count) if pair else total / count


LOSSES = {"torch": torch_loss, "tensorflow": keras_loss}
TAGGERS: dict[str, Any] = {"torch": torch_tagger, "tensorflow": keras_tagger}


@functools.cache
def padded(framework: str, pair: bool = True) -> Workload:
    loss = functools.partial(LOSSES[framework], pair=pair)
    name = f"padded_{framework}_{'pair' if pair else 'mean'}"
    return Workload(name, **PADDED, loss=loss, metric=valid, **{framework: TAGGERS[framework]})


def valid(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """How many tokens are right, of how many that are no padding."""
    return np.sum(outputs.argmax(-1) == targets), np.sum(targets >= 0)


def trained(framework: str, strategy: str, workload: Workload | None = None, **more: Any) -> Run:
    size: dict[str, Any] = {} if strategy == "one_device" else {"workers": 2}
    fields = {"seed": SEED, "steps": STEPS, "global_batch": BATCH, **size, **more}
    if strategy == "tpu":
        fields |= {"emulate": True, "precision": "float32"}
    workload = workload or padded(framework)
    with start(strategy, framework=framework, workload=workload, **fields) as run:
        return run.wait(120)


def weights(run: Run) -> list[np.ndarray]:
    model = run.model()
    if run.spec.framework == "torch":
        return [parameter.detach().numpy() for parameter in model.parameters()]
    return [np.array(weight) for weight in model.trainable_variables]


def same(ours: list[np.ndarray], theirs: list[np.ndarray], **tolerance: Any) -> bool:
    return all(map(functools.partial(np.allclose, **tolerance or CLOSE), ours, theirs))


@functools.cache
def by_hand(framework: str) -> tuple[list[np.ndarray], list[float]]:
    """The weights and losses of a plain script: one process, the whole batch at once, and its
    framework's own optimizer.
    """
    workload, found = padded(framework), list[float]()
    batches = [examples_of(workload, step, SEED, BATCH) for step in range(STEPS)]
    if framework == "torch":
        import torch

        torch.manual_seed(SEED)
        model = torch_tagger()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for batch in batches:
            x, y = map(torch.from_numpy, workload.train.take(batch))
            optimizer.zero_grad()
            loss = torch_loss(model(x), y, pair=False)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return [parameter.detach().numpy() for parameter in model.parameters()], found
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(SEED)
    model = keras_tagger()
    for batch in batches:
        x, y = workload.train.take(batch)
        with tf.GradientTape() as tape:
            loss = keras_loss(model(x, training=True), y, pair=False)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = [tf.convert_to_tensor(each) for each in gradients]
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign_sub(RATE * gradient)
        found.append(float(loss))
    return [np.array(weight) for weight in model.trainable_variables], found


SYNCHRONOUS = [
    (framework, strategy.name)
    for framework in FRAMEWORKS
    for strategy in catalog.STRATEGIES.values()
    if strategy.jobs.get(framework)
    and not strategy.asynchronous
    and strategy.name not in ("backup_workers", "tensor_parallel")
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("framework", "strategy"), SYNCHRONOUS)
def test_gradients_are_divided_by_the_count_of_the_whole_global_batch(
    framework: str, strategy: str
) -> None:
    run = trained(framework, strategy)
    expected, losses = by_hand(framework)
    assert same(weights(run), expected)
    assert run.result["final_loss"] == pytest.approx(losses[-1], rel=1e-5)


@pytest.mark.parametrize(
    ("framework", "strategy", "fields"),
    [
        ("torch", "multi_worker_mirrored", {"accumulate": 4}),
        ("torch", "fully_sharded", {"accumulate": 2}),
        ("torch", "sync_parameter_server", {"accumulate": 2, "ps": 1}),
        ("torch", "central_storage", {"accumulate": 2}),
        ("torch", "pipeline_parallel", {"workers": 2}),
        ("torch", "one_device", {"accumulate": 4}),
        ("torch", "multi_worker_mirrored", {"all_reduce": "tree", "bucket_mb": 0.0005}),
        ("tensorflow", "multi_worker_mirrored", {"accumulate": 4}),
        ("tensorflow", "multi_worker_mirrored", {"all_reduce": "ring", "bucket_mb": 0.0005}),
        ("tensorflow", "mirrored", {"accumulate": 2}),
        ("tensorflow", "sync_parameter_server", {"accumulate": 2, "ps": 1}),
    ],
)
def test_so_are_parts_that_are_accumulated(
    framework: str, strategy: str, fields: dict[str, Any]
) -> None:
    run = trained(framework, strategy, **fields)
    expected, _ = by_hand(framework)
    assert same(weights(run), expected)


@pytest.mark.parametrize(
    ("framework", "strategy"),
    [
        ("torch", "multi_worker_mirrored"),
        ("torch", "sync_parameter_server"),
        ("tensorflow", "multi_worker_mirrored"),
    ],
)
def test_the_loss_scale_of_float16_and_the_count_are_both_divided_by(
    framework: str, strategy: str
) -> None:
    run = trained(framework, strategy, precision="float16", loss_scale=64, workers=2)
    expected, _ = by_hand(framework)
    assert same(weights(run), expected, rtol=0, atol=1e-2)  # 11 significant bits


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_asynchronous_update_is_divided_by_the_count_of_its_own_piece(framework: str) -> None:
    run = trained(framework, "parameter_server", workers=1, ps=1)
    expected, _ = by_hand(framework)
    assert same(weights(run), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_mean_of_means_is_another_gradient_and_the_plan_and_a_warning_say_so(
    framework: str,
) -> None:
    workload = padded(framework, pair=False)
    alone = trained(framework, "one_device", workload)
    expected, _ = by_hand(framework)
    assert same(weights(alone), expected)
    assert "no mean over examples" not in str(alone.plan)
    with pytest.warns(UserWarning, match=r"let it return \(sum, count\)"):
        run = trained(framework, "multi_worker_mirrored", workload)
    assert "no mean over examples" in str(run.plan)
    assert max(np.abs(a - b).max() for a, b in zip(weights(run), expected, strict=True)) > FAR


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_next_token_ignores_the_target_of_minus_100(framework: str) -> None:
    fields: dict[str, Any] = {framework: TAGGERS[framework]}
    ours = Workload(f"ours_{framework}", **PADDED, loss="next_token", **fields)
    run = trained(framework, "multi_worker_mirrored", ours)
    expected, losses = by_hand(framework)
    assert same(weights(run), expected)
    assert run.result["final_loss"] == pytest.approx(losses[-1], rel=1e-5)
    right, count = valid(model_outputs(run), PADDED["test"][1])
    assert run.result["test_accuracy"] == pytest.approx(right / count)


def test_another_target_below_zero_is_refused() -> None:
    wrong = {**PADDED, "train": (_inputs[:300], np.maximum(_targets[:300], -1))}
    workload = Workload("below_zero", **wrong, loss="next_token", torch=torch_tagger)
    with pytest.raises(SpecError, match="from -1 to 10"):
        start("one_device", framework="torch", workload=workload)


def model_outputs(run: Run) -> np.ndarray:
    """What the trained model makes of the test inputs."""
    model, inputs = run.model(), PADDED["test"][0]
    if run.spec.framework == "tensorflow":
        return np.array(model(inputs))
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(inputs)).numpy()


# --- metrics ---


def root_mean_squared_error(outputs: np.ndarray, targets: np.ndarray) -> float:
    return float(np.sqrt(np.mean((outputs - targets) ** 2)))


@pytest.mark.parametrize(
    ("framework", "strategy"),
    [
        ("torch", "one_device"),
        ("torch", "fully_sharded"),
        ("torch", "pipeline_parallel"),
        ("torch", "parameter_server"),
        ("tensorflow", "multi_worker_mirrored"),
        ("tensorflow", "sync_parameter_server"),
    ],
)
def test_a_metric_gets_the_outputs_for_all_test_examples_at_once(
    framework: str, strategy: str
) -> None:
    """The last hundred are far off: the mean of the roots of two parts is another number."""
    x = _rng.normal(size=(1100, 4))
    y = x.sum(1, keepdims=True) + 10 * (np.arange(1100) >= 1000)[:, None]

    def torch_model() -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))

    def keras_model() -> Any:
        import keras

        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    builder = {"torch": torch_model} if framework == "torch" else {"tensorflow": keras_model}
    workload = Workload(
        f"line_{framework}",
        train=(x[:1000], y[:1000]),
        test=(x, y),
        loss="mean_squared_error",
        metric=root_mean_squared_error,
        learning_rate=0.01,
        **builder,
    )
    run = trained(framework, strategy, workload, evaluate_every=2)
    name = "root_mean_squared_error"
    x, y = workload.test.take(slice(None))
    model = run.model()
    if framework == "torch":
        import torch

        expected = root_mean_squared_error(model(torch.from_numpy(x)).detach().numpy(), y)
    else:
        expected = root_mean_squared_error(np.array(model(x)), y)
    assert expected > 2
    assert run.result[f"test_{name}"] == pytest.approx(expected, rel=1e-4)
    measured = [m.value for m in run.trace.all(Metric) if m.name == name]
    assert measured
    if strategy != "parameter_server":  # there other updates may be made meanwhile
        assert measured[-1] == pytest.approx(expected, rel=1e-4)
