"""Workloads without a framework: the data, which examples go where, initial weights, sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib import workloads
from course_lib.errors import SpecError
from course_lib.spec.run_spec import RunSpec
from course_lib.workloads.layers import Conv, Dense, Flatten, digest, glorot, shapes
from tests.helpers import examples_of

DIGITS = workloads.load(RunSpec())


def test_the_images_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    data, target = load_digits(return_X_y=True)
    ours = np.column_stack(
        [
            np.concatenate([DIGITS.train.inputs, DIGITS.test.inputs]) * 16,
            np.concatenate([DIGITS.train.targets, DIGITS.test.targets]),
        ]
    )
    assert sorted(map(tuple, ours)) == sorted(map(tuple, np.column_stack([data, target])))


@pytest.mark.parametrize("name", ["digits", "digits_cnn", "digits_deep", "wide"])
def test_data_have_the_stated_types_and_shapes(name: str) -> None:
    workload = workloads.load(RunSpec(workload=name))
    assert workload.name == name
    assert (len(workload.train), len(workload.test)) == (1437, 360)
    for x, y in (
        (workload.train.inputs, workload.train.targets),
        (workload.test.inputs, workload.test.targets),
    ):
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        assert (x.min(), x.max()) == (0, 1)
        assert x.shape[1:] == workload.input_shape
        assert set(y) == set(range(10))


def test_an_unknown_workload_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "OWN", {})  # those that other tests made
    with pytest.raises(SpecError, match="did you mean 'digits'"):
        workloads.find("digit")


@given(
    step=st.integers(0, 500),
    seed=st.integers(0, 2**31 - 1),
    share=st.integers(1, 600),
    workers=st.integers(1, 8),
)
def test_shares_of_the_workers_make_up_the_global_batch(
    step: int, seed: int, share: int, workers: int
) -> None:
    batch = share * workers
    shares = [examples_of(DIGITS, step, seed, batch, worker, workers) for worker in range(workers)]
    assert [len(s) for s in shares] == [share] * workers
    assert np.array_equal(np.concatenate(shares), examples_of(DIGITS, step, seed, batch))


@pytest.mark.parametrize("batch", [1, 128, 1437, 4096])
def test_every_epoch_shows_every_example_once_in_an_order_of_its_own(batch: int) -> None:
    seen = np.concatenate(
        [examples_of(DIGITS, step, 3, batch) for step in range(3 * 1437 // batch + 1)]
    )
    first, second, third = seen[:1437], seen[1437:2874], seen[2874:4311]
    for epoch in (first, second, third):
        assert np.array_equal(np.sort(epoch), np.arange(1437))
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_each_worker_shuffles_its_own_part_in_every_epoch(workers: int) -> None:
    length, batch = -(-1437 // workers), 50 * workers
    parts = []
    for worker in range(workers):
        shares = [
            examples_of(DIGITS, n, 3, batch, worker, workers, "per_worker") for n in range(60)
        ]
        seen = np.concatenate(shares)
        first, second = seen[:length], seen[length : 2 * length]
        parts.append(set(first.tolist()))
        assert set(second.tolist()) == parts[-1] and not np.array_equal(first, second)
        assert length - len(parts[-1]) <= 1  # padded by an example of its own at most
        assert len(shares[0]) == 50
    assert sum(map(len, parts)) == 1437 and set.union(*parts) == set(range(1437))


def test_the_order_depends_on_the_seed_alone() -> None:
    assert np.array_equal(examples_of(DIGITS, 7, 1, 64), examples_of(DIGITS, 7, 1, 64))
    assert not np.array_equal(examples_of(DIGITS, 7, 1, 64), examples_of(DIGITS, 7, 2, 64))


@pytest.mark.parametrize(
    ("name", "parameters"), [("digits", 4810), ("digits_cnn", 3818), ("digits_deep", 63082)]
)
def test_parameters_are_counted_exactly(name: str, parameters: int) -> None:
    workload = workloads.load(RunSpec(workload=name))
    assert (
        workload.sketch_in("torch").parameters
        == parameters
        == sum(w.size for w in workload.initial_weights(0))
    )


@given(st.integers(1_000, 50_000_000))
def test_wide_has_as_many_parameters_as_a_whole_number_of_units_allows(wanted: int) -> None:
    assert (
        abs(
            workloads.load(RunSpec(workload="wide", sizes={"parameters": wanted}))
            .sketch_in("torch")
            .parameters
            - wanted
        )
        <= 37.5
    )


def test_shapes_follow_an_image_through_the_layers() -> None:
    layers = (Conv(8, 3), Conv(16, 3), Flatten(), Dense(10))
    assert list(shapes(layers, (8, 8, 1))) == [
        (3, 3, 1, 8),
        (8,),
        (3, 3, 8, 16),
        (16,),
        (256, 10),
        (10,),
    ]


def test_initial_weights_keep_to_glorots_limit_and_the_seed() -> None:
    layers = (Conv(64, 3), Flatten(), Dense(100))
    weights = glorot(layers, (4, 4, 32), 5)
    assert [w.dtype for w in weights] == [np.float32] * 4
    for kernel, fans in ((weights[0], 9 * (32 + 64)), (weights[2], 256 + 100)):
        limit = np.sqrt(6 / fans)
        assert 0.98 * limit < np.abs(kernel).max() <= limit
        assert abs(kernel.mean()) < 0.02 * limit
    assert not weights[1].any() and not weights[3].any()
    assert (
        digest(weights)
        == digest(glorot(layers, (4, 4, 32), 5))
        != digest(glorot(layers, (4, 4, 32), 6))
    )


def test_a_deep_model_passes_its_signal_through_all_layers() -> None:
    """With weights as `glorot` has them it would fade from layer to layer."""
    deep = workloads.load(RunSpec(workload="digits_deep"))
    assert sum(isinstance(layer, Dense) for layer in deep.layers) == 8
    spreads = {}
    for weights in (deep.initial_weights(0), glorot(deep.layers, deep.input_shape, 0)):
        values = deep.train.inputs
        for layer, kernel, bias in zip(deep.layers, weights[::2], weights[1::2], strict=True):
            values = values @ kernel + bias
            values = np.maximum(values, 0) if layer.relu else values  # type: ignore[union-attr]  # all are dense
        spreads[len(spreads)] = values.std()
    assert 0.3 < spreads[0] < 1
    assert spreads[1] < spreads[0] / 2


def test_a_digest_tells_weights_apart_by_one_bit() -> None:
    weights = DIGITS.initial_weights(0)
    before = digest(weights)
    assert len(before) == 16
    weights[2] = weights[2].copy()
    weights[2][3, 4] = np.nextafter(weights[2][3, 4], np.float32(np.inf))
    assert digest(weights) != before
