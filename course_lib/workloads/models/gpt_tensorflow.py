"""The model of `tiny_gpt` in Keras; `gpt_torch` is the same in PyTorch, line by line."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

EPSILON = 1e-5  # of a layer normalisation: PyTorch's; that of Keras is 1e-3


def gpt(matrices: Sequence[np.ndarray], blocks: int, heads: int) -> keras.Sequential:
    """Characters (batch, length) -> logits (batch, length, characters), with initial `matrices` in
    the order of `tiny_gpt.shapes`; length is the context.
    """
    (characters, width), (context, _) = matrices[0].shape, matrices[1].shape
    model = keras.Sequential(
        [
            keras.Input((context,), dtype="int64"),
            Embedding(characters, context, width),
            *[Block(width, heads) for _ in range(blocks)],
            layers.LayerNormalization(epsilon=EPSILON),
            layers.Dense(characters, use_bias=False),
        ]
    )
    given = iter(matrices)
    for weight in model.weights:
        if len(weight.shape) == 2:
            weight.assign(next(given))
    return model


class Embedding(keras.Layer):
    """A vector for each character and one for its place, added."""

    def __init__(self, characters: int, context: int, width: int) -> None:
        super().__init__()
        self.characters = layers.Embedding(characters, width)
        self.places = layers.Embedding(context, width)

    def call(self, characters: Any) -> Any:
        return self.characters(characters) + self.places(ops.arange(characters.shape[1]))


class Block(keras.Layer):
    """Attention to the characters so far, then two dense layers for each place; what either of them
    makes is added to its input.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = layers.LayerNormalization(epsilon=EPSILON)
        self.queries_keys_values = layers.Dense(3 * width)
        self.attended = layers.Dense(width)
        self.before_dense = layers.LayerNormalization(epsilon=EPSILON)
        self.wider = layers.Dense(4 * width)
        self.back = layers.Dense(width)

    def call(self, values: Any) -> Any:
        values = values + self.attention(self.before_attention(values))
        wide = ops.gelu(self.wider(self.before_dense(values)), approximate=False)
        return values + self.back(wide)

    def attention(self, values: Any) -> Any:
        """softmax(Q K^T / sqrt(size of a head)) V in each head, with no weight on what comes later
        than a place itself; Q, K and V are (batch, length, heads, size of a head).
        """
        _, length, width = values.shape
        shape = (-1, length, self.heads, 3, width // self.heads)
        queries, keys, later = ops.unstack(
            ops.reshape(self.queries_keys_values(values), shape), 3, 3
        )
        mixed = ops.dot_product_attention(queries, keys, later, is_causal=True)
        return self.attended(ops.reshape(mixed, (-1, length, width)))
