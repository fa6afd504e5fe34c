"""Models as data: layers and their initial weights. Each framework builds the same model from them.

Weights are a list of float32 arrays in the order and layout of Keras: a kernel, then its bias,
layer by layer. A dense kernel is (inputs, outputs), a convolution's is (height, width, input
channels, output channels); images are (height, width, channels).
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Dense:
    """`units` weighted sums of all inputs, each plus a bias; with `relu`, none is negative."""

    units: int
    relu: bool = False

    def kernel(self, inputs: Shape) -> Shape:
        return (inputs[0], self.units)

    def output(self, inputs: Shape) -> Shape:
        return (self.units,)


@dataclass(frozen=True)
class Conv:
    """`filters` square windows of `size` pixels that slide over an image one pixel at a time and
    stay inside it.
    """

    filters: int
    size: int
    relu: bool = False

    def kernel(self, inputs: Shape) -> Shape:
        return (self.size, self.size, inputs[2], self.filters)

    def output(self, inputs: Shape) -> Shape:
        return (inputs[0] - self.size + 1, inputs[1] - self.size + 1, self.filters)


@dataclass(frozen=True)
class Flatten:
    """An image as one row of numbers, channels varying fastest."""

    relu = False

    def kernel(self, inputs: Shape) -> Shape:
        return ()

    def output(self, inputs: Shape) -> Shape:
        return (math.prod(inputs),)


Layer = Dense | Conv | Flatten


def passed(layers: Iterable[Layer], inputs: Shape) -> Iterator[tuple[Shape, Shape]]:
    """The shapes of each layer's kernel, () if it has none, and of what it makes, for one example
    of shape `inputs`.
    """
    for layer in layers:
        kernel, inputs = layer.kernel(inputs), layer.output(inputs)
        yield kernel, inputs


def shapes(layers: Iterable[Layer], inputs: Shape) -> Iterator[Shape]:
    """Shapes of all weights of a model for one example of shape `inputs`."""
    for kernel, _ in passed(layers, inputs):
        if kernel:
            yield kernel
            yield kernel[-1:]


def glorot(
    layers: Iterable[Layer], inputs: Shape, seed: int, gain: float = 1.0
) -> list[np.ndarray]:
    """Initial weights: kernels uniform within `gain` * sqrt(6 / (fan in + fan out)) of zero, biases
    zero.

    Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", 2010.
    """
    generator = np.random.default_rng([0, seed])
    weights = []
    for shape in shapes(layers, inputs):
        weight = np.zeros(shape, np.float32)
        if len(shape) > 1:
            window = math.prod(shape[:-2])  # pixels of a convolution's window, 1 for a dense layer
            limit = gain * math.sqrt(6 / (window * (shape[-2] + shape[-1])))
            generator.random(out=weight, dtype=np.float32)
            weight -= 0.5
            weight *= 2 * limit
        weights.append(weight)
    return weights


def digest(weights: Sequence[np.ndarray]) -> str:
    """A fingerprint of weights, 16 hexadecimal digits: equal only if every float32 is equal to its
    last bit.
    """
    fingerprint = hashlib.sha256()
    for weight in weights:
        fingerprint.update(np.ascontiguousarray(weight, np.float32).data)
    return fingerprint.hexdigest()[:16]
