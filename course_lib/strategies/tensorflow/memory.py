"""What takes up the memory of a TensorFlow task. Variables are counted as they are. The tensors of
a graph exist only while it runs, out of Python's sight, so their bytes are estimated from the
graph, before TensorFlow optimises it: it may keep less, above all if XLA compiles it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.strategies.memory import record

# operations whose output lies where their input does
VIEWS = {"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient"}
# operations that want to know the shape of their input, and not its values
SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}
# operations whose output is there without a forward pass
GIVEN = {"Const", "ReadVariableOp", "VarHandleOp"}


def bytes_of(tensors: Iterable[Any]) -> int:
    """Bytes of tensors or variables; a tensor of unknown size counts nothing."""
    return sum(each.dtype.size * (each.shape.num_elements() or 0) for each in tensors)


def gradient(
    tape: Any, loss: Any, variables: Sequence[Any], note: Callable[..., None], scale: Any = None
) -> list[Any]:
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


def count_cluster(task: Task, model: Any, kept: int) -> None:
    """As the chief, record what each task of a cluster with parameter servers holds. The chief's
    parameters are those of the model that it measures with, a worker's are the values that it has
    pulled. A ps has `kept` gradients when it makes an update.
    """
    spec, whole = task.spec, bytes_of(shard.values for shard in model.shards)
    others = bytes_of(model.others)
    cluster = {task.name: {"parameters": whole, "buffers": others}}
    for k in range(spec.workers):
        cluster[f"worker:{k}"] = {"parameters": whole, "buffers": others} | model.census.peak
    for shard in model.shards:
        held = {"parameters": (piece := bytes_of([shard.values])), "gradients": kept * piece}
        cluster[shard.task] = held | {"optimizer_state": bytes_of(shard.state)}
    cluster["ps:0"]["buffers"] = others
    for name, held in cluster.items():
        record(task, name, 0, 0, held)
