"""tiny_gpt without a framework: its text, its metric, its dials and its sample; FLOPs of layers."""

import math
from typing import Any

import numpy as np
import pytest

from course_lib import workloads
from course_lib.errors import SpecError
from course_lib.spec.run_spec import RunSpec
from course_lib.workloads import tiny_gpt
from tests.helpers import spec_for


def load(**dials: int) -> workloads.Workload:
    return workloads.load(RunSpec(workload="tiny_gpt", sizes=dials))


def test_the_text_is_whole_and_no_topic_is_there_twice() -> None:
    text = tiny_gpt.text()
    assert 300_000 < len(text) < 600_000
    for sentence in (
        'The "yield" statement',
        'The "while" statement is used for repeated execution',
    ):
        assert text.count(sentence) <= 1
    shown = tiny_gpt.decode(tiny_gpt.encode(text))
    assert sum(a != b for a, b in zip(text, shown, strict=True)) < len(text) / 500  # not ASCII


def test_each_target_is_the_character_after_its_input_and_none_held_out_is_trained_on() -> None:
    workload = load(context=50)
    numbers, trained = tiny_gpt.encode(tiny_gpt.text()), workload.train.inputs.size
    for examples in (workload.train, workload.test):
        assert examples.inputs.shape == examples.targets.shape == (len(examples), 50)
        following = np.append(examples.inputs.ravel()[1:], examples.targets[-1, -1])
        assert np.array_equal(following, examples.targets.ravel())
    assert np.array_equal(workload.train.inputs.ravel(), numbers[:trained])
    held_out = workload.test.inputs.ravel()
    assert np.array_equal(held_out, numbers[-len(numbers) // 20 + 1 :][: held_out.size])
    assert 0.045 < held_out.size / numbers.size < 0.05


def test_bits_per_character() -> None:
    targets = np.array([[3, 0], [95, 7]])
    guess = np.zeros((2, 2, 96), np.float32)
    assert tiny_gpt.bits_per_character(guess, targets) == pytest.approx(math.log2(96))
    sure = 1000 * np.eye(96, dtype=np.float32)[targets]
    assert tiny_gpt.bits_per_character(sure, targets) == 0
    halves = np.log(np.eye(96)[targets] + np.eye(96)[targets - 1] + 1e-30)
    assert tiny_gpt.bits_per_character(halves, targets) == pytest.approx(1)


def test_a_sample_goes_on_from_what_was_held_out_and_can_be_repeated() -> None:
    """A model that always knows what follows: the next character in its list."""
    workload = load(context=16)
    assert workload.sample

    def alphabet(inputs: np.ndarray) -> np.ndarray:
        assert inputs.shape == (1, 16)
        return np.float32(99) * np.eye(96)[(inputs + 1) % 96]

    beginning, written = workload.sample(alphabet).split("»")
    assert beginning == tiny_gpt.decode(workload.test.inputs[0])
    expected = np.arange(1, 161) + workload.test.inputs[0, -1]
    assert written == tiny_gpt.decode(expected % 96)

    def nothing(inputs: np.ndarray) -> np.ndarray:
        return np.zeros((1, 16, 96))

    assert workload.sample(nothing) == workload.sample(nothing)
    assert workload.sample(lambda inputs: nothing(inputs) * np.nan) == f"{beginning}»"


@pytest.mark.parametrize(
    ("dials", "parameters"),
    [
        ({}, 114_432),
        ({"layers": 12, "heads": 12, "width": 384, "context": 256}, 21_466_368),
        ({"layers": 1, "heads": 1, "width": 16, "context": 8}, 6_512),
    ],
)
def test_dials_set_the_size(dials: dict[str, int], parameters: int) -> None:
    workload = load(**dials)
    for framework in ("torch", "tensorflow"):
        sketch = workload.sketch_in(framework)
        assert sketch and sketch.parameters == parameters


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sizes": {"heads": 5}}, "sizes='heads=5': must divide width=64, such as 4"),
        ({"sizes": {"heads": 0}}, "sizes='heads=0': allowed: heads is a whole number from 1 to 16"),
        ({"sizes": "width=1000"}, "width is a whole number from 16 to 384"),
        ({"sizes": "depth=3"}, "allowed: tiny_gpt has layers, heads, width, context"),
        ({"sizes": "layers=many"}, "such as layers=6,width=128"),
        ({"sizes": {"layers": 2.5}}, "such as layers=6,width=128"),
        ({"workload": "digits", "sizes": {"layers": 2}}, "digits has none: leave it out"),
    ],
)
def test_dials_that_cannot_be_are_refused_in_one_line(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        spec_for("one_device", **{"framework": "torch", "workload": "tiny_gpt", **fields})
    assert "\n" not in str(caught.value)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    shapes = tiny_gpt.shapes(1, 32, 16)
    first, again, other = (tiny_gpt.initial(shapes, seed) for seed in (0, 0, 1))
    assert [each.shape for each in first] == shapes
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize(
    ("name", "first", "later"),
    [
        ("digits", 64 * 64, 64 * 10),
        ("digits_cnn", 6 * 6 * 9 * 8, 4 * 4 * 9 * 8 * 16 + 256 * 10),
        ("tiny_gpt", 0, 32 * (2 * 12 * 64**2 + 64 * 96) + 2 * 2 * 32 * 32 * 64),
    ],
)
def test_flops_are_two_for_a_product_forward_and_twice_as_many_backward_but_for_the_inputs(
    name: str, first: int, later: int
) -> None:
    sketch = workloads.load(RunSpec(workload=name)).sketch_in("torch")
    assert sketch and sketch.flops == 2 * (2 * first + 3 * later)
