"""Data to train and to test with: inputs and their targets, example by example, in structures of
arrays.

A structure is an array, or a framework's tensor, or a dict, tuple or list, named tuples too, of
structures. Each array in it is a leaf. The functions for structures serve both frameworks, and
import neither.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.errors import SpecError, trying
from course_lib.record import pickles
from course_lib.record.progress import Line
from course_lib.text import amount

OTHERS = {
    "collate_fn": "a DataLoader makes batches, and so does each run: give its dataset, "
    "loader.dataset",
    "iloc": "of a table give arrays: (frame[inputs].to_numpy(), frame[target].to_numpy())",
}
"""What tells a kind of data that is not taken as it is -> what to give in its place."""

KINDS = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}
READ = 2**31  # bytes of examples that are read into memory
SEVERAL = "a list is one array; several arrays are a tuple or a dict"

Tree = Any
"""An array or a tensor, or a structure of them."""

NOTHING: tuple[Tree, Tree] = ((), ())
Pair = tuple[Tree, Tree]
"""Inputs and their targets: arrays (count, *shape of one), or structures of such arrays."""


# --- structures ---


def mapped(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The same structure, with what a function makes of each leaf, and of those of others that have
    the same structure.
    """
    if isinstance(tree, dict):
        every = tree, *others
        return type(tree)({key: mapped(function, *(each[key] for each in every)) for key in tree})
    if isinstance(tree, (tuple, list)):
        parts = (mapped(function, *each) for each in zip(tree, *others, strict=True))
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *others)


def leaves(tree: Tree, name: str = "") -> dict[str, Any]:
    """Name -> leaf, such as `inputs['title']`, if `name` is that of the structure."""
    if not isinstance(tree, (dict, tuple, list)):
        return {name: tree}
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {n: x for key, part in parts for n, x in leaves(part, f"{name}[{key!r}]").items()}


def first_leaf(tree: Tree) -> Any:
    """The first leaf."""
    return next(iter(leaves(tree).values()))


def numbered(tree: Tree) -> Tree:
    """The same structure, with the number of each leaf in its place."""
    numbers = itertools.count()
    return mapped(lambda _: next(numbers), tree)


def shapes(tree: Tree) -> Any:
    """The same structure, with the shape of each leaf in its place: to be shown."""
    return mapped(lambda leaf: tuple(leaf.shape), tree)


def cut(split: Callable[[Any, int], Any], tree: Tree, count: int) -> Iterator[Tree]:
    """A batch in `count` parts. `split(leaf, count)` are the parts of a leaf, as of
    `torch.tensor_split` and `tf.split`.
    """
    parts = mapped(lambda leaf: iter(split(leaf, count)), tree)
    return (mapped(next, parts) for _ in range(count))


# --- examples ---


class Examples:
    """Inputs and targets that belong together.

    `given` is a pair (inputs, targets), or a dataset whose items are such pairs, each of one
    example. The inputs are an array of numpy, PyTorch or TensorFlow, or a list of numbers; or
    several arrays of the same length: a tuple or a dict of arrays, which may hold further tuples
    and dicts. So are the targets. Floats become float32, and whole numbers int64. Booleans stay
    what they are, unless they are the only array of the targets: those become the classes 0 and 1.

    A dataset with a length and an i-th item, such as PyTorch's map-style datasets, may be larger
    than the memory: each task has a copy of it, and asks it for the items of each batch. Here only
    the first item is looked at. A dataset that can only be iterated, such as a `tf.data.Dataset` or
    PyTorch's `IterableDataset`, is read here, once, into arrays. `examples`: how many items of it
    are read at most; needed if it has no length. All tasks read the same arrays.

    Raises `SpecError` about `field` if there are no examples, if there are not as many targets as
    inputs, if a number is NaN or infinite, or if more than 2 GiB would be read.
    """

    def __init__(self, given: Any, field: str = "examples", examples: int | None = None) -> None:
        kind = type(given).__name__
        if cure := next((OTHERS[mark] for mark in OTHERS if hasattr(given, mark)), None):
            raise SpecError(field, kind, cure)
        if iterable(given):
            given = _read(given, field, examples)
        if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
            text = "(inputs, targets), or a dataset with a length whose items are such pairs"
            raise SpecError(field, kind, text)
        pair = isinstance(given, (tuple, list)) and len(given) == 2
        self._dataset = None if pair else given
        self.inputs, self.targets = looked_at = _pair(given, field) if pair else NOTHING
        if not pair:
            with trying("its first item cannot be read", partial(SpecError, field, kind)):
                first = given[0]
            looked_at = mapped(lambda each: each[None], _pair(first, field))
        every = leaves(looked_at[0], "inputs") | leaves(looked_at[1], "targets")
        counts = {name: len(each) if each.ndim else 0 for name, each in every.items()}
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{count} {name}" for name, count in counts.items())
            raise SpecError(field, shown, f"each input has one target ({SEVERAL})")
        self._count = counts.popitem()[1] if pair else len(given)
        if not self._count:
            raise SpecError(field, "no examples", f"at least one example ({SEVERAL})")
        for name, values in every.items():
            finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if not finite.all():
                where = f"{name}[{int(finite.argmin())}]"
                raise SpecError(field, where, "it holds NaN or infinity; only finite numbers do")

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        kinds = mapped(lambda each: f"{each.dtype}{list(each.shape[1:])}", self.take([0]))
        shown = " -> ".join(str(kind).replace("'", "") for kind in kinds)
        return f"Examples({len(self):,} of {shown})"

    def take(self, indices: Sequence[int] | np.ndarray | slice) -> Pair:
        """These examples, in this order."""
        if self._dataset is None:
            its = operator.itemgetter(indices)
            return mapped(its, self.inputs), mapped(its, self.targets)
        chosen = range(len(self))[indices] if isinstance(indices, slice) else indices
        items = (_pair(self._dataset[int(i)]) for i in chosen)
        pair: Pair = mapped(lambda *each: np.stack(each), *items)
        return pair

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
        names = numbered(pair := (self.inputs, self.targets))
        mapped(lambda name, each: np.save(folder / f"{name}.npy", each), names, pair)
        kept = pickles.dumps((self._dataset, self._count, names))
        (folder / "examples.pickle").write_bytes(kept)

    @classmethod
    def load(cls, folder: Path) -> Examples:
        """The examples that `leave` wrote. Arrays stay in the files, and come into memory as they
        are read: once for all the processes that read them.
        """
        examples, kept = cls.__new__(cls), (folder / "examples.pickle").read_bytes()
        examples._dataset, examples._count, names = pickles.loads(kept)
        its = mapped(lambda name: np.load(folder / f"{name}.npy", mmap_mode="r"), names)
        examples.inputs, examples.targets = mapped(lambda array: array.view(np.ndarray), its)
        return examples


def iterable(given: Any) -> bool:
    """Return whether a dataset can only be read from its beginning to its end. (PyTorch's
    `IterableDataset` has a method for the i-th item, which raises an error.)
    """
    torchs = "IterableDataset" in [kind.__name__ for kind in type(given).__mro__]
    return hasattr(given, "__iter__") and (torchs or not hasattr(given, "__getitem__"))


def _read(given: Any, field: str, most: int | None) -> Pair:
    """The examples of a dataset that is read once, `most` of them at most, as arrays."""
    kind = type(given).__name__
    count = min(filter(None, (operator.length_hint(given), most)), default=0)
    if not count:
        raise SpecError(field, kind, "its length is not known: Workload(..., examples=N) reads N")
    parts = leaves(getattr(given, "element_spec", ())).values()  # of a tf.data.Dataset
    if parts and all(part.shape.rank and part.shape[0] is None for part in parts):
        cure = "give .unbatch() of batches; pad sequences, and fix their length by tf.ensure_shape"
        raise SpecError(field, f"{kind} of items without a length", cure)
    if _batched(given):
        shown = ", ".join(str(tuple(part.shape)) for part in parts)
        text = f"an item of the {kind}, of shapes {shown}, is one example; of batches give "
        warnings.warn_explicit(f"{text}.unbatch()", UserWarning, field, 1)
    items, first = list[Pair](), None
    with Line(lambda: f"{field}: {len(items):,} of {count:,} examples are read") as line:
        for item in itertools.islice(given, count):
            items.append(_pair(item, field))
            form = mapped(lambda each: (each.dtype.name, each.shape), items[-1])
            size = count * sum(each.nbytes for each in leaves(items[-1]).values())
            if size > READ:
                cure = f"at most {amount(READ)}: examples=N reads fewer"
                raise SpecError(field, f"{count:,} examples, {amount(size)}", cure)
            first = first or form
            if form != first:
                text = f"as all before it, {first}: pad sequences, and give .unbatch() of batches"
                raise SpecError(field, f"item {len(items) - 1}, {form}", text)
            line()
    return mapped(lambda *each: np.stack(each), *items) if items else ([], [])


def _batched(dataset: Any) -> bool:
    """Return whether a `tf.data.Dataset` makes batches of a fixed size, maybe meant as examples."""
    kind = type(dataset).__name__
    if "Batch" in kind or any(each in kind for each in ("Unbatch", "FlatMap", "Interleave")):
        return "Batch" in kind
    return hasattr(dataset, "_input_dataset") and _batched(dataset._input_dataset)


def _pair(given: Any, field: str = "examples") -> Pair:
    """A pair, or an item of a dataset, as arrays."""
    if not (isinstance(given, (tuple, list)) and len(given) == 2):
        text = "(inputs, targets), or a dataset whose items are pairs (input, target)"
        raise SpecError(field, f"items of type {type(given).__name__}", text)
    inputs, targets = given
    inputs, targets = _arrays(inputs, "inputs", field), _arrays(targets, "targets", field)
    if isinstance(targets, np.ndarray) and targets.dtype == bool:
        targets = targets.astype(np.int64)
    return inputs, targets


def _arrays(values: Any, name: str, field: str) -> Tree:
    """Values of any framework as arrays of float32, int64 or bool, in dicts and tuples."""
    if isinstance(values, Mapping):
        return {key: _arrays(each, f"{name}[{key!r}]", field) for key, each in values.items()}
    if isinstance(values, tuple):
        parts = [_arrays(each, f"{name}[{k}]", field) for k, each in enumerate(values)]
        return type(values)(*parts) if hasattr(values, "_fields") else tuple(parts)
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    error = partial(SpecError, field, f"{name}, a {type(values).__name__}")
    with trying(f"is no array ({SEVERAL})", error):
        array = np.asarray(values.numpy() if hasattr(values, "numpy") else values)
    if array.dtype.kind not in KINDS:
        raise SpecError(field, f"{name} of {array.dtype}", "numbers: floats or whole numbers")
    return array.astype(KINDS[array.dtype.kind], copy=False)
