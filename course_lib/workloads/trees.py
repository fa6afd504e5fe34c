"""Structures of arrays, or of a framework's tensors: one of them, or dicts, tuples and lists, named
tuples too, of structures. Each array in one is a leaf. These few functions serve both frameworks,
and import neither.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

Tree = Any
"""An array or a tensor, or a structure of them."""


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
