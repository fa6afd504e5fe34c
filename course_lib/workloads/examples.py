"""Data to train and to test with: inputs and their targets, example by example."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from course_lib.errors import SpecError

OTHERS = {
    "as_numpy_iterator": "a tf.data.Dataset has no i-th example; make arrays of it: "
    "x, y = map(np.stack, zip(*dataset.as_numpy_iterator())), with .unbatch() if it is batched",
    "collate_fn": "a DataLoader makes batches, and so does each run: give its dataset, "
    "loader.dataset",
    "iloc": "of a table give arrays: (frame[inputs].to_numpy(), frame[target].to_numpy())",
}
"""What tells a kind of data that is not taken as it is -> what to give in its place."""

Pair = tuple[np.ndarray, np.ndarray]
"""Inputs (count, *shape of one) and their targets (count, *shape of one)."""


class Examples:
    """Inputs and targets that belong together.

    `given` is a pair of arrays of the same length (of numpy, PyTorch or TensorFlow, or lists), or a
    dataset: anything with a length whose i-th item is a pair (input, target), such as PyTorch's
    map-style datasets. Floats become float32, and whole numbers int64. Raises `SpecError` about
    `field` if there are none, if there are not as many targets as inputs, or if a number is NaN or
    infinite. Of a dataset, which may be larger than the memory, only the first example is looked
    at. All tasks read the same arrays, but each has a copy of a dataset.
    """

    def __init__(self, given: Any, field: str = "examples") -> None:
        pair = isinstance(given, (tuple, list)) and len(given) == 2
        kind = type(given).__name__
        if cure := next((OTHERS[mark] for mark in OTHERS if hasattr(given, mark)), None):
            raise SpecError(field, kind, cure)
        if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
            text = "(inputs, targets), or a dataset with a length whose items are such pairs"
            raise SpecError(field, kind, text)
        self._dataset = None if pair else given
        if not pair and len(given):
            try:
                first = given[0]
            except Exception as error:
                problem = f"its first item cannot be read ({type(error).__name__}: {error})"
                raise SpecError(field, kind, problem) from None
            if not (isinstance(first, (tuple, list)) and len(first) == 2):
                text = "(inputs, targets), or a dataset whose items are pairs (input, target)"
                raise SpecError(field, f"items of type {type(first).__name__}", text)
        if pair:
            self.inputs, self.targets = (_array(values, field) for values in given)
            if len(self.inputs) != len(self.targets):
                counts = f"{len(self.inputs)} inputs, {len(self.targets)} targets"
                raise SpecError(field, counts, "each input has one target")
        if not len(self):
            raise SpecError(field, "no examples", "at least one example")
        looked_at = self.take(slice(None) if pair else [0])
        for what, values in zip(("inputs", "targets"), looked_at, strict=True):
            finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if not finite.all():
                where = f"{what}[{int(finite.argmin())}]"
                raise SpecError(field, where, "it holds NaN or infinity; only finite numbers do")

    def __len__(self) -> int:
        return len(self.inputs if self._dataset is None else self._dataset)

    def __repr__(self) -> str:
        kinds = (f"{values.dtype}{list(values.shape[1:])}" for values in self.take([0]))
        return f"Examples({len(self):,} of {' -> '.join(kinds)})"

    def range_of_targets(self, ignored: int | None = None) -> tuple[float, float]:
        """The least and the largest target that is not `ignored`; of a dataset, (0, 0)."""
        if self._dataset is not None:
            return 0, 0
        targets = self.targets if ignored is None else self.targets[self.targets != ignored]
        return (targets.min(), targets.max()) if targets.size else (0, 0)

    def take(self, indices: Sequence[int] | np.ndarray | slice) -> Pair:
        """These examples, in this order."""
        if self._dataset is None:
            return self.inputs[indices], self.targets[indices]
        chosen = range(len(self))[indices] if isinstance(indices, slice) else indices
        inputs, targets = zip(*(self._dataset[int(i)] for i in chosen), strict=True)
        return np.stack(list(map(_array, inputs))), np.stack(list(map(_array, targets)))

    def spread(self, count: int) -> np.ndarray:
        """Indices of so many examples, from the first to the last at equal distances."""
        return np.linspace(0, len(self) - 1, min(count, len(self))).astype(int)

    def batches(self, size: int = 1000) -> Iterator[Pair]:
        """All examples in their order, `size` at a time."""
        return (self.take(slice(i, i + size)) for i in range(0, len(self), size))

    def leave(self, folder: Path) -> None:
        """Write the examples into a new folder: arrays in a form that many processes can map into
        their memory without a copy.
        """
        folder.mkdir(parents=True)
        if self._dataset is None:
            np.save(folder / "inputs.npy", self.inputs)
            np.save(folder / "targets.npy", self.targets)
        else:
            (folder / "dataset.pickle").write_bytes(cloudpickle.dumps(self._dataset))

    @classmethod
    def found(cls, folder: Path) -> Examples:
        """What `leave` wrote. Arrays stay in the files, and come into memory as they are read: once
        for all the processes that read them.
        """
        examples = cls.__new__(cls)
        dataset = folder / "dataset.pickle"
        examples._dataset = pickle.loads(dataset.read_bytes()) if dataset.exists() else None
        if examples._dataset is None:
            names = ("inputs", "targets")
            examples.inputs, examples.targets = (
                np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in names
            )
        return examples


def _array(values: Any, field: str = "examples") -> np.ndarray:
    """Values of any framework as float32 or int64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        array = np.asarray(values.numpy() if hasattr(values, "numpy") else values)
    except Exception as error:
        problem = f"cannot be made an array ({type(error).__name__}: {error})"
        raise SpecError(field, type(values).__name__, problem) from None
    if array.dtype.kind not in "fiub":
        raise SpecError(field, str(array.dtype), "numbers: floats or whole numbers")
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)
