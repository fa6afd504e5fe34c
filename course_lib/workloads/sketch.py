"""What has to be known of a model before a run: its size, its work, and how it can be cut."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from course_lib.workloads.layers import Dense, Layer, Shape, passed, shapes


class Sketch(NamedTuple):
    """What has to be known of a model before a run.

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


def of_layers(layers: Iterable[Layer], inputs: Shape, precision: str) -> Sketch:
    """What the layers of a model say, for examples of shape `inputs`.

    A dense kernel is used once for an example, a convolution's once for each pixel of what it
    makes. The backward pass needs the inputs and what each layer with weights makes of them. In 16
    bits it also needs the kernels, except for the first one, which would give the gradient of the
    inputs; and the logits again in float32, for the loss.
    """
    layers = tuple(layers)
    weights = list(shapes(layers, inputs))
    kernels = [shape for shape in weights if len(shape) > 1]
    made = [(kernel, output) for kernel, output in passed(layers, inputs) if kernel]
    products = [math.prod(kernel) * math.prod(output[:-1]) for kernel, output in made]
    kept = math.prod(inputs) + sum(math.prod(output) for _, output in made)
    dense = [layer for layer in layers if isinstance(layer, Dense)]
    pairs = len(dense) == len(layers) and len(dense) % 2 == 0
    half = precision != "float32"
    return Sketch(
        parameters=sum(map(math.prod, weights)),
        parts=len(kernels),
        units=tuple((layer.units, "hidden unit") for layer in dense[::2]) if pairs else (),
        flops=training_flops(2 * sum(products), 2 * products[0]),
        activations=2 * (kept + kernels[-1][-1]) if half else 4 * kept,
        copies=2 * sum(map(math.prod, kernels[1:])) if half else 0,
    )
