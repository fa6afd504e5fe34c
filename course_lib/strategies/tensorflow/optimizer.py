"""The optimizer of a run in TensorFlow's graphs, and what it does about float16. The rules are in
`strategies/optimizers.py`; the state are variables that lie where those of the model do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import optimizers
from course_lib.strategies.precision import LossScale


class Optimizer(optimizers.Optimizer):
    """Updates variables, in a graph. Whoever holds a variable holds its state."""

    def state_of(self, variable: Any) -> list[Any]:
        """The state of a variable, all zeros, to be called where the variable was made."""
        count = optimizers.STATE[self.spec.optimizer]
        return [tf.Variable(tf.zeros(variable.shape), trainable=False) for _ in range(count)]

    def at(self, step: Any, updates: Any) -> tuple[Any, list[Any]]:
        """The learning rate of a step and the corrections after so many `updates`, for `apply`."""
        rate = float(self.rates[0])
        if not self.constant:
            rate = tf.gather(tf.constant(self.rates, tf.float32), step)
        return rate, self.corrections(tf.cast(updates + 1, tf.float32), tf.math.expm1)

    def apply(
        self, variable: Any, gradient: Any, state: Any, now: Any, finite: Any = None
    ) -> list[Any]:
        """Update a variable and its state: the operations that do it. `now`: what `at` returns.
        Nothing changes if the model's gradients are not `finite`.

        Changes are added, each in one operation that locks its variable. So where several workers'
        updates come at the same time, none is lost, though one may not have seen the other.
        """
        rate, corrections = now
        if not state and finite is None:
            return [variable.assign_sub(rate * gradient, read_value=False)]
        value, kept = variable.read_value(), [each.read_value() for each in state]
        changes = self.changes(value, gradient, kept, rate, corrections)
        if finite is not None:
            changes = [tf.where(finite, each, tf.zeros_like(each)) for each in changes]
        return [
            old.assign_add(change, read_value=False)
            for old, change in zip([variable, *state], changes, strict=True)
        ]


# --- gradients in float16 ---


def norm(gradients: Sequence[Any]) -> Any:
    """The norm over all entries of the gradients: infinite or NaN if one of them is."""
    return tf.sqrt(sum(tf.reduce_sum(tf.square(each)) for each in gradients))


def seen(gradients: Sequence[Any]) -> Any:
    """The norm of gradients and the share of their entries that are exactly zero, float64 (2,)."""
    zeros = sum(tf.reduce_sum(tf.cast(tf.equal(each, 0), tf.float64)) for each in gradients)
    entries = sum(each.shape.num_elements() for each in gradients)
    return tf.stack([tf.cast(norm(gradients), tf.float64), zeros / entries])


def until_finite(
    compute: Callable[[Any], list[Any]], scale: Any, many: int, spec: RunSpec
) -> list[Any]:
    """The loss scale that was used, and what `compute` returns for it: a loss, gradients, as `many`
    as there are, and more. Unless the scale is fixed, gradients that overflow are computed again
    with half of it, down to 1/2.
    """

    def overflow(scale: Any, loss: Any, *others: Any) -> Any:
        return (scale >= 1) & ~tf.math.is_finite(norm(others[:many]))

    def halved(scale: Any, *last: Any) -> list[Any]:
        return [scale / 2, *compute(scale / 2)]

    first = [scale, *compute(scale)]
    if not LossScale(spec).dynamic:
        return first
    return list(tf.while_loop(overflow, halved, first, parallel_iterations=1))
