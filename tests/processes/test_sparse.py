"""Sparse gradients, those of embeddings: every strategy trains as a plain script does with its
framework's own optimizer, and parameter servers in PyTorch send rows, not tables.
"""

import functools
from typing import Any

import numpy as np
import pytest

from course_lib import Run, Workload, hardware, start
from course_lib.errors import SpecError
from tests.helpers import examples_of

STEPS, BATCH, SEED = 5, 16, 3
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 3e-6}  # float32 sums in another order
RATES = {"sgd": 0.5, "momentum": 0.1, "adamw": 0.01}
WORDS, LENGTH, WIDTH, CLASSES = 300, 5, 4, 3

_rng = np.random.default_rng(0)
_topics = _rng.integers(0, CLASSES, size=400)
# texts of five words, most of which belong to the text's topic; a word may come twice
_words = CLASSES * _rng.integers(0, WORDS // CLASSES, size=(400, LENGTH)) + _topics[:, None]
_words[:, 0] = _rng.integers(0, WORDS, size=400)
TEXTS: dict[str, Any] = {
    "train": (_words[:300], _topics[:300]),
    "test": (_words[300:], _topics[300:]),
}


def torch_bag(sparse: bool = True) -> Any:
    from torch import nn

    bag = nn.EmbeddingBag(WORDS, WIDTH, sparse=sparse)
    return nn.Sequential(bag, nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def torch_table() -> Any:
    """The same model, whose table is no `nn.EmbeddingBag`: a function looks it up."""
    from torch import nn

    class Table(nn.Module):
        def __init__(self, bag: Any) -> None:
            super().__init__()
            self.weight = bag.weight

        def forward(self, words: Any) -> Any:
            return nn.functional.embedding(words, self.weight, sparse=True).mean(1)

    bag, *others = torch_bag()
    return nn.Sequential(Table(bag), *others)


def keras_bag() -> Any:
    import keras

    layers = keras.layers
    parts = layers.Embedding(WORDS, WIDTH), layers.GlobalAveragePooling1D(), layers.Dense(CLASSES)
    return keras.Sequential([keras.Input((LENGTH,)), *parts])


BAGS: dict[str, Any] = {"torch": torch_bag, "tensorflow": keras_bag}


@functools.cache
def bags(framework: str, sparse: bool = True) -> Workload:
    make = BAGS[framework] if sparse else functools.partial(torch_bag, sparse=False)
    return Workload(f"bags_{framework}{'' if sparse else '_dense'}", **TEXTS, **{framework: make})


def trained(framework: str, strategy: str, workload: Workload | None = None, **more: Any) -> Run:
    size: dict[str, Any] = {} if strategy == "one_device" else {"workers": 2}
    fields = {"seed": SEED, "steps": STEPS, "global_batch": BATCH, **size, **more}
    rate = RATES[more.get("optimizer", "sgd")]
    workload = workload or bags(framework)
    with start(
        strategy, framework=framework, workload=workload, learning_rate=rate, **fields
    ) as run:
        return run.wait(120)


def weights(run: Run) -> list[np.ndarray]:
    model = run.model()
    if run.spec.framework == "torch":
        return [parameter.detach().numpy() for parameter in model.parameters()]
    return [weight.numpy() for weight in model.trainable_variables]


def same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return all(np.allclose(a, b, **CLOSE) for a, b in zip(ours, theirs, strict=True))


@functools.cache
def by_hand(framework: str, optimizer: str = "sgd") -> list[np.ndarray]:
    """The weights of a plain script: one process, the whole batch at once, and its framework's own
    optimizer. PyTorch's AdamW has no sparse form, so there the embedding is dense.
    """
    workload, rate = bags(framework), RATES[optimizer]
    batches = [examples_of(workload, step, SEED, BATCH) for step in range(STEPS)]
    if framework == "torch":
        import torch

        torch.manual_seed(SEED)
        model = torch_bag(sparse=optimizer != "adamw")
        make: dict[str, Any] = {
            "sgd": torch.optim.SGD,
            "momentum": functools.partial(torch.optim.SGD, momentum=0.9),
            "adamw": torch.optim.AdamW,
        }
        rule = make[optimizer](model.parameters(), lr=rate)
        for batch in batches:
            x, y = map(torch.from_numpy, workload.train.take(batch))
            rule.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            rule.step()
        return [parameter.detach().numpy() for parameter in model.parameters()]
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(SEED)
    model, rule = keras_bag(), keras.optimizers.SGD(rate)
    compare = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for batch in batches:
        x, y = workload.train.take(batch)
        with tf.GradientTape() as tape:
            loss = compare(y, model(x, training=True))
        rule.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return [weight.numpy() for weight in model.trainable_variables]


ONE = {"workers": 1, "ps": 1}  # asynchronous training of one worker is that of one device


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("strategy", "fields"),
    [
        ("one_device", {}),
        ("one_device", {"accumulate": 4}),
        ("mirrored", {}),
        ("central_storage", {}),
        ("multi_worker_mirrored", {}),
        ("multi_worker_mirrored", {"overlap": False, "accumulate": 2}),
        ("multi_worker_mirrored", {"all_reduce": "ring", "bucket_mb": 0.0001}),
        ("multi_worker_mirrored", {"optimizer": "momentum"}),
        ("multi_worker_mirrored", {"optimizer": "adamw"}),
        ("sync_parameter_server", {"ps": 2}),
        ("sync_parameter_server", {"ps": 1, "accumulate": 2}),
        ("sync_parameter_server", {"ps": 3, "optimizer": "momentum"}),
        ("sync_parameter_server", {"ps": 2, "optimizer": "adamw"}),
        ("parameter_server", {**ONE, "ps": 2}),
        ("stale_synchronous", {**ONE, "optimizer": "momentum"}),
        ("backup_workers", {"workers": 2, "backups": 0}),
        ("pipeline_parallel", {}),
        ("tensor_parallel", {}),
    ],
)
def test_weights_are_those_of_a_plain_script(strategy: str, fields: dict[str, Any]) -> None:
    run = trained("torch", strategy, **fields)
    expected = by_hand("torch", fields.get("optimizer", "sgd"))
    assert same(weights(run), expected)


@pytest.mark.parametrize("strategy", ["one_device", "multi_worker_mirrored", "mirrored"])
def test_so_are_those_of_a_table_without_a_module_of_its_own(strategy: str) -> None:
    run = trained("torch", strategy, Workload("table", **TEXTS, torch=torch_table))
    assert same(weights(run), by_hand("torch"))


def test_so_are_those_of_the_naive_page() -> None:
    from course_lib.strategies.torch.multi_worker_mirrored import naive

    fields: dict[str, Any] = {"seed": SEED, "steps": STEPS, "global_batch": BATCH, "workers": 2}
    fields |= {"workload": bags("torch"), "learning_rate": RATES["sgd"], "framework": "torch"}
    with start(naive, **fields) as run:
        assert same(weights(run.wait(120)), by_hand("torch"))


def test_the_loss_scale_of_float16_is_divided_out_of_rows_as_well() -> None:
    fields: dict[str, Any] = {"precision": "float16", "loss_scale": 64}
    for strategy in ("multi_worker_mirrored", "sync_parameter_server"):
        run = trained("torch", strategy, **fields, **({} if strategy[0] == "m" else {"ps": 1}))
        for ours, theirs in zip(weights(run), by_hand("torch"), strict=True):
            assert np.allclose(ours, theirs, rtol=0, atol=1e-2)  # 11 significant bits


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "sync_parameter_server"])
def test_a_run_that_went_back_to_a_checkpoint_ends_with_the_same_weights(strategy: str) -> None:
    fields = {"checkpoint_every": 2, "max_restarts": 1, "faults": ["kill worker:1 at step 3"]}
    assert same(weights(trained("torch", strategy, **fields)), by_hand("torch"))


def test_what_is_exchanged_stands_in_the_plan() -> None:
    run = trained("torch", "one_device")
    assert "Gradients of 0.weight are sparse" in str(run.plan)
    dense = trained("torch", "one_device", bags("torch", sparse=False))
    assert "sparse" not in str(dense.plan)


def test_a_table_that_cannot_be_sharded_is_refused_by_name_before_anything_starts() -> None:
    with pytest.raises(
        SpecError, match=r"cannot shard the sparse 0\.weight: make it with"
    ) as found:
        trained("torch", "fully_sharded")
    assert "\n" not in str(found.value)
    assert Run.going() == []
    run = trained("torch", "fully_sharded", bags("torch", sparse=False))
    assert same(weights(run), by_hand("torch"))


# --- in TensorFlow, which makes the gradient of an embedding whole ---


@pytest.mark.parametrize(
    ("strategy", "fields"),
    [
        ("one_device", {}),
        ("mirrored", {}),
        ("multi_worker_mirrored", {}),
        ("sync_parameter_server", {"ps": 2}),
        ("parameter_server", ONE),
    ],
)
def test_weights_are_those_of_a_plain_script_of_tensorflow(
    strategy: str, fields: dict[str, Any]
) -> None:
    run = trained("tensorflow", strategy, **fields)
    assert same(weights(run), by_hand("tensorflow"))


# --- bytes ---

ROWS, WIDE = 20_000, 8
TABLE, ROW, DENSE = 4 * ROWS * WIDE, 4 * WIDE + 8, 4 * (WIDE + 1) * CLASSES + 8


@functools.cache
def large(sparse: bool) -> Workload:
    """A table of which a batch of 64 texts looks up at most 320 rows."""

    def bag() -> Any:
        from torch import nn

        return nn.Sequential(nn.EmbeddingBag(ROWS, WIDE, sparse=sparse), nn.Linear(WIDE, CLASSES))

    words = np.random.default_rng(1).integers(0, ROWS, size=(1200, LENGTH))
    topics = words[:, 0] % CLASSES
    train, test = (words[:1000], topics[:1000]), (words[1000:], topics[1000:])
    return Workload(f"large_{'sparse' if sparse else 'dense'}", train=train, test=test, torch=bag)


def rows_of(step: int, share: int = 0, of: int = 1) -> int:
    """How many rows a share of a step's global batch looks up."""
    batch = examples_of(large(True), step, SEED, 128, share, of)
    return len(np.unique(large(True).train.take(batch)[0]))


@functools.cache
def traffic(strategy: str, sparse: bool, ps: int = 1, **more: Any) -> tuple[float, float]:
    """Bytes that all ps together receive and send in a step, as the kernel counts them."""
    fields: dict[str, Any] = {"hosts": 2, "steps": 24, "global_batch": 128, "ps": ps} | more
    fields["device_ms"] = 40  # so that the counters are read many times
    run = trained("torch", strategy, large(sparse), **fields)
    counted = [run.result["wire_bytes_per_step"][f"ps:{k}"] for k in range(ps)]
    return sum(n["received"] for n in counted), sum(n["sent"] for n in counted)


@pytest.mark.skipif(
    not hardware.probe().private_network.ok, reason="the system refuses private networks"
)
@pytest.mark.parametrize("ps", [1, 3])
def test_a_worker_pushes_the_rows_of_its_batch_and_pulls_those_that_have_changed(ps: int) -> None:
    steps = range(1, 24)
    pushed = np.mean([rows_of(step, k, 2) for step in steps for k in range(2)]) * ROW + DENSE
    pulled = np.mean([rows_of(step) for step in steps]) * ROW + DENSE  # of both workers' rows
    for counted, formula in zip(
        traffic("sync_parameter_server", True, ps), (pushed, pulled), strict=True
    ):
        # calls are text of some hundred bytes, packets have headers and are acknowledged
        assert 0.9 * formula < counted / 2 < 1.1 * formula + 600 * ps
    for counted in traffic("sync_parameter_server", False, ps):
        assert counted / 2 == pytest.approx(TABLE, rel=0.1)


@pytest.mark.skipif(
    not hardware.probe().private_network.ok, reason="the system refuses private networks"
)
@pytest.mark.parametrize("strategy", ["parameter_server", "stale_synchronous", "backup_workers"])
def test_so_it_does_under_the_other_rules(strategy: str) -> None:
    assert all(counted < TABLE / 5 for counted in traffic(strategy, True))


@pytest.mark.skipif(
    not hardware.probe().private_network.ok, reason="the system refuses private networks"
)
def test_an_optimizer_with_a_state_changes_more_than_the_rows_of_a_batch() -> None:
    """Momentum moves all rows that were ever looked up, adamw's weight decay the whole table."""
    pushed, pulled = traffic("sync_parameter_server", True, optimizer="momentum")
    assert pushed < pulled < 2 * TABLE
    pushed, pulled = traffic("sync_parameter_server", True, optimizer="adamw")
    assert pushed < TABLE / 5
    assert pulled / 2 == pytest.approx(TABLE, rel=0.1)
