"""The multiplications in a graph: all of them, and how many a backward pass needs for each of the
gradients.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any


def products(graph: Any) -> int:
    """Multiplications in a graph's matrix products and convolutions: for each number that they
    make, the terms of the sum that it is. The body of a loop counts once, and what has no fixed
    shape not at all.
    """
    return sum(map(products_of, graph.get_operations()))


def products_of(operation: Any) -> int:
    """Those of one operation."""
    shapes = [tensor.shape for tensor in operation.inputs]
    made = sum(tensor.shape.num_elements() or 0 for tensor in operation.outputs)
    with contextlib.suppress(TypeError, ValueError):  # a size is None
        match operation.type:
            case "MatMul":
                return made * int(shapes[0][0 if operation.get_attr("transpose_a") else 1])
            case "BatchMatMulV2":
                return made * int(shapes[0][-2 if operation.get_attr("adj_x") else -1])
            case "Conv2D" | "Conv3D":
                return made * int(shapes[1][:-1].num_elements())
            case "Conv2DBackpropInput" | "Conv3DBackpropInputV2":
                return int(shapes[2].num_elements()) * int(shapes[1][:-1].num_elements())
            case "Conv2DBackpropFilter" | "Conv3DBackpropFilterV2":
                return int(shapes[2].num_elements()) * made // int(shapes[2][-1])
            case "DepthwiseConv2dNative":
                return made * int(shapes[1][:2].num_elements())
            case "Einsum":
                names = operation.get_attr("equation").decode().partition("->")[0].replace(",", "")
                sizes = dict(zip(names, itertools.chain.from_iterable(shapes), strict=True))
                return math.prod(sizes.values())
            case "PartitionedCall" | "StatefulPartitionedCall":
                return products(operation.graph._get_function(operation.get_attr("f").name).graph)
    return 0


def backward_shares(loss: Any, gradients: Sequence[Any]) -> list[float]:
    """Each gradient's share of the backward pass: of the multiplications, those that it needs and
    that neither the loss nor the gradients of later variables need, which are computed before it.
    Equal shares if there are no multiplications.
    """
    seen: set[Any] = set()
    needed([loss], seen)
    counts = [needed([gradient], seen) for gradient in reversed(gradients)][::-1]
    counts = counts if any(counts) else [1] * len(counts)
    return [count / sum(counts) for count in counts]


def needed(tensors: Iterable[Any], seen: set[Any]) -> int:
    """The multiplications on the way to these tensors, without those of the operations that have
    been `seen`, to which it adds.
    """
    count, behind = 0, [tensor.op for tensor in tensors]
    while behind:
        operation = behind.pop()
        if operation not in seen:
            seen.add(operation)
            count += products_of(operation)
            behind += [each.op for each in operation.inputs]
    return count
