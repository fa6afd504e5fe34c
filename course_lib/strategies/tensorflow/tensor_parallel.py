"""tensor_parallel: every layer is cut into pieces, a piece for each device; all devices compute the
same batch, each its piece of every layer.

Two dense layers are cut so that they need one exchange between them: the first by columns (each
device has its own hidden units), the second by rows (the rows that belong to those units). What the
devices make of the second are then summands of its whole output, and an all-reduce adds them up.
`naive` is that idea and nothing else.

In TensorFlow it is written as layouts: for each dimension of a variable, whether it is spread over
the mesh of devices or whole on each of them. The program is that of one device. DTensor derives
from the layouts which piece each device computes, and puts the all-reduce where one is needed:

    first kernel    (inputs, units)     [unsharded, model]
    second kernel   (units, outputs)    [model, unsharded]

Gradients have the layouts of their variables, so every device updates its own pieces, and no
gradient of a parameter is ever sent. What travels for a pair of layers is its output, batch x
output width numbers, and on the way back, for all pairs but the first, the gradient of its input.
The hidden width between the two, where most parameters are, does not travel. The second layer's
bias is whole on every device.

It all happens in one process. The all-reduce is part of the graph that computes the gradients, so
the trace has it within `compute`. Each device does 1/n of the work, so it takes 1/n of the emulated
device time of a step. Source: https://www.tensorflow.org/guide/dtensor_overview; Shoeybi et al.,
"Megatron-LM", 2019.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.optimizers import STATE
from course_lib.strategies.steps import TrainingStep
from course_lib.strategies.tensorflow import steps
from course_lib.strategies.tensorflow.models import Optimizer, bytes_of, in_parts, loss_of, seen
from course_lib.strategies.tensorflow.steps import bytes_on, matmul_flops, use_several
from course_lib.workloads import order

MESH_DIM, WHOLE = "model", dtensor.UNSHARDED
COLUMNS = ([WHOLE, MESH_DIM], [MESH_DIM])  # layouts of a kernel and its bias
ROWS = ([MESH_DIM, WHOLE], [WHOLE])


def naive(task: Task) -> dict[str, Any]:
    """Train two dense layers that are cut by hand, by plain gradient descent.

    `start(naive, framework="tensorflow", workers=1, replicas=2, learning_rate=0.2)` runs it.
    """
    spec, workload = task.spec, workloads.load(task.spec)
    devices, compare = use_several("cpu", spec.replicas), loss_of(workload)
    weights = workload.initial_weights(spec.seed)
    columns = [np.split(each, spec.replicas, axis=-1) for each in weights[:2]]  # kernel and bias
    rows = np.split(weights[2], spec.replicas, axis=0)
    pieces = []
    for device, *its in zip(devices, *columns, rows, strict=True):
        with tf.device(device):
            pieces.append([tf.Variable(piece) for piece in its])
    bias = tf.Variable(weights[3])  # of the second layer: (classes,)
    variables = [*itertools.chain.from_iterable(pieces), bias]
    for step in range(spec.steps):
        read = order.pieces(spec, workload.train, step)  # of one epoch, or of two
        batch = np.concatenate([indices for _, indices in read])
        inputs, targets = workload.train.take(batch)  # (batch, features), whole on every device
        with task.phase("compute", step), tf.GradientTape() as tape:
            summands = []
            for device, (kernel, offsets, second) in zip(devices, pieces, strict=True):
                with tf.device(device):
                    hidden = tf.nn.relu(inputs @ kernel + offsets)  # (batch, units / n): its own
                    summands.append(hidden @ second)  # (batch, classes): a part of each number
            loss = compare(tf.add_n(summands) + bias, targets)  # the sum is the all-reduce
        with task.phase("apply", step):  # each device its own pieces
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(spec.learning_rate * gradient)
        task.metric("loss", float(loss), step, (step + 1) * spec.batch)
    return {"final_loss": float(loss)}


def worker(task: Task) -> dict[str, Any]:
    """Train with every layer cut over all devices of this process."""
    replicas = task.spec.replicas
    names = [name.strip("/").upper() for name in use_several("cpu", replicas)]
    step = MeshStep(task, dtensor.create_mesh([(MESH_DIM, replicas)], devices=names))
    compute, apply = make_step(step)
    while step.begin():
        inputs, targets = step.read()
        with step.computing(part=1 / replicas):
            value, gradients, *of_scaled = compute(inputs, targets, *step.scales())
            loss = float(dtensor.unpack(value)[0].numpy())
        with step.applying():
            if step.fine(*of_scaled):  # in float16: no gradient of the model has overflowed
                apply(gradients)
        step.done(loss)
    return step.result()


def forward(step: MeshStep, inputs: Any) -> Any:
    """Logits (batch, classes), float32, computed in the run's precision: nothing here says on which
    device anything happens.
    """
    *_, logits = activations(step, inputs)
    return tf.cast(logits, tf.float32)


def activations(step: MeshStep, inputs: Any) -> Iterator[Any]:
    """The inputs, and what each layer makes of them, one after the other."""
    values, *variables = (tf.cast(x, step.spec.precision) for x in (inputs, *step.variables))
    yield values  # (batch, features), whole on every device
    layers: tuple[Any, ...] = step.workload.layers
    for layer, kernel, bias in zip(layers, variables[::2], variables[1::2], strict=True):
        values = tf.matmul(values, kernel) + bias  # (batch, units): cut, or a sum over all devices
        values = tf.nn.relu(values) if layer.relu else values
        yield values


def make_step(step: MeshStep) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two halves of a step, each compiled on its first call. The first returns the loss and all
    gradients; in float16, where it is given the loss scale, also what was `seen` of the gradients
    times that scale. The second updates all variables.
    """
    compare, variables, optimizer = loss_of(step.workload), step.variables, step.optimizer

    @tf.function(autograph=False)
    def compute(inputs: Any, targets: Any, scale: Any = None) -> Any:
        def compute_part(inputs: Any, targets: Any) -> list[Any]:
            with tf.GradientTape() as tape:
                loss = compare(forward(step, inputs), targets)
            return [loss, *tape.gradient(loss, variables, output_gradients=scale)]

        loss, *gradients = in_parts(step.spec.accumulate, compute_part, inputs, targets)
        if scale is None:
            return loss, gradients
        return loss, [gradient / scale for gradient in gradients], seen(gradients)

    @tf.function(autograph=False)
    def apply(gradients: list[Any]) -> None:
        updates = step.count.read_value()
        now = optimizer.at(updates, updates)
        for variable, gradient, state in zip(variables, gradients, step.state, strict=True):
            optimizer.apply(variable, gradient, state, now)
        step.count.assign_add(1)

    return compute, apply


# --- a model in pieces ---


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


def pieces_of(variables: list[Any]) -> Iterator[Any]:
    """The pieces of all these variables, each on its device."""
    return (piece for each in variables for piece in dtensor.unpack(each.read_value()))


class MeshStep(TrainingStep):
    """A training step of a model whose `variables` are cut over the devices of a mesh, and the
    optimizer's `state` for each of them in the same way; every device has the `count` of updates.
    """

    matmul_flops = staticmethod(matmul_flops)

    def __init__(self, task: Task, mesh: Any) -> None:
        self.mesh, self.optimizer = mesh, Optimizer(task.spec)
        weights = workloads.load(task.spec).initial_weights(task.spec.seed)
        # kernel and bias of each layer, cut by columns and by rows in turn
        layouts = [dtensor.Layout(specs, mesh) for specs in [*COLUMNS, *ROWS] * len(weights)]
        pairs = list(zip(weights, layouts, strict=False))
        self.variables = [dtensor.DVariable(cut(*pair)) for pair in pairs]
        slots = range(STATE[task.spec.optimizer])
        zeros = [cut(np.zeros_like(weight), layout) for weight, layout in pairs]
        self.state = [[dtensor.DVariable(zero) for _ in slots] for zero in zeros]
        self.count = dtensor.DVariable(self.on_all(np.int64(0)))
        # where assignments to the pieces are executed
        devices = [piece.device for piece in pieces_of(self.variables[:1])]
        super().__init__(task, [(f"shard {k}", device) for k, device in enumerate(devices)])

    def on_all(self, value: Any) -> Any:
        """A tensor that every device has whole."""
        layout = dtensor.Layout.replicated(self.mesh, np.ndim(value))
        return dtensor.copy_to_mesh(tf.constant(value), layout)

    @property
    def named(self) -> dict[str, Any]:
        """The variables, and the optimizer's state for them, by name."""
        return steps.named([self.variables, *zip(*self.state, strict=True)])

    def weights(self) -> list[np.ndarray]:
        return [whole(variable) for variable in self.variables]

    def named_weights(self) -> dict[str, np.ndarray]:
        return {str(number): value for number, value in enumerate(self.weights())}

    def save_state(self, part: Path) -> None:
        values = {name: whole(each) for name, each in self.named.items()}
        steps.save_variables(part, steps.ALIKE, values)

    def load_state(self, part: Path) -> None:
        kept = steps.load_variables(part.parent)
        for name, variable in self.named.items():
            variable.assign(cut(kept[name], variable.layout))
        self.count.assign(self.on_all(np.int64(self.updates)))

    def scales(self) -> list[Any]:
        """The loss scale as a tensor that every device has, in float16."""
        return [self.on_all(np.float32(self.scale.value))] if self.scale.on else []

    def fine(self, *of_scaled: Any) -> bool:
        """Check whether gradients of which this was `seen` may be applied."""
        return all(self.finite(*dtensor.unpack(each)[0].numpy().tolist()) for each in of_scaled)

    def variables_on(self) -> dict[str, int]:
        return bytes_on(pieces_of(self.variables))

    def state_on(self) -> dict[str, int]:
        return bytes_on(itertools.chain.from_iterable(map(pieces_of, self.state)))

    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        inputs, targets = self.workload.train.take(indices)
        return self.on_all(inputs), self.on_all(targets)

    def memory(self) -> dict[str, int]:
        """Gradients are cut as the variables are. Activations are counted in a forward pass made
        for that, with as many examples as are computed at a time.
        """
        kinds, count = super().memory(), self.spec.batch // self.spec.accumulate
        inputs, _ = self.tensors(np.arange(count))
        pieces = (piece for each in activations(self, inputs) for piece in dtensor.unpack(each))
        return kinds | {"gradients": kinds["parameters"], "activations": bytes_of(pieces)}

    def outputs(self, inputs: np.ndarray) -> Any:
        return dtensor.unpack(forward(self, self.on_all(inputs)))[0].numpy()
