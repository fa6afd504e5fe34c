"""Mixed precision in TensorFlow: Keras' policies, and what a graph does about gradients that
overflow in float16.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.precision import LossScale


@contextlib.contextmanager
def policy(precision: str) -> Iterator[None]:
    """Layers that are made in the block compute in this precision, and have float32 variables: for
    float16 that is Keras' policy `mixed_float16`. Layers with a policy or dtype of their own keep
    it.
    """
    before = keras.config.dtype_policy()
    if precision != "float32":
        keras.config.set_dtype_policy(f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def norm(gradients: Sequence[Any]) -> Any:
    """The norm over all entries of the gradients: infinite or NaN if one of them is."""
    return tf.sqrt(sum(tf.reduce_sum(tf.square(each)) for each in gradients))


def until_finite(
    compute: Callable[[Any], list[Any]], scale: Any, many: int, spec: RunSpec
) -> list[Any]:
    """The loss scale that was used, and what `compute` returns for it: a loss, gradients, as `many`
    as there are, and more. Unless the scale is fixed, gradients that overflow are computed again
    with half of it, down to 1/2.
    """

    def overflow(scale: Any, loss: Any, *others: Any) -> Any:
        return (scale >= 1) & ~tf.math.is_finite(norm(others[:many]))

    def again(scale: Any, *last: Any) -> list[Any]:
        return [scale / 2, *compute(scale / 2)]

    first = [scale, *compute(scale)]
    if not LossScale(spec).dynamic:
        return first
    return list(tf.while_loop(overflow, again, first, parallel_iterations=1))


def seen(gradients: Sequence[Any]) -> Any:
    """The norm of gradients and the share of their entries that are exactly zero, float64 (2,)."""
    zeros = sum(tf.reduce_sum(tf.cast(tf.equal(each, 0), tf.float64)) for each in gradients)
    entries = sum(each.shape.num_elements() for each in gradients)
    return tf.stack([tf.cast(norm(gradients), tf.float64), zeros / entries])
