"""A learner's own workload, without a process: what it takes, what it refuses, how it travels."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from course_lib import Workload, workloads
from course_lib.errors import SpecError
from course_lib.record import progress
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import trial
from course_lib.workloads.examples import Examples
from course_lib.workloads.layers import Sketch
from course_lib.workloads.workload import uneven
from tests.helpers import refused, spec_for
from tests.screens import refusals, says

X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) % 3


def own(**fields: Any) -> Workload:
    """A workload of twenty examples whose model is never built."""
    return Workload(**{"name": "own", "train": (X, Y), "test": (X, Y), "torch": object, **fields})


class Pairs:
    """A dataset as PyTorch has them."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return [index, 2.0 * index], index


class Stream:
    """A dataset that can only be iterated, whose length is not known."""

    def __init__(self, *items: Any) -> None:
        self.items, self.reads = items or [({"a": [k, 1.0]}, k % 3) for k in range(9)], 0

    def __iter__(self) -> Any:
        for item in self.items:
            self.reads += 1
            yield item


def like(mark: str) -> Any:
    """Data of another library, which have this attribute."""
    return type("Like", (), {mark: None, "__len__": lambda self: 3})()


def tensors() -> tuple[Any, Any]:
    """A pair that is like PyTorch's: not an array, but it can be made one."""

    class Tensor:
        def __init__(self, values: Any) -> None:
            self.values = values

        def __len__(self) -> int:
            return len(self.values)

        def detach(self) -> "Tensor":
            return self

        def cpu(self) -> "Tensor":
            return self

        def numpy(self) -> Any:
            return self.values

    return Tensor(X), Tensor(Y)


@pytest.mark.parametrize("given", [(X, Y), (X.tolist(), Y.tolist()), tensors()])
def test_arrays_of_any_kind_become_float32_and_int64(given: Any) -> None:
    inputs, targets = Examples(given).take([3, 1])
    assert (inputs.dtype, targets.dtype) == (np.float32, np.int64)
    assert inputs.tolist() == [[6, 7], [2, 3]] and targets.tolist() == [0, 1]


def test_a_dataset_is_asked_only_for_the_examples_of_a_batch() -> None:
    examples = Examples(Pairs())
    inputs, targets = examples.take(np.array([5, 2]))
    assert len(examples) == 7
    assert inputs.tolist() == [[5, 10], [2, 4]] and targets.tolist() == [5, 2]
    assert [len(y) for _, y in examples.batches(3)] == [3, 3, 1]


class Two(NamedTuple):
    left: Any
    right: Any


NESTED = {"two": Two(X, (Y > 0, [[y] for y in Y])), "one": Y}


def test_inputs_and_targets_may_be_nested_structures_of_arrays(tmp_path: Path) -> None:
    sent = Examples((NESTED, (Y, X)))
    assert repr(sent) == (
        "Examples(20 of {two: Two(left=float32[2], right=(bool[], int64[1])), one: int64[]} "
        "-> (int64[], float32[2]))"
    )
    sent.leave(tmp_path / "there")
    for examples in (sent, Examples.load(tmp_path / "there")):
        inputs, targets = examples.take(np.array([5, 2]))
        assert isinstance(inputs["two"], Two) and inputs["two"].left.tolist() == [[10, 11], [4, 5]]
        assert inputs["two"].right[0].tolist() == [True, True] and inputs["one"].tolist() == [2, 2]
        assert targets[0].tolist() == [2, 2]
        assert [len(x["one"]) for x, _ in examples.batches(12)] == [12, 8]
        assert (len(examples), examples.spread(2).tolist()) == (20, [0, 19])


def test_so_may_the_items_of_a_dataset() -> None:
    items = [({"a": k, "b": [k, 0.5]}, (k, [k])) for k in range(3)]
    inputs, targets = Examples(items).take([2, 0])
    assert inputs["a"].tolist() == [2, 0] and inputs["b"].tolist() == [[2, 0.5], [0, 0.5]]
    assert [each.tolist() for each in targets] == [[2, 0], [[2], [0]]]


def test_booleans_stay_but_as_the_only_targets_they_are_classes() -> None:
    inputs, targets = Examples((Y > 0, Y > 0)).take([0, 1])
    assert (inputs.dtype, targets.dtype) == (bool, np.int64)


def test_a_dataset_that_can_only_be_iterated_is_read_once_into_arrays() -> None:
    stream = Stream()
    workload = own(train=stream, test=Stream(), examples=7)
    assert stream.reads == len(workload.train) == 7
    inputs, targets = workload.train.take(slice(None))
    assert inputs["a"][:, 0].tolist() == list(range(7))
    assert targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert len(Examples(Stream(), examples=100)) == 9  # there are no more
    assert len(Examples(iter([([1.0], 2)] * 5))) == 5  # it knows how many come


def test_a_line_says_how_many_examples_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(progress, "AFTER", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "_place", lambda: lambda text, last: shown.append(text))
    Examples(Stream(), "train", examples=9)
    assert shown[0].startswith("train: 1 of 9 ") and shown[-1].startswith("train: 9 of 9 ")


def test_what_is_read_has_one_shape_and_fits_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    items: list[Any] = [([1.0, 2.0], 0), ([1], 0), (([1.0],), 0), 3]
    calls = [partial(Examples, Stream(([1.0], 0), item), examples=9) for item in items]
    says("own_workloads", "items of several shapes", refusals(*calls))
    monkeypatch.setattr("course_lib.workloads.examples.READ", 16 * 8)
    assert len(Examples(Stream(), examples=8)) == 8
    stream = Stream()
    with pytest.raises(SpecError, match=r"train='1,000,000 .*128 B"):
        own(train=stream, examples=10**6)
    assert stream.reads == 1


WRONG: list[dict[str, Any]] = [
    {"train": ([], [])},
    {"train": (X, Y[1:])},
    {"test": ([[1.0], [np.nan]], [0, 1])},
    {"train": (["a"], [1])},
    {"train": ({"a": X, "b": Y[1:]}, Y)},
    {"train": ({"a": (X, X + np.inf)}, Y)},
    {"train": ((X, ["a"] * 20), Y)},
    {"train": ([X, Y], Y)},
    {"train": ([X, X], Y)},
    {"train": ((1.0, X), Y)},
    {"train": (X, {"a": Y})},
    {"train": X},
    {"loss": dict},
    {"train": 3},
    {"train": {"a": 1}},
    {"train": like("iloc")},
    {"train": Stream()},
    {"examples": 3},
    {"train": Stream(), "examples": 0},
    {"test": like("collate_fn")},
    {"torch": None},
    {"torch": 3},
    {"loss": "mse"},
    {"metric": "f1"},
    {"stages": "embed"},
    {"stages": ["block", "block"]},
    {"parallel": {"up": "column"}},
    {"parallel": ["up"]},
    {"learning_rate": 0},
    {"name": "my model"},
    {"name": "digits"},
]


def test_what_cannot_be_trained_is_refused_in_one_line() -> None:
    calls = [partial(own, **fields) for fields in WRONG]
    text = re.sub(r"\(ValueError: .*\);", "(an error of numpy);", refusals(*calls))
    says("own_workloads", "what cannot be trained", text)


def test_it_is_known_by_its_name_and_another_of_that_name_takes_its_place() -> None:
    first, second = own(), own(learning_rate=0.5)
    assert RunSpec(workload=first).workload == "own"
    assert workloads.load(RunSpec(workload="own")) is second
    assert workloads.sizes(RunSpec(workload="own")) == {}


def test_its_framework_is_the_one_that_it_has_a_model_for() -> None:
    workload = own(torch=None, tensorflow=object)
    refused("own_workloads", "one_device", workload=workload, framework="torch", global_batch=4)


@pytest.mark.parametrize("batch", [64, 23])  # 23: not for 4 workers
def test_a_batch_has_at_most_as_many_examples_as_there_are(batch: int) -> None:
    with pytest.raises(SpecError, match=f"={batch}: .* 20: own"):
        spec_for("multi_worker_mirrored", workload=own(), framework="torch", global_batch=batch)


def test_the_metric_is_the_mean_over_all_test_examples() -> None:
    inputs, targets = np.zeros((2500, 1)), np.arange(2500) % 2
    workload = own(test=(inputs, targets))
    assert workload.metric_name == "accuracy"
    assert workload.measure(lambda x: np.tile([1.0, 0.0], (len(x), 1))) == pytest.approx(0.5)
    regression = own(loss="mean_squared_error", test=([[1.0], [3.0]], [[0.0], [0.0]]))
    assert regression.metric_name == "mean_squared_error"
    assert regression.measure(lambda x: x) == pytest.approx(5)
    assert own(loss=len, train=(X, X)).metric_name == "mean_squared_error"  # no classes
    with pytest.raises(ValueError, match=r"same shape: .* metric="):
        own(loss=len, train=(X, X), test=(X, X)).measure(lambda x: x[:, :1])
    with pytest.raises(ValueError, match=r"cross_entropy .*whole numbers"):
        own(train=(X, X[:, 0])).check_outputs(np.zeros((2, 3)))
    largest = own(metric=lambda outputs, targets: float(np.max(outputs)))
    assert largest.measure(lambda x: x) == 39


def test_outputs_that_a_loss_of_classes_cannot_learn_from_are_refused_with_the_cure() -> None:
    workload, even = own(), np.full((2, 4), 0.25)
    wrong = (np.zeros((2, 1)), np.zeros((2, 2)), even)
    calls = [partial(workload.check_outputs, outputs) for outputs in wrong]
    says("own_workloads", "outputs for a loss of classes", refusals(*calls, of=ValueError))
    for right in (even * 1.001, even - 0.3, np.zeros((2, 4))):
        workload.check_outputs(right)
    own(loss=len).check_outputs(even)  # a function of the learner's own may want probabilities
    one = own(train=(X, X * 0), test=(X, X * 0), loss="mean_squared_error")
    one.check_outputs(np.full((2, 2), 0.5))


def test_a_metric_as_of_scikit_learn_gets_the_targets_first() -> None:
    from sklearn.metrics import r2_score

    outputs, targets = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 3.0])
    expected = r2_score(targets, outputs)
    assert expected != r2_score(outputs, targets)
    assert own(metric=r2_score).metric_of(outputs, targets) == expected
    plain = own(metric=lambda outputs, targets: outputs[2] - targets[2])
    assert plain.metric_of(outputs, targets) == 1.0


class Tensor(np.ndarray):
    """As a framework's tensors are."""

    def numpy(self) -> Any:
        return np.asarray(self)


def mean_of(losses: Any, count: Any = None) -> Any:
    return np.asarray(np.sum(losses) / (losses.size if count is None else count)).view(Tensor)


def test_a_loss_whose_count_differs_between_examples_is_seen_though_halves_have_the_same() -> None:
    outputs, targets = np.linspace(0, 1, 32), np.zeros(32, int)
    targets[[3, 4, 20, 29]] = 1  # two in each half

    def over_all(outputs: Any, targets: Any) -> Any:
        return mean_of((outputs - targets) ** 2)

    def over_positives(outputs: Any, targets: Any) -> Any:
        return mean_of(((outputs - targets) ** 2)[targets == 1], max(1, targets.sum()))

    def by_a_fixed_batch(outputs: Any, targets: Any) -> Any:
        return mean_of((outputs - targets) ** 2, 32)

    assert uneven(over_all, outputs, targets) == ""
    assert "16 equal parts" in uneven(over_positives, outputs, targets)
    assert "2 equal parts" in uneven(by_a_fixed_batch, outputs, targets)
    text = uneven(over_all, outputs[:, None], targets)  # each with each
    assert "(32, 1)" in text and "(32,)" in text


def test_several_outputs_want_a_loss_and_a_metric_of_their_own() -> None:
    several = {"a": np.zeros((2, 4)), "b": np.zeros((2, 1))}
    given: list[dict[str, Any]] = [{}, {"loss": len}, {"train": (X, (Y, Y)), "metric": len}]
    calls = [partial(own(**fields).check_outputs, several) for fields in given]
    fine = own(loss=len, metric=len)
    fine.check_outputs(several)
    calls.append(partial(fine.check_outputs, {**several, "b": np.zeros((1, 2))}))
    says("own_workloads", "several outputs", refusals(*calls, of=ValueError))


def test_a_metric_gets_structures_of_all_outputs_and_targets() -> None:
    def metric(outputs: Any, targets: Any) -> float:
        return float(np.max(outputs["a"] - targets[0]))

    inputs = np.arange(1200.0)
    workload = own(test=(inputs, (inputs * 0, inputs)), metric=metric)
    assert workload.measure(lambda x: {"a": x, "b": (x, x)}) == 1199


def test_it_reaches_another_process_by_files_whose_arrays_are_mapped(tmp_path: Path) -> None:
    sent = own(torch=lambda: "built", learning_rate=0.25)
    sent.leave(tmp_path / "there")
    found = Workload.load(tmp_path / "there")
    assert found.torch is not None and found.torch() == "built"
    assert (found.name, found.learning_rate) == ("own", 0.25)
    assert np.array_equal(found.train.inputs, X) and not found.train.inputs.flags.writeable
    own(train=Pairs()).leave(tmp_path / "dataset")
    assert len(Workload.load(tmp_path / "dataset").train) == 7


def test_a_model_is_tried_again_once_a_value_that_its_builder_uses_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: dict[str, Any] = {}
    text = "class Net:\n    def __init__(self): self.width = width\ndef build(): return Net()"
    exec(f"width = 32\n{text}", names)
    tried: list[int] = []

    def trial_of(spec: RunSpec) -> Sketch:
        tried.append(names["build"]().width)
        return Sketch(parameters=tried[-1])

    monkeypatch.setattr(trial, "tried", trial_of)
    spec = RunSpec(workload=own(torch=names["build"]), framework="torch")
    assert [trial.sketch(spec).parameters for _ in range(3)] == [32, 32, 32]
    names["width"] = 512
    assert [trial.sketch(spec).parameters for _ in range(2)] == [512, 512]
    assert tried == [32, 512]


def test_a_file_is_run_for_the_workload_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "models.py"
    file.write_text(
        "from course_lib import Workload\n"
        "mine = Workload('mine', ([1.0], [0]), ([1.0], [0]), torch=object)\n"
    )
    assert workloads.named(f"{file}:mine") == "mine"
    assert "mine" in workloads.OWN
    with pytest.raises(SpecError, match=r"other; .* mine"):
        workloads.named(f"{file}:other")
    file.write_text("1 / 0")
    with pytest.raises(SpecError, match="ZeroDivisionError"):
        workloads.named(f"{file}:mine")
    (tmp_path / "a_neighbour.py").write_text("def build(): pass")
    imports = "from course_lib import Workload\nfrom a_neighbour import build\n"
    file.write_text(f"{imports}near = Workload('near', ([1.0], [0]), ([1.0], [0]), torch=build)")
    monkeypatch.chdir(tmp_path)
    assert workloads.named("models.py:near") == "near"
    assert sys.path[0] == str(tmp_path) and sys.path.count(sys.path[0]) == 1
    with pytest.raises(SpecError, match="no file"):
        workloads.named(f"{tmp_path}/nothing.py:mine")
