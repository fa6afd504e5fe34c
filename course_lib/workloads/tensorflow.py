"""A workload's model in TensorFlow: Keras layers that start from the given weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from course_lib.workloads.model import Conv, Dense, Flatten, Layer, Workload


def build(workload: Workload, seed: int) -> keras.Sequential:
    """The model, which turns images (batch, *input shape) into logits (batch, classes).

    Call it in a strategy's scope, which places its variables.
    """
    weights = iter(workload.initial_weights(seed))
    return keras.Sequential(
        [keras.Input(workload.input_shape), *(_layer(layer, weights) for layer in workload.layers)]
    )


def _layer(layer: Layer, weights: Any) -> Any:
    if isinstance(layer, Flatten):
        return keras.layers.Flatten()
    options = {
        "activation": "relu" if layer.relu else None,
        "kernel_initializer": _given(next(weights)),
        "bias_initializer": _given(next(weights)),
    }
    match layer:
        case Dense(units):
            return keras.layers.Dense(units, **options)
        case Conv(filters, size):
            return keras.layers.Conv2D(filters, size, **options)


def _given(values: np.ndarray) -> Callable[..., Any]:
    """An initializer that returns these values.

    A variable that starts right need not be filled with random numbers first.
    """
    return lambda shape, dtype=None: tf.constant(values)


def variables_of(model: keras.Sequential) -> list[Any]:
    """The model's trained `tf.Variable`s, as the strategy made them."""
    return [variable.value for variable in model.trainable_variables]


def weights_of(model: keras.Sequential) -> list[np.ndarray]:
    """This process's own copy of the weights."""
    strategy = tf.distribute.get_strategy()
    return [
        strategy.experimental_local_results(variable)[0].numpy() for variable in variables_of(model)
    ]


def loss_of(logits: Any, labels: Any) -> Any:
    """Mean softmax cross entropy of logits (batch, classes) and labels (batch,)."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


def accuracy(model: keras.Sequential, workload: Workload) -> float:
    """The share of test images that the model gets right."""
    return float(
        np.mean(np.argmax(model(workload.x_test, training=False), axis=-1) == workload.y_test)
    )
