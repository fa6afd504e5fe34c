"""Models as data: layers and their initial weights. Each framework builds the same model from them.
And a sketch: what has to be known of a model before a run, its size, its work, and how it is cut.

Weights are a list of float32 arrays in the order and layout of Keras: a kernel, then its bias,
layer by layer. A dense kernel is (inputs, outputs), a convolution's is (height, width, input
channels, output channels); images are (height, width, channels).
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


def glorot(layers: Iterable[Layer], inputs: Shape, seed: int, gain: float = 1) -> list[np.ndarray]:
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


# --- sketches ---


class Sketch(NamedTuple):
    """Facts of a model that a run needs before it begins.

    `parameters`: trained numbers. `parts`: how many parts with weights follow each other, or why a
    pipeline cannot be cut between its parts. `units`: what each layer that tensor parallelism cuts
    has to share out among workers, such as `(64, "hidden unit")`, or why there is no such layer.
    `notes`: what its strategy should say about it. `uneven`: what to say where a batch is divided,
    if its loss is no mean over examples. `synchronized`: whether replicas exchange
    something in the middle of its forward pass. `flops`: floating-point operations that train on
    one example, see `training_flops`; 0 if there are none to count. `activations`: bytes that the
    forward pass of one example keeps for the backward pass, in the run's precision; 0 if that is
    not known. `copies`: those that it keeps for any number of examples: weights in 16 bits.
    `alone`: why it cannot be trained on one example at a time, such as an error of batch
    normalisation; "" if it can. `sparse`: the parameters whose gradients are sparse tensors.
    """

    parameters: int
    parts: int | str = 0
    units: tuple[tuple[int, str], ...] | str = ()
    notes: tuple[str, ...] = ()
    uneven: str = ""
    synchronized: bool = False
    flops: int = 0
    activations: int = 0
    copies: int = 0
    alone: str = ""
    sparse: tuple[str, ...] = ()

    def kept(self, examples: int) -> int:
        """Bytes that the forward pass of so many examples keeps for the backward pass."""
        return examples * self.activations + self.copies


def training_flops(forward: int, first: int = 0) -> int:
    """Floating-point operations (FLOPs) of a forward and a backward pass, from those of the forward
    pass.

    What counts are matrix products, convolutions and attention, whose multiplication and addition
    are two operations; all else is little beside them. The backward pass has a product for the
    gradient of the inputs and one for that of the weights: twice as many. `first`: those of the
    first layer's forward pass, if the examples are its inputs, as nobody needs their gradient.
    Source: Chowdhery et al., "PaLM", 2022, appendix B.
    """
    return 3 * forward - first


def of_layers(layers: Sequence[Layer], inputs: Shape, precision: str) -> Sketch:
    """The sketch of a model of layers, for examples of shape `inputs`.

    A dense kernel is used once for an example, a convolution's once for each pixel of what it
    makes. The backward pass needs the inputs and what each layer with weights makes of them. In 16
    bits it also needs the kernels, except for the first one, which would give the gradient of the
    inputs; and the logits again in float32, for the loss.
    """
    made = [(kernel, output) for kernel, output in passed(layers, inputs) if kernel]
    kernels = [kernel for kernel, _ in made]
    products = [math.prod(kernel) * math.prod(output[:-1]) for kernel, output in made]
    kept = math.prod(inputs) + sum(math.prod(output) for _, output in made)
    units = [(layer.units, "hidden unit") for layer in layers if isinstance(layer, Dense)]
    pairs = len(units) == len(layers) and len(units) % 2 == 0
    half = precision != "float32"
    return Sketch(
        parameters=sum(map(math.prod, shapes(layers, inputs))),
        parts=len(kernels),
        units=tuple(units[::2]) if pairs else (),
        flops=training_flops(2 * sum(products), 2 * products[0]),
        activations=2 * (kept + kernels[-1][-1]) if half else 4 * kept,
        copies=2 * sum(map(math.prod, kernels[1:])) if half else 0,
    )
