"""Losses and metrics: functions of outputs and targets, each a mean, or a sum and a count."""

import contextlib
import inspect
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from course_lib.errors import trying
from course_lib.workloads.trees import Tree, first_leaf, mapped, shapes

LOSSES = ("cross_entropy", "mean_squared_error", "next_token")
IGNORED = -100  # a token that `next_token` does not count, as in PyTorch
LOSS = "neither one number, the mean over the batch, nor (sum, count)"
TARGETS_FIRST = ("y_true", "labels", "label", "targets", "target")

Metric = Callable[[Any, Any], Any]
"""How good outputs (examples, ...) are for targets (examples, ...), both numpy arrays or structures
of them: one number, or a (sum, count), which is added to those of other examples."""


def accuracy(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """How many targets, classes from 0 on, have the largest output, and of how many; those that are
    `IGNORED` do not count.
    """
    hits = np.argmax(outputs, axis=-1) == targets
    return float(np.sum(hits)), float(np.sum(targets != IGNORED))


def mean_squared_error(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """Sum and count of the squared differences. Raises `ValueError` if the shapes differ."""
    if outputs.shape != targets.shape:  # numpy would broadcast, and compare each with each
        raise ValueError("outputs and targets must have the same shape: give a metric=")
    return np.sum((outputs - targets) ** 2, dtype=float), outputs.size


METRICS: dict[str, Metric] = {"accuracy": accuracy, "mean_squared_error": mean_squared_error}


def quotient(values: Sequence[Any]) -> float:
    """The value of a metric: a number, or the quotient of the sums of all (sum, count)."""
    if not isinstance(values[0], tuple):
        return float(values[0])
    total, count = np.sum(values, axis=0, dtype=float)
    return float(total / (count or 1))


def in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """A loss or metric as a function of outputs and targets. One whose first parameter is called
    `y_true` or the like, as in Keras and scikit-learn, gets the targets first.
    """
    first = ""
    with contextlib.suppress(ValueError, TypeError):  # of a function in C
        first = next(iter(inspect.signature(function).parameters), "")
    if first not in TARGETS_FIRST:
        return function
    return lambda outputs, targets: function(targets, outputs)


def uneven(loss: Callable[..., Any], outputs: Tree, targets: Tree) -> str:
    """Why a loss is no mean over examples, or "". `loss(outputs, targets)` is a framework's tensor
    for some of these examples: a mean, or sum and count.
    """
    pairs = len(first_leaf(targets)) // 2

    def mean(parts: int) -> Any:
        """That of equal parts of the examples."""
        size = 2 * pairs // parts
        cuts = (itemgetter(slice(k * size, (k + 1) * size)) for k in range(parts))
        with trying(f"its loss fails for {size} examples"):
            return np.mean([loss(*mapped(cut, (outputs, targets))).numpy() for cut in cuts], axis=0)

    if not pairs or np.any((whole := mean(1)) != mean(1)):
        return ""  # too few, or it draws random numbers
    means = {parts: mean(parts) for parts in (2, pairs)}
    off = [n for n, each in means.items() if not np.allclose(whole, each, rtol=1e-4, atol=1e-7)]
    if not off:
        return ""
    if whole.ndim:
        add = "those of the parts of a batch do not add up: return the sum, not the mean"
        return f"Its loss returns (sum, count), and {add}."
    return (
        f"Its loss is no mean over examples: for {2 * pairs} of them, outputs of shape "
        f"{shapes(outputs)} with targets of {shapes(targets)}, it is {whole:.4g}, and for "
        f"{off[0]} equal parts of them {means[off[0]]:.4g} on average. So a batch that is divided "
        "gives other gradients than a whole one. If your loss divides by something else than the "
        "examples that it is given, such as by the number of tokens that are no padding or by a "
        "fixed batch size, let it return (sum, count). If it compares examples with each other, "
        "which it also does where shapes broadcast, that is no cure."
    )
