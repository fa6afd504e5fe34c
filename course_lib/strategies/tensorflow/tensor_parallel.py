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

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.optimizers import BETAS, STATE
from course_lib.strategies.steps import TrainingStep
from course_lib.strategies.tensorflow import checkpoints
from course_lib.strategies.tensorflow.memory import bytes_of
from course_lib.strategies.tensorflow.models import in_parts, loss_of
from course_lib.strategies.tensorflow.optimizer import Optimizer
from course_lib.strategies.tensorflow.precision import seen
from course_lib.strategies.tensorflow.steps import bytes_on, matmul_flops, use_several

MESH_DIM, WHOLE = "model", dtensor.UNSHARDED
FOLDED = 64
"""DTensor makes constants of arguments with a few numbers, and compiles again once they change. Of
more numbers it does not. With constants sums are rounded in another way, so the first step after a
restart would differ in the last bits."""
COLUMNS = ([WHOLE, MESH_DIM], [MESH_DIM])  # layouts of a kernel and its bias
ROWS = ([MESH_DIM, WHOLE], [WHOLE])


def worker(task: Task) -> dict[str, Any]:
    """Train with every layer cut over all devices of this process."""
    replicas = task.spec.replicas
    names = [name.strip("/").upper() for name in use_several("cpu", replicas)]
    step = MeshStep(task, dtensor.create_mesh([(MESH_DIM, replicas)], devices=names))
    compute, apply = make_step(step)
    while step.begin():
        inputs, targets = step.read()
        with step.computing(part=1 / replicas):
            value, gradients, *found = compute(inputs, targets, *step.scales())
            loss = float(dtensor.unpack(value)[0].numpy())
        with step.applying():
            if step.fine(*found):  # in float16: no gradient of the model has overflowed
                apply(gradients, step.factors())
        step.done(loss)
    return step.result()


def cut_model(spec: RunSpec, mesh: Any) -> list[Any]:
    """The model's variables: kernel and bias of each layer, cut by columns and by rows in turn."""
    layouts = itertools.cycle([*COLUMNS, *ROWS])
    weights = workloads.load(spec).initial_weights(spec.seed)
    return [
        dtensor.DVariable(cut(value, dtensor.Layout(specs, mesh)))
        for value, specs in zip(weights, layouts, strict=False)
    ]


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


def zeros_like(variable: Any) -> Any:
    """A variable of zeros that is cut as another one is."""
    return dtensor.DVariable(cut(np.zeros(variable.shape, np.float32), variable.layout))


def pieces_of(variables: list[Any]) -> Iterator[Any]:
    """The pieces of all these variables, each on its device."""
    return (piece for each in variables for piece in dtensor.unpack(each.read_value()))


def on_all(value: np.ndarray, mesh: Any) -> Any:
    """A tensor that every device has whole."""
    return dtensor.copy_to_mesh(tf.constant(value), dtensor.Layout.replicated(mesh, value.ndim))


def forward(step: MeshStep, inputs: Any) -> Any:
    """Logits (batch, classes), float32, computed in the run's precision: nothing here says on which
    device anything happens.
    """
    *_, logits = activations(step, inputs)
    return tf.cast(logits, tf.float32)


def activations(step: MeshStep, inputs: Any) -> Iterator[Any]:
    """The inputs, and what each layer makes of them, one after the other."""
    values, *variables = (tf.cast(x, step.spec.precision) for x in (inputs, *step.variables))
    yield values
    layers: tuple[Any, ...] = step.workload.layers
    for layer, kernel, bias in zip(layers, variables[::2], variables[1::2], strict=True):
        values = tf.matmul(values, kernel) + bias
        values = tf.nn.relu(values) if layer.relu else values
        yield values


def make_step(step: MeshStep) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two halves of a step, each compiled on its first call. The first returns the loss and all
    gradients; in float16, where it is given the loss scale, also what was `seen` of the gradients
    times that scale. The second updates all variables, with a learning rate and corrections (see
    `MeshStep.factors`).
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
    def apply(gradients: list[Any], factors: Any) -> None:
        rate, *corrections = [factors[k] for k in range(1 + len(BETAS) * optimizer.counts)]
        now = rate, corrections
        gradients = optimizer.clipped(gradients)  # DTensor adds up the squares of all pieces
        for variable, gradient, state in zip(variables, gradients, step.state, strict=True):
            optimizer.apply(variable, gradient, state, now)

    return compute, apply


class MeshStep(TrainingStep):
    """A training step of a model whose `variables` are cut over the devices of a mesh, and the
    optimizer's `state` for each of them in the same way.
    """

    def __init__(self, task: Task, mesh: Any) -> None:
        self.mesh, self.variables = mesh, cut_model(task.spec, mesh)
        self.optimizer, count = Optimizer(task.spec), STATE[task.spec.optimizer]
        self.state = [[zeros_like(each) for _ in range(count)] for each in self.variables]
        # where assignments to the pieces are executed
        devices = [piece.device for piece in pieces_of(self.variables[:1])]
        super().__init__(task, [(f"shard {k}", device) for k, device in enumerate(devices)])

    @property
    def named(self) -> dict[str, Any]:
        """The variables, and the optimizer's state for them, by name."""
        return checkpoints.named([self.variables, *zip(*self.state, strict=True)])

    def weights(self) -> list[np.ndarray]:
        return [whole(variable) for variable in self.variables]

    def named_weights(self) -> dict[str, np.ndarray]:
        return {str(number): value for number, value in enumerate(self.weights())}

    def save_state(self, part: Path) -> None:
        values = {name: tf.Variable(whole(each)) for name, each in self.named.items()}
        checkpoints.write(part, checkpoints.ALIKE, values)

    def load_state(self, part: Path) -> None:
        found = checkpoints.read(part.parent)
        for name, variable in self.named.items():
            variable.assign(cut(found[name], variable.layout))

    def factors(self) -> Any:
        """The learning rate of this step and the corrections of its update: the rate alone, as a
        part of the graph, if nothing depends on the number of updates; else a vector, which every
        device has, that begins with them.
        """
        rate, optimizer = self.optimizer.rates[self.updates], self.optimizer
        if not optimizer.counts:
            return [float(rate)]
        found = [rate, *optimizer.corrections(self.updates + 1)]
        return on_all(np.pad(np.array(found, np.float32), (0, FOLDED)), self.mesh)

    def scales(self) -> list[Any]:
        """The loss scale as a tensor that every device has, in float16."""
        return [on_all(np.array(self.scale.value, np.float32), self.mesh)] if self.scale.on else []

    def fine(self, *found: Any) -> bool:
        """Whether gradients of which this was `seen` may be applied."""
        return all(self.finite(*dtensor.unpack(each)[0].numpy().tolist()) for each in found)

    def variables_on(self) -> dict[str, int]:
        return bytes_on(pieces_of(self.variables))

    def state_on(self) -> dict[str, int]:
        return bytes_on(itertools.chain.from_iterable(map(pieces_of, self.state)))

    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        inputs, targets = self.workload.train.take(indices)
        return on_all(inputs, self.mesh), on_all(targets, self.mesh)

    def held(self) -> dict[str, int]:
        """Gradients are cut as the variables are. Activations are counted in a forward pass made
        for that, with as many examples as are computed at a time.
        """
        held, count = super().held(), self.spec.batch // self.spec.accumulate
        inputs, _ = self.tensors(np.arange(count))
        pieces = (piece for each in activations(self, inputs) for piece in dtensor.unpack(each))
        return held | {"gradients": held["parameters"], "activations": bytes_of(pieces)}

    def matmul_flops(self) -> float:
        return matmul_flops()

    def outputs(self, inputs: np.ndarray) -> np.ndarray:
        values: np.ndarray = dtensor.unpack(forward(self, on_all(inputs, self.mesh)))[0].numpy()
        return values
