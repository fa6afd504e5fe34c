"""Device time by layer, and exchanges that hide behind it, in real processes."""

import functools
import itertools
from typing import Any

import pytest

from course_lib import start
from course_lib.cluster.run import Run
from course_lib.record import measures
from course_lib.record.events import Phase
from tests.helpers import compares_times, of_times

FRAMEWORKS = ("torch", "tensorflow")
BUCKET = 0.01  # MiB: each of the eight layers of digits_deep, of 16 KiB, fills one
MS = 80.0


@functools.cache
def trained(framework: str, late: float = 1.0, **fields: Any) -> Run:
    """A run of two workers with buckets of one layer each, when it is over; the second worker may
    be `late` by a factor.
    """
    usual = {"workers": 2, "workload": "digits_deep", "steps": 5, "bucket_mb": BUCKET}
    slow = {"worker:1": late}
    with start("multi_worker_mirrored", framework=framework, slow=slow, **usual, **fields) as run:
        return run.wait()


def begun(run: Run, what: str) -> list[list[float]]:
    """When the phases of a kind began in each later step of worker 0, counted from the beginning of
    its compute in shares of that.
    """
    found = []
    for step in range(2, run.spec.steps):
        mine = run.trace.all(Phase, "worker:0", step=step)
        compute = next(p for p in mine if p.what == "compute")
        whole = compute.end - compute.start
        found.append(sorted((p.start - compute.start) / whole for p in mine if p.what == what))
    return found


def left(run: Run) -> list[float]:
    """For how many milliseconds worker 0 computed after its first reduction had begun, by step."""
    found = []
    for step in range(2, run.spec.steps):
        mine = run.trace.all(Phase, "worker:0", step=step)
        first = min(p.start for p in mine if p.what == "reduce")
        found.append(1e3 * (max(p.end for p in mine if p.what == "compute") - first))
    return found


@pytest.mark.parametrize("all_reduce", ["native", "ring"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.alone
@compares_times(trained)
def test_buckets_leave_while_earlier_layers_are_computed_or_when_all_are(
    framework: str, all_reduce: str
) -> None:
    """A third of the device time is the forward pass. The last layer's gradients are there soon
    after it, the others' follow through the rest; the last bucket is full when the pass is over.
    """
    beside, after = (
        trained(framework, device_ms=MS, all_reduce=all_reduce, overlap=overlap)
        for overlap in (True, False)
    )
    for starts in begun(beside, "reduce"):
        assert len(starts) > 4
        with of_times():
            assert starts[0] > 0.3 and starts[-1] == pytest.approx(1)
            assert all(b - a < 0.4 for a, b in itertools.pairwise(starts))
    assert min(left(beside)) > MS / 3  # device time alone: a busy machine makes it longer
    for starts in begun(after, "reduce"):
        assert len(starts) == len(begun(beside, "reduce")[0])
        with of_times():
            assert min(starts) > 0.9
    with of_times():
        hidden = [measures.exchange_ms(run.trace)["hidden"] for run in (beside, after)]
        assert hidden[0] > 3 * hidden[1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_with_overlap_or_without_and_with_device_time_or_without_the_weights_are_the_same(
    framework: str,
) -> None:
    runs = [
        trained(framework, device_ms=MS, all_reduce="native", overlap=True),
        trained(framework, device_ms=MS, all_reduce="native", overlap=False),
        trained(framework),
        trained(framework, overlap=False),
        trained(framework, device_ms=5, late=3.0),
    ]
    digests = [run.result["parameter_digest"] for run in runs]
    assert all(digest == digests[0] for digest in digests)
    parts = {"accumulate": 2, "device_ms": 5}
    beside, after = (trained(framework, overlap=overlap, **parts) for overlap in (True, False))
    assert beside.result["parameter_digest"] == after.result["parameter_digest"] != digests[0]


@compares_times()
def test_fully_sharded_gathers_ahead_and_scatters_behind_or_waits_for_each() -> None:
    results = {}
    for overlap in (True, False):
        fields = {"workers": 2, "workload": "digits_deep", "steps": 5, "device_ms": MS}
        with start("fully_sharded", framework="torch", overlap=overlap, **fields) as run:
            results[overlap] = run.wait().result
    assert results[True]["parameter_digest"] == results[False]["parameter_digest"]
    assert results[False]["exchange_ms"]["hidden"] == 0
    with of_times():
        assert results[True]["exchange_ms"]["hidden"] > 0


# --- device time by layer, in a process that has PyTorch ---


def layers_of_models(task: Any) -> dict[str, Any]:
    """Model -> its layers by class, each with the parts of the time slept in it: forward, backward.

    Nothing is really slept: what is to be slept is noted with the layer that has just been
    computed, or is about to be.
    """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    from course_lib.strategies.torch.steps import Layers

    class Twice(nn.Module):
        """One layer that is called twice, and its weight a third time, by a function."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8, bias=False)

        def forward(self, x: Any) -> Any:
            return nn.functional.linear(self.layer(self.layer(x)), self.layer.weight)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.second(checkpoint(self.first, x, use_reentrant=False))

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.out = nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            x = x[:, None].expand(-1, 4, -1)
            return self.out(self.attention(x, x, x)[0])

    frozen = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    frozen[0].requires_grad_(False)
    models = {
        "sequential": nn.Sequential(
            nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 24), nn.LayerNorm(24)
        ),
        "convolution": nn.Sequential(
            nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU(inplace=True)
        ),
        "twice": Twice(),
        "checkpointed": Checkpointed(),
        "attention": Recurrent(),
        "frozen": frozen,
        "none": nn.LayerNorm(8),
    }
    found: dict[str, Any] = {}
    for name, model in models.items():
        slept: list[float] = []
        layers = Layers(lambda seconds, slept=slept: slept.append(seconds) or seconds)

        def step(model: Any = model, layers: Any = layers, seconds: float = 9.0) -> None:
            with layers.taking(seconds):
                for _ in range(2):  # the gradients of two parts of a batch add up
                    model(torch.rand(4, 8)).square().mean().backward()

        step(seconds=0.0)
        assert layers._shares is None and not slept  # no device time: no hooks, nothing counted
        step()
        assert slept == [9.0]  # at once, while the products are counted
        slept.clear()
        step()
        found[name] = [round(seconds, 6) for seconds in slept]
        slept.clear()
        step(seconds=0.0)
        model.eval()
        model(torch.rand(4, 8))
        assert not slept
    asked: list[float] = []
    layers = Layers(lambda seconds: asked.append(seconds) or 100.0)  # a sleep that takes too long
    for _ in range(3):
        with layers.taking(9.0):
            models["sequential"](torch.rand(4, 8)).square().mean().backward()
    return {**found, "overslept": asked}


def test_each_layer_takes_its_share_of_the_device_time_whatever_the_model() -> None:
    """Of 9 s, 3 pass forward and 6 backward, in each of two passes a half of them."""
    with start(layers_of_models, framework="torch", workers=1) as run:
        (found,) = run.wait().values.values()
    quarter = [3 / 8, 9 / 8, 18 / 8, 6 / 8]  # layers of 1 and 3 parts, forth and back
    assert found["sequential"] == pytest.approx(2 * quarter)
    assert found["convolution"] == pytest.approx(2 * [3 / 2, 3])
    assert found["twice"] == pytest.approx(2 * [0.5, 0.5, 0.5, 1, 1, 1])
    # the first layer is called again in the backward pass; its time is shared by both calls
    assert found["checkpointed"][:3] == pytest.approx([0.375, 0.75, 1.5])
    assert sum(found["attention"]) == pytest.approx(9) and len(found["attention"]) == 8
    assert found["frozen"] == pytest.approx(2 * [0.75, 0.75, 1.5])  # no backward pass through it
    assert found["none"] == [9.0]
    # what was slept too long makes the same step's other sleeps shorter, and no later step's
    assert found["overslept"] == pytest.approx([9.0, 0.75, 0.75])


# --- buckets of a TensorFlow graph, in a process that has TensorFlow ---


def buckets_of_tensorflow() -> dict[str, Any]:
    """Some buckets of ours and, by the sizes of what is in them, TensorFlow's; and, model -> the
    part of a backward pass in each layer.
    """
    import keras
    import tensorflow as tf
    from tensorflow.python.distribute.cross_device_utils import group_by_size

    from course_lib.strategies.tensorflow.models import backward_shares
    from course_lib.strategies.tensorflow.training import buckets

    lengths = [7, 1, 300, 20, 20, 5, 400, 1]
    tensors, sizes = [tf.zeros(n) for n in lengths], [4 * n for n in lengths]
    cut = []
    for limit in (20, 21, 100, 1000, 5000):
        ours = buckets([0, *sizes], limit / 2**20)
        theirs = group_by_size(tensors[::-1], limit)
        assert [bucket.count(0) for bucket in ours[::-1]] == [1] + [0] * (len(ours) - 1)  # the loss
        cut.append(
            [
                [[lengths[i - 1] for i in bucket[::-1] if i] for bucket in ours],
                [[int(tf.size(each)) for each in bucket] for bucket in theirs],
            ]
        )
    dense, conv = keras.layers.Dense, keras.layers.Conv2D
    models = {
        "dense": [keras.Input((8,)), dense(8), dense(24), dense(8)],
        "convolution": [keras.Input((4, 4, 1)), conv(2, 1), conv(4, 1), keras.layers.Flatten()],
        "none": [keras.Input((8,)), keras.layers.LayerNormalization()],
    }
    shares = {}
    for name, layers in models.items():
        model = keras.Sequential(layers)

        @tf.function(autograph=False)
        def step(inputs: Any, model: Any = model, name: str = name) -> Any:
            variables = [variable.value for variable in model.trainable_variables]
            total = [0.0, *(0.0 for _ in variables)]
            for _ in range(2):  # the gradients of two parts of a batch add up
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(inputs)))
                found = [loss, *tape.gradient(loss, variables)]
                total = [a + b for a, b in zip(total, found, strict=True)]
            each = backward_shares(total[0], total[1:])
            shares[name] = [
                kernel + bias for kernel, bias in zip(each[::2], each[1::2], strict=True)
            ]
            return total

        step.get_concrete_function(tf.zeros((2, *model.input_shape[1:])))
    return {"cut": cut, "shares": shares}


def test_buckets_are_cut_as_tensorflow_cuts_them_and_leave_after_their_share_of_the_work() -> None:
    """Of layers with 1, 3 and 3 parts of the weights, each multiplies once for the gradient of its
    weights, and all but the first once for that of its inputs, which the layer before needs.
    """
    with start(buckets_of_tensorflow, framework="tensorflow", workers=1) as run:
        (found,) = run.wait().values.values()
    assert all(ours == theirs for ours, theirs in found["cut"])
    assert found["shares"]["dense"] == pytest.approx([4 / 13, 6 / 13, 3 / 13])
    assert found["shares"]["convolution"] == pytest.approx([10 / 18, 8 / 18])  # 2 and 8 a pixel
    assert found["shares"]["none"] == pytest.approx([1.0])
