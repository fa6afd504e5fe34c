"""tensor_parallel: every layer is cut into pieces, a piece for each device; all devices compute the
same batch, each its piece of every layer.

Two dense layers are cut so that they need one exchange between them: the first by columns (each
device has its own hidden units), the second by rows (the rows that belong to those units). What the
devices make of the second are then summands of its whole output, and an all-reduce adds them up.

In TensorFlow that is written as layouts: for each dimension of a variable, whether it is spread
over the mesh of devices or whole on each of them. The program is that of one device. DTensor
derives from the layouts which piece each device computes, and puts the all-reduce where one is
needed:

    first kernel    (inputs, units)     [unsharded, model]
    second kernel   (units, outputs)    [model, unsharded]

It all happens in one process. Gradients have the layouts of their variables, so every device
updates its own pieces, and no gradient of a parameter is ever sent. What travels for a pair of
layers is its output, batch x output width numbers, and on the way back, for all pairs but the
first, the gradient of its input. The hidden width between the two, where most parameters are, does
not travel. The second layer's bias is whole on every device. The all-reduce is part of the graph
that computes the gradients, so the trace has it within `compute`. Each device does 1/n of the work,
so it takes 1/n of the emulated device time of a step. Source:
https://www.tensorflow.org/guide/dtensor_overview; Shoeybi et al., "Megatron-LM", 2019.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.evaluation import evaluate
from course_lib.strategies.tensorflow.devices import use_several
from course_lib.workloads.model import digest
from course_lib.workloads.tensorflow import loss_of

MESH_DIM, WHOLE = "model", dtensor.UNSHARDED
COLUMNS = ([WHOLE, MESH_DIM], [MESH_DIM])  # layouts of a kernel and its bias
ROWS = ([MESH_DIM, WHOLE], [WHOLE])


def worker(task: Task) -> dict[str, Any]:
    """Train with every layer cut over all devices of this process."""
    spec, workload = task.spec, workloads.load(task.spec)
    names = [name.strip("/").upper() for name in use_several("cpu", spec.replicas)]
    mesh = dtensor.create_mesh([(MESH_DIM, spec.replicas)], devices=names)
    layouts = [
        specs for pair in range(len(workload.layers)) for specs in (ROWS if pair % 2 else COLUMNS)
    ]
    weights = workload.initial_weights(spec.seed)
    variables = [
        dtensor.DVariable(cut(value, dtensor.Layout(specs, mesh)))
        for value, specs in zip(weights, layouts, strict=True)
    ]
    loss = _loop(task, workload, variables, mesh)
    return {
        "final_loss": loss,
        "test_accuracy": accuracy(workload, variables, mesh),
        "digest": digest([whole(variable) for variable in variables]),
        "parameters": workload.parameters,
        "variables_on": variables_on(variables),
    }


def cut(value: np.ndarray, layout: Any) -> Any:
    """A tensor laid out over a mesh: each device is given its piece and no more."""
    pieces = [value] * layout.mesh.size
    if MESH_DIM in layout.sharding_specs:
        pieces = np.split(value, layout.mesh.size, layout.sharding_specs.index(MESH_DIM))
    return dtensor.pack([tf.constant(piece) for piece in pieces], layout)


def whole(variable: Any) -> np.ndarray:
    """The value put together from its pieces."""
    pieces = [piece.numpy() for piece in dtensor.unpack(variable.read_value())]
    specs = variable.layout.sharding_specs
    return np.concatenate(pieces, specs.index(MESH_DIM)) if MESH_DIM in specs else pieces[0]


def on_all(value: np.ndarray, mesh: Any) -> Any:
    """A tensor that every device has whole."""
    return dtensor.copy_to_mesh(tf.constant(value), dtensor.Layout.replicated(mesh, value.ndim))


def forward(layers: tuple[Any, ...], variables: list[Any], images: Any) -> Any:
    """Logits (batch, classes): nothing here says on which device anything happens."""
    for layer, kernel, bias in zip(layers, variables[::2], variables[1::2], strict=True):
        images = tf.matmul(images, kernel) + bias
        images = tf.nn.relu(images) if layer.relu else images
    return images


def make_step(
    layers: tuple[Any, ...], variables: list[Any], rate: float
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two halves of a step, each compiled on its first call: the loss and all gradients;
    variable -= rate * gradient.
    """

    @tf.function(autograph=False)
    def compute(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(forward(layers, variables, images), labels)
        return loss, tape.gradient(loss, variables)

    @tf.function(autograph=False)
    def apply(gradients: list[Any]) -> None:
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(rate * gradient)

    return compute, apply


def _loop(task: Task, workload: workloads.Workload, variables: list[Any], mesh: Any) -> float:
    """Run all steps and write them into the trace; the last loss."""
    spec = task.spec
    compute, apply = make_step(
        workload.layers, variables, spec.learning_rate or workload.learning_rate
    )
    # where assignments to the pieces are executed
    devices = [piece.device for piece in dtensor.unpack(variables[0].read_value())]
    # seconds that recent steps computed; the least of them, as a busy machine only ever adds
    busy = deque([0.0], maxlen=5)
    loss = float("nan")
    for n in range(spec.steps):
        with task.phase("read", n):
            indices = workload.batch(n, spec.seed, spec.batch)
            images, labels = (
                on_all(workload.x_train[indices], mesh),
                on_all(workload.y_train[indices], mesh),
            )
        start = clock()
        task.pace(min(busy), share=1 / spec.replicas)
        begin = clock()
        value, gradients = compute(images, labels)
        loss = float(dtensor.unpack(value)[0].numpy())
        computed = clock()
        busy.append(computed - begin)
        task.record("compute", n, start, computed)
        with task.phase("apply", n):
            apply(gradients)
        for shard, device in enumerate(devices):
            task.update(n, f"shard {shard}", device, read=n, written=n + 1)
        task.metric("loss", loss, n, (n + 1) * spec.batch)
        evaluate(task, n, (n + 1) * spec.batch, lambda: accuracy(workload, variables, mesh))
    return loss


def accuracy(workload: workloads.Workload, variables: list[Any], mesh: Any) -> float:
    """The share of test images that the model gets right."""
    logits = dtensor.unpack(forward(workload.layers, variables, on_all(workload.x_test, mesh)))[
        0
    ].numpy()
    return float(np.mean(np.argmax(logits, -1) == workload.y_test))


def variables_on(variables: list[Any]) -> dict[str, int]:
    """Bytes of the pieces on each device, as the runtime reports them."""
    found: Counter[str] = Counter()
    for variable in variables:
        for piece in dtensor.unpack(variable.read_value()):
            found[piece.device] += piece.dtype.size * piece.shape.num_elements()
    return dict(found)
