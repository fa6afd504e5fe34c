"""The workload's model and loss in Keras, with weights that start as given; the optimizer of a run
in TensorFlow's graphs; and what the graph of a training step tells: the memory that its tensors
take up, and the multiplications in it.

The optimizer's rules are in `strategies/optimizers.py`; its state are variables that lie where
those of the model do. The tensors of a graph exist only while it runs, out of Python's sight. So
their bytes are estimated from the graph, before TensorFlow optimises it: it may keep less, above
all if XLA compiles it.
"""

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from course_lib.strategies import optimizers
from course_lib.workloads.examples import Tree, cut, first_leaf, mapped
from course_lib.workloads.layers import Conv, Dense, Flatten, Layer
from course_lib.workloads.workload import IGNORED, Workload, in_order


def build(workload: Workload, seed: int, precision: str = "float32") -> keras.Model:
    """The model, with the weights that every run of this seed starts from; its layers compute in
    this precision.

    Call it in a strategy's scope, which places its variables.
    """
    with policy(precision):
        if not workload.layers:
            return with_variables(from_builder(workload, seed), workload)
        layers = map(_layer, workload.layers)
        model = keras.Sequential([keras.Input(workload.input_shape), *layers])
    model.set_weights(workload.initial_weights(seed))
    return model


@contextlib.contextmanager
def policy(precision: str) -> Iterator[None]:
    """Layers that are made in the block compute in this precision, and have float32 variables: for
    float16 that is Keras' policy `mixed_float16`. Layers with a policy or dtype of their own keep
    it.
    """
    before = keras.config.dtype_policy()
    if precision != "float32":
        keras.config.set_dtype_policy(f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def rebuilt(workload: Workload, seed: int, weights: Mapping[str, np.ndarray]) -> keras.Model:
    """The workload's `keras.Model` with these weights, in Keras' order. Building it seeds the
    random numbers of this process, as `keras.utils.set_random_seed(seed)` does.
    """
    built = build(workload, seed)
    built.set_weights(list(weights.values()))
    return built


def from_builder(workload: Workload, seed: int) -> Any:
    """Call a learner's own builder. Keras draws the seeds of initial weights and of dropout
    from the random numbers that are seeded here.
    """
    keras.utils.set_random_seed(seed)
    return workload.built("tensorflow", seed)


def with_variables(model: keras.Model, workload: Workload) -> keras.Model:
    """The model with all its variables: some only make them at their first call."""
    if not model.built:
        model(workload.train.take(slice(2))[0], **mode(model, training=False))
    return model


def mode(model: keras.Model, training: bool) -> dict[str, bool]:
    """The argument that tells a call of training or not: none, as in Keras' `fit`, if the model's
    `call` has no such argument.
    """
    takes = "training" in inspect.signature(model.call).parameters
    return {"training": training} if takes else {}


def _layer(layer: Layer) -> Any:
    # zeros are made faster than random numbers, and replaced as well
    how = {"activation": "relu" if layer.relu else None, "kernel_initializer": "zeros"}
    match layer:
        case Flatten():
            return keras.layers.Flatten()
        case Dense(units):
            return keras.layers.Dense(units, **how)
        case Conv(filters, size):
            return keras.layers.Conv2D(filters, size, **how)


def variables_of(model: keras.Model) -> list[Any]:
    """The model's trained `tf.Variable`s, as the strategy made them: not those of layers with
    `trainable=False`. One that two layers share is there once.
    """
    return [variable.value for variable in model.trainable_variables]


def copies_of(variable: Any) -> Any:
    """The copies of a variable, or of another value of all replicas, that this process holds."""
    return tf.distribute.get_strategy().experimental_local_results(variable)


def first(variable: Any) -> Any:
    """The first of these copies."""
    return copies_of(variable)[0]


def every_copy(variables: Iterable[Any]) -> Iterator[Any]:
    """The copies of all these variables that this process holds."""
    return itertools.chain.from_iterable(map(copies_of, variables))


def weights_of(model: keras.Model) -> list[np.ndarray]:
    """This process's own copy of the trained weights."""
    return [first(variable).numpy() for variable in variables_of(model)]


def is_seed(variable: keras.Variable) -> bool:
    """Check for the state of a `keras.random.SeedGenerator`, such as dropout has: [seed,
    count]. In each draw the count goes up by one.
    """
    return "seed_generator_state" in str(variable.name)


def seed_of(state: np.ndarray, seed: int, share: int = 0) -> int:
    """The seed with which a share of the batch draws, in place of the one in this state."""
    return int(np.random.SeedSequence([seed, int(state[0]), share]).generate_state(1)[0])


def outputs_of(model: keras.Model, inputs: Tree) -> Tree:
    """Compute the outputs of this process's first copy of a model when it is not being trained."""
    trained = [first(value) for value in variables_of(model)]
    others = [first(variable.value) for variable in model.non_trainable_variables]
    how = mode(model, training=False)
    outputs, _ = model.stateless_call(trained, others, mapped(tf.constant, inputs), **how)
    return mapped(lambda each: each.numpy(), wide(outputs))


def wide(outputs: Tree) -> Tree:
    """A tensor, or each of a structure, in float32, if it has another number of bits."""
    return mapped(lambda x: tf.cast(x, tf.float32) if x.dtype.is_floating else x, outputs)


# --- losses and their gradients ---


def cross_entropy(logits: Any, classes: Any) -> Any:
    """The mean softmax cross entropy of logits (batch, classes) and classes (batch,)."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits))


def mean_squared_error(outputs: Any, targets: Any) -> Any:
    """The mean of the squared differences of outputs and targets of the same shape."""
    if outputs.shape != targets.shape:  # TensorFlow would compare each with each
        raise ValueError("outputs and targets must have the same shape")
    return tf.reduce_mean(tf.math.squared_difference(outputs, tf.cast(targets, outputs.dtype)))


def next_token(logits: Any, tokens: Any) -> tuple[Any, Any]:
    """The sum of the cross entropy over the places of logits (batch, length, classes) and tokens
    (batch, length), and how many places count: those whose token is not `IGNORED`.
    """
    counts = tf.cast(tokens != IGNORED, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(tokens, 0), logits)
    return tf.reduce_sum(counts * losses), tf.reduce_sum(counts)


LOSSES = {each.__name__: each for each in (cross_entropy, mean_squared_error, next_token)}


def loss_of(workload: Workload) -> Callable[..., Any]:
    """The workload's loss of outputs and targets: a mean, shape (), or a sum and a count, shape
    (2,), each divided by how many numbers the first array of targets has. Batches are divided into
    pieces of one size. So either of the two is the mean of what the pieces have.
    """
    compare = in_order(workload.loss, LOSSES)

    def loss(outputs: Any, targets: Any) -> Any:
        value = compare(outputs, targets)
        if not isinstance(value, tuple):
            return value
        total, count = (tf.reshape(tf.cast(each, tf.float32), []) for each in value)
        size = tf.cast(tf.size(first_leaf(targets)), tf.float32)
        return tf.stack([total, tf.stop_gradient(count)]) / size

    return loss


def total(loss_of: Callable[..., Any], outputs: Any, targets: Any, own: Sequence[Any]) -> Any:
    """The loss of outputs, and added to its mean the model's `own` losses, such as those of
    regularizers; in float32, whatever the model computes in.
    """
    loss = loss_of(wide(outputs), targets)
    if not own:
        return loss
    more = tf.add_n([tf.cast(each, tf.float32) for each in own])
    return tf.stack([loss[0] + loss[1] * more, loss[1]]) if loss.shape.rank else loss + more


def pair(loss: Any) -> Any:
    """The loss as a sum and a count; a mean has the count 1."""
    return loss if loss.shape.rank else tf.stack([loss, tf.ones_like(loss)])


def count_of(loss: Any) -> Any:
    """The divisor of a loss, and of the gradients of its sum; None for a mean."""
    return tf.where(loss[1] > 0, loss[1], 1) if loss.shape.rank else None


def mean_of(loss: Any) -> Any:
    """The mean loss."""
    return loss[0] / count_of(loss) if loss.shape.rank else loss


def in_parts(count: int, compute: Callable[..., list[Any]], inputs: Any, targets: Any) -> list[Any]:
    """The mean of what `compute` returns for `count` equal parts of a batch.

    One part is computed after the other, so that the activations of one are kept at a time. As the
    parts are equal, the mean of their means is that of all examples.
    """
    if count == 1:
        return compute(inputs, targets)
    sums: list[Any] = []
    for part in cut(tf.split, (inputs, targets), count):
        with tf.control_dependencies(sums):
            values = compute(*part)
        sums = [a + b for a, b in zip(sums, values, strict=True)] if sums else values
    return [each / count for each in sums]


# --- the optimizer ---


class Optimizer(optimizers.Optimizer):
    """Updates variables, in a graph. Whoever holds a variable holds its state."""

    def state_of(self, variable: Any) -> list[Any]:
        """The state of a variable, all zeros, to be called where the variable was made."""
        count = optimizers.STATE[self.spec.optimizer]
        return [tf.Variable(tf.zeros(variable.shape), trainable=False) for _ in range(count)]

    def at(self, step: Any, updates: Any) -> tuple[Any, list[Any]]:
        """The learning rate of a step and the corrections after so many `updates`, for `apply`."""
        rate = float(self.rates[0])
        if self.spec.warmup_steps:
            rate = tf.gather(tf.constant(self.rates, tf.float32), step)
        return rate, self.corrections(tf.cast(updates + 1, tf.float32), tf.math.expm1)

    def apply(self, variable: Any, gradient: Any, state: Any, now: Any, finite: Any = None) -> Any:
        """Update a variable and its state: the operations that do it. `now`: what `at` returns.
        Nothing changes if the model's gradients are not `finite`.

        Changes are added, each in one operation that locks its variable. So where several workers'
        updates come at the same time, none is lost, though one may not have seen the other. AdamW's
        mean is read before its square and written after it: whoever reads the mean of a gradient
        also reads its square, and divides by it. A mean without its square would be a leap.
        """
        rate, corrections = now
        if not state and finite is None:
            return [variable.assign_sub(rate * gradient, read_value=False)]
        value, kept, written = variable.read_value(), list[Any](), list[Any]()
        for each in state:
            with tf.control_dependencies(kept):
                kept.append(each.read_value())
        changes = self.changes(value, gradient, kept, rate, corrections)
        if finite is not None:
            changes = [tf.where(finite, each, tf.zeros_like(each)) for each in changes]
        for old, change in reversed([*zip([variable, *state], changes, strict=True)]):
            with tf.control_dependencies(written):
                written.append(old.assign_add(change, read_value=False))
        return written


# --- gradients in float16 ---


def seen(gradients: Sequence[Any]) -> Any:
    """The norm over all entries of the gradients, infinite or NaN if one of them is, and the share
    of those that are exactly zero: float64 (2,).
    """
    norm = tf.linalg.global_norm(gradients)
    zeros = sum(tf.reduce_sum(tf.cast(tf.equal(each, 0), tf.float64)) for each in gradients)
    entries = sum(each.shape.num_elements() for each in gradients)
    return tf.stack([tf.cast(norm, tf.float64), zeros / entries])


# --- memory of a graph ---

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
    raw = tape.gradient(loss, variables, output_gradients=scaled)
    gradients = [tf.convert_to_tensor(each) for each in raw]
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


def loss_and_gradients(
    model: keras.Model, loss_of: Any, note: Any, inputs: Any, targets: Any, scale: Any = None
) -> list[Any]:
    """In a graph: the loss of a batch, and after it the `gradient` of each trained variable."""
    with tf.GradientTape() as tape:
        outputs = model(inputs, **mode(model, training=True))
        loss = total(loss_of, outputs, targets, model.losses)
    return [loss, *gradient(tape, loss, variables_of(model), note, scale)]


# --- multiplications in a graph ---


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
