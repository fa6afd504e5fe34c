"""Facts that the graph of a training step tells: the memory that its tensors take up, and the
multiplications in it.

The tensors of a graph exist only while it runs, out of Python's sight. So their bytes are estimated
from the graph, before TensorFlow optimises it: it may keep less, above all if XLA compiles it.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

# --- memory ---

# operations whose output lies where their input does
VIEWS = {"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient"}
# operations that want to know the shape of their input, and not its values
SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}
# operations whose output is there without a forward pass
GIVEN = {"Const", "ReadVariableOp", "VarHandleOp"}


def bytes_of(tensors: Iterable[Any]) -> int:
    """Bytes of tensors or variables; a tensor of unknown size counts nothing."""
    return sum(each.dtype.size * (each.shape.num_elements() or 0) for each in tensors)


def gradient(tape: Any, loss: Any, variables: Any, note: Any, scale: Any = None) -> list[Any]:
    """The gradients of the variables, times the loss `scale`, each a whole tensor: TensorFlow's
    gradient of an embedding has only the rows that were looked up.

    To be called in a graph. It notes the bytes of the gradients, and of the `activations`: all
    tensors that an operation of the forward pass makes and one of the backward pass needs.
    """
    operations = loss.graph.get_operations
    forward = {operation.name for operation in operations()}
    scaled = None if scale is None else scale * tf.ones_like(loss)
    found = tape.gradient(loss, variables, output_gradients=scaled)
    gradients = [tf.convert_to_tensor(each) for each in found]
    given = {variable.name for variable in variables}
    kept = {}
    for operation in operations():
        if operation.name not in forward and operation.type not in SHAPES:
            for tensor in operation.inputs:
                while tensor.op.type in VIEWS and tensor.name not in given:
                    tensor = tensor.op.inputs[0]
                made = tensor.op.name in forward and tensor.op.type not in GIVEN
                if made and tensor.name not in given:
                    kept[tensor.name] = tensor
    note(activations=bytes_of(kept.values()), gradients=bytes_of(gradients))
    return gradients


# --- multiplications ---


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
