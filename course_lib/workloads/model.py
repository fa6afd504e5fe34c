"""What is trained, as data: layers, their initial weights, a fingerprint of weights, and Workload,
which adds the examples and says which of them each worker takes in each step. Each framework builds
its own model from these.

Weights are a list of float32 arrays in the order and layout of Keras: a kernel, then its bias,
layer by layer. A dense kernel is (inputs, outputs), a convolution's is (height, width, input
channels, output channels); images are (height, width, channels).
"""

import functools
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

    def kernel(self, inputs: Shape) -> Shape:
        return ()

    def output(self, inputs: Shape) -> Shape:
        return (math.prod(inputs),)


Layer = Dense | Conv | Flatten


def shapes(layers: Iterable[Layer], inputs: Shape) -> Iterator[Shape]:
    """Shapes of all weights of a model for one example of shape `inputs`."""
    for layer in layers:
        if kernel := layer.kernel(inputs):
            yield kernel
            yield kernel[-1:]
        inputs = layer.output(inputs)


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


@dataclass(frozen=True, eq=False)
class Workload:
    """What is trained, whatever trains it.

    `x_*`: float32 in [0, 1], shape (examples, *shape of one example). `y_*`: int64 classes, shape
    (examples,). The loss is the mean softmax cross entropy of the last layer's outputs; the
    optimizer is plain gradient descent, `weight -= learning_rate * gradient`, so that the
    arithmetic shows. `gain` scales the initial weights of `glorot`.
    """

    name: str
    layers: tuple[Layer, ...]
    learning_rate: float
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    gain: float = 1.0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.x_train.shape[1:]

    @property
    def parameters(self) -> int:
        """Exact number of trained numbers."""
        return sum(math.prod(shape) for shape in shapes(self.layers, self.input_shape))

    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """The weights that every run with this seed starts from, in the layout that
        this file describes.
        """
        return glorot(self.layers, self.input_shape, seed, self.gain)

    def batch(
        self, step: int, seed: int, global_batch: int, share: int = 0, of: int = 1
    ) -> np.ndarray:
        """Indices into the training data, shape (examples,): the `share`-th of `of` equal slices of
        a step's global batch. `of` must divide `global_batch`.

        It depends on nothing but its arguments, so every worker finds its own share: all examples
        in shuffled order, then all again in another order, and so on, cut into batches of equal
        size.
        """
        count, examples = global_batch // of, len(self.x_train)
        first = step * global_batch + share * count
        epochs = range(first // examples, (first + count - 1) // examples + 1)
        orders = np.concatenate([_order(examples, seed, epoch) for epoch in epochs])
        return orders[first % examples :][:count]


@functools.lru_cache(maxsize=8)
def _order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the examples in an epoch, not to be changed: it is kept."""
    order = np.random.default_rng([1, seed, epoch]).permutation(examples)
    order.setflags(write=False)
    return order
