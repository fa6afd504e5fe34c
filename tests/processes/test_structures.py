"""Inputs, outputs and targets that are structures of arrays: every strategy trains on them as a
plain script does that computes the whole batch in one process.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from course_lib import Run, Workload, start
from course_lib.errors import SpecError
from tests.helpers import examples_of

STEPS, BATCH, RATE, SEED = 4, 16, 0.5, 3
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 3e-6}  # float32 sums in another order
LENGTH, TOKENS, KINDS = 7, 11, 3

_rng = np.random.default_rng(1)
_lengths = _rng.integers(1, LENGTH + 1, size=(400, 1))
_mask = np.arange(LENGTH) < _lengths
_tokens = np.where(_mask, _rng.integers(1, TOKENS, size=(400, LENGTH)), 0)
_numbers = _rng.normal(size=(400, 4))
_kinds = _tokens[:, 0] % KINDS


def split(inputs: Any, targets: Any) -> dict[str, Any]:
    """The first 300 examples to train with, the others to test with."""

    def part(tree: Any, which: slice) -> Any:
        if isinstance(tree, dict):
            return {name: part(each, which) for name, each in tree.items()}
        return tuple(part(each, which) for each in tree) if type(tree) is tuple else tree[which]

    parts = slice(300), slice(300, None)
    train, test = ((part(inputs, which), part(targets, which)) for which in parts)
    return {"train": train, "test": test, "learning_rate": RATE}


# --- two towers: a dict of whole numbers and floats, and a loss of ours ---

TOWERS = split({"words": _tokens, "numbers": _numbers}, _kinds)


def torch_towers() -> Any:
    from torch import cat, nn

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(TOKENS, 8)
            self.dense = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, KINDS))

        def forward(self, numbers: Any, words: Any) -> Any:
            return self.dense(cat([self.embed(words).mean(1), numbers], 1))

    return Towers()


def keras_towers() -> Any:
    import keras
    from keras import layers

    words = keras.Input((LENGTH,), name="words", dtype="int64")
    numbers = keras.Input((4,), name="numbers")
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(TOKENS, 8)(words))
    hidden = layers.Dense(16, "relu")(layers.Concatenate()([mean, numbers]))
    return keras.Model({"words": words, "numbers": numbers}, layers.Dense(KINDS)(hidden))


# --- a padded sequence with its mask, two outputs, and one loss that takes both ---

PADDED = split((_tokens, _mask), (np.maximum(_tokens - 1, 0), {"kind": _kinds, "mask": _mask}))


def torch_padded() -> Any:
    from torch import nn

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(TOKENS, 8)
            self.tags, self.kind = nn.Linear(8, TOKENS), nn.Linear(8, KINDS)

        def forward(self, tokens: Any, mask: Any) -> Any:
            values = self.embed(tokens).masked_fill(~mask[:, :, None], 0)  # a mask of booleans
            mean = values.sum(1) / mask.sum(1, keepdim=True)
            return {"tags": self.tags(values), "kind": self.kind(mean)}

    return Padded()


def keras_padded() -> Any:
    import keras
    from keras import layers, ops

    tokens = keras.Input((LENGTH,), dtype="int64")
    mask = keras.Input((LENGTH,), dtype="bool")
    counts = ops.cast(mask, "float32")[:, :, None]
    values = layers.Embedding(TOKENS, 8)(tokens) * counts
    mean = ops.sum(values, 1) / ops.sum(counts, 1)
    outputs = {"tags": layers.Dense(TOKENS)(values), "kind": layers.Dense(KINDS)(mean)}
    return keras.Model([tokens, mask], outputs)


def torch_loss(outputs: Any, targets: Any) -> Any:
    from torch.nn.functional import cross_entropy

    tags, others = targets
    mask = others["mask"]
    total = cross_entropy(outputs["tags"][mask], tags[mask], reduction="sum")
    total = total + cross_entropy(outputs["kind"], others["kind"], reduction="sum")
    return total, mask.sum()


def keras_loss(outputs: Any, targets: Any) -> Any:
    import tensorflow as tf

    tags, others = targets
    each = tf.nn.sparse_softmax_cross_entropy_with_logits
    counts = tf.cast(others["mask"], tf.float32)
    total = tf.reduce_sum(each(tags, outputs["tags"]) * counts)
    return total + tf.reduce_sum(each(others["kind"], outputs["kind"])), tf.reduce_sum(counts)


def right(outputs: Any, targets: Any) -> float:
    """The share of tags and of kinds that are right, of all that are no padding."""
    tags, others = targets
    hits = (outputs["tags"].argmax(-1) == tags)[others["mask"]]
    return float(np.mean([*hits, *(outputs["kind"].argmax(-1) == others["kind"])]))


MODELS: dict[str, dict[str, Callable[[], Any]]] = {
    "towers": {"torch": torch_towers, "tensorflow": keras_towers},
    "padded": {"torch": torch_padded, "tensorflow": keras_padded},
}
LOSSES: dict[str, Callable[..., Any]] = {"torch": torch_loss, "tensorflow": keras_loss}


@functools.cache
def workload_of(model: str, framework: str) -> Workload:
    builder = {framework: MODELS[model][framework]}
    if model == "towers":
        return Workload(f"towers_{framework}", **TOWERS, **builder)
    return Workload(
        f"padded_{framework}", **PADDED, loss=LOSSES[framework], metric=right, **builder
    )


def trained(framework: str, strategy: str, workload: Workload, **more: Any) -> Run:
    size: dict[str, Any] = {} if strategy == "one_device" else {"workers": 2}
    fields = {"seed": SEED, "steps": STEPS, "global_batch": BATCH, **size, **more}
    with start(strategy, framework=framework, workload=workload, **fields) as run:
        return run.wait(120)


def weights(model: Any, framework: str) -> list[np.ndarray]:
    if framework == "torch":
        return [parameter.detach().numpy() for parameter in model.parameters()]
    return [np.array(weight) for weight in model.trainable_variables]


def arrays(tree: Any, make: Callable[..., Any]) -> Any:
    """A structure of the tensors of a framework."""
    if isinstance(tree, dict):
        return {name: arrays(each, make) for name, each in tree.items()}
    return tuple(arrays(each, make) for each in tree) if type(tree) is tuple else make(tree)


@functools.cache
def by_hand(model: str, framework: str) -> tuple[list[np.ndarray], float, float]:
    """Weights, last loss and metric of a plain script: one process, the whole batch at once."""
    workload = workload_of(model, framework)
    batches = [examples_of(workload, step, SEED, BATCH) for step in range(STEPS)]
    if framework == "torch":
        return torch_by_hand(workload, batches)
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(SEED)
    net = MODELS[model][framework]()
    for batch in batches:
        x, y = arrays(workload.train.take(batch), tf.constant)
        with tf.GradientTape() as tape:
            made = net(x, training=True)
            if model == "towers":
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, made)
                loss = tf.reduce_mean(each)
            else:
                total, count = keras_loss(made, y)
                loss = total / count
        gradients = tape.gradient(loss, net.trainable_variables)
        for variable, gradient in zip(net.trainable_variables, gradients, strict=True):
            variable.assign_sub(RATE * tf.convert_to_tensor(gradient))
    x, y = workload.test.take(slice(None))
    made = arrays(net(arrays(x, tf.constant)), lambda tensor: tensor.numpy())
    return weights(net, framework), float(loss), measured(made, y)


def torch_by_hand(
    workload: Workload, batches: list[np.ndarray]
) -> tuple[list[np.ndarray], float, float]:
    import torch

    towers = workload.name.startswith("towers")
    torch.manual_seed(SEED)
    net = torch_towers() if towers else torch_padded()

    def outputs(x: Any) -> Any:
        return net(**x) if towers else net(*x)

    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for batch in batches:
        x, y = arrays(workload.train.take(batch), torch.from_numpy)
        optimizer.zero_grad()
        if towers:
            loss = torch.nn.functional.cross_entropy(outputs(x), y)
        else:
            total, count = torch_loss(outputs(x), y)
            loss = total / count
        loss.backward()
        optimizer.step()
    x, y = workload.test.take(slice(None))
    made = outputs(arrays(x, torch.from_numpy))
    made = arrays(made, lambda tensor: tensor.detach().numpy())
    return weights(net, "torch"), loss.item(), measured(made, y)


def measured(outputs: Any, targets: Any) -> float:
    if isinstance(outputs, dict):
        return right(outputs, targets)
    return float(np.mean(outputs.argmax(-1) == targets))


def check(run: Run, model: str) -> None:
    """The run ends with the weights, the loss and the metric of the plain script."""
    framework = run.spec.framework
    expected, loss, metric = by_hand(model, framework)
    for ours, theirs in zip(weights(run.model(), framework), expected, strict=True):
        assert np.allclose(ours, theirs, **CLOSE)
    assert run.result["final_loss"] == pytest.approx(loss, rel=1e-5)
    name = "test_accuracy" if model == "towers" else "test_right"
    assert run.result[name] == pytest.approx(metric, abs=1e-6)


ROWS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("torch", "towers", "one_device", {}),
    ("torch", "towers", "multi_worker_mirrored", {}),
    ("torch", "towers", "fully_sharded", {"accumulate": 2}),
    ("torch", "towers", "sync_parameter_server", {"ps": 1}),
    ("torch", "towers", "tensor_parallel", {}),
    ("torch", "padded", "one_device", {"accumulate": 4}),
    ("torch", "padded", "multi_worker_mirrored", {"accumulate": 2}),
    ("torch", "padded", "fully_sharded", {}),
    ("torch", "padded", "sync_parameter_server", {"ps": 1, "accumulate": 2}),
    ("torch", "padded", "central_storage", {}),
    ("torch", "padded", "parameter_server", {"ps": 1, "workers": 1}),
    ("tensorflow", "towers", "one_device", {}),
    ("tensorflow", "towers", "multi_worker_mirrored", {"accumulate": 2}),
    ("tensorflow", "towers", "mirrored", {}),
    ("tensorflow", "padded", "one_device", {"accumulate": 4}),
    ("tensorflow", "padded", "multi_worker_mirrored", {}),
    ("tensorflow", "padded", "mirrored", {"accumulate": 2}),
    ("tensorflow", "padded", "central_storage", {}),
    ("tensorflow", "padded", "sync_parameter_server", {"ps": 1, "accumulate": 2}),
    ("tensorflow", "towers", "parameter_server", {"ps": 1, "workers": 1}),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("framework", "model", "strategy", "fields"), ROWS)
def test_structures_are_trained_on_as_by_a_plain_script(
    framework: str, model: str, strategy: str, fields: dict[str, Any]
) -> None:
    check(trained(framework, strategy, workload_of(model, framework), **fields), model)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_in_16_bits_losses_and_metrics_get_outputs_in_float32(framework: str) -> None:
    run = trained(framework, "one_device", workload_of("padded", framework), precision="bfloat16")
    assert run.result["final_loss"] == pytest.approx(by_hand("padded", framework)[1], rel=0.05)


def test_a_pipeline_refuses_structures_with_the_reason() -> None:
    for model in MODELS:
        with pytest.raises(SpecError, match="targets are several") as caught:
            trained("torch", "pipeline_parallel", workload_of(model, "torch"))
        assert "\n" not in str(caught.value)


def test_a_model_that_cannot_take_the_structure_is_named_with_the_shapes() -> None:
    from torch import nn

    wrong = Workload("wrong", **TOWERS, torch=lambda: nn.Sequential(nn.Linear(4, KINDS)))
    said = (
        r"the inputs of two examples, of shape {'words': \(2, 7\), 'numbers': \(2, 4\)}: TypeError"
    )
    with pytest.raises(SpecError, match=said):
        trained("torch", "one_device", wrong)


# --- datasets that are read once ---


def test_a_tf_data_dataset_is_read_once_and_trained_on_as_its_arrays_are() -> None:
    import tensorflow as tf

    read: list[int] = []

    def items() -> Iterator[Any]:
        (words, numbers), kinds = TOWERS["train"][0].values(), TOWERS["train"][1]
        for k in range(300):
            read.append(k)
            yield {"words": words[k], "numbers": numbers[k]}, kinds[k]

    spec = (
        {
            "words": tf.TensorSpec((LENGTH,), tf.int32),
            "numbers": tf.TensorSpec((4,), tf.float64),
        },
        tf.TensorSpec((), tf.int32),
    )
    streamed = tf.data.Dataset.from_generator(items, output_signature=spec)
    test = tf.data.Dataset.from_tensor_slices(TOWERS["test"])  # which knows its length
    fields: dict[str, Any] = {"tensorflow": keras_towers, "learning_rate": RATE}
    with pytest.raises(SpecError, match=r"length .*examples=N"):
        Workload("streamed", train=streamed, test=test, **fields)
    with pytest.raises(SpecError, match=r"give .unbatch\(\)"):
        Workload("streamed", train=test.batch(10), test=test, **fields)
    with pytest.warns(UserWarning, match=r"\(10, 7\).*unbatch"):
        batches = test.batch(10, drop_remainder=True).prefetch(1)
        Workload("streamed", train=batches, test=test, **fields)
    workload = Workload("streamed", train=streamed, test=test, examples=300, **fields)
    assert len(workload.test) == 100
    check(trained("tensorflow", "multi_worker_mirrored", workload), "towers")
    assert read == list(range(300))


def test_an_iterable_torch_dataset_is_read_once_and_trained_on_as_its_arrays_are() -> None:
    import torch
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __init__(self, part: str) -> None:
            self.part, self.reads = part, 0

        def __iter__(self) -> Iterator[Any]:
            (tokens, mask), (tags, others) = PADDED[self.part]
            for k in range(len(tokens)):
                self.reads += 1
                x, y = (tokens[k], mask[k]), (tags[k], {n: v[k] for n, v in others.items()})
                yield arrays(x, torch.from_numpy), arrays(y, torch.as_tensor)

    class Counted(Stream):
        def __len__(self) -> int:
            return 100

    train, test = Stream("train"), Counted("test")
    fields: dict[str, Any] = {"loss": torch_loss, "metric": right, "learning_rate": RATE}
    workload = Workload(
        "streamed_torch", train=train, test=test, torch=torch_padded, examples=300, **fields
    )
    check(trained("torch", "multi_worker_mirrored", workload), "padded")
    assert (train.reads, test.reads) == (300, 100)


def test_what_does_not_fit_into_memory_is_told_with_the_figure() -> None:
    import tensorflow as tf

    images = tf.data.Dataset.from_tensors((tf.zeros((224, 224, 3)), 1)).repeat(50_000)
    with pytest.raises(SpecError, match=r"28 GiB': .* 2 GiB: examples=N"):
        Workload("images", train=images, test=images, tensorflow=keras_towers)
