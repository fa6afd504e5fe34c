"""The trial of a learner's own Keras model: what is known of it before a run."""

import math
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.errors import trying
from course_lib.strategies.strategy import per_example
from course_lib.strategies.tensorflow import models
from course_lib.strategies.tensorflow.models import needed
from course_lib.strategies.tensorflow.steps import use
from course_lib.text import kind_of
from course_lib.workloads.examples import first_leaf, leaves, mapped, shapes
from course_lib.workloads.layers import Sketch
from course_lib.workloads.workload import LOSS, Workload, in_order, uneven

BATCH_NORM = (
    "Batch normalisation takes means and variances of each replica's own share of a batch, and "
    "with accumulate of each part of it; "
    "keras.layers.BatchNormalization(synchronized=True) takes them over all replicas."
)
RANDOM = (
    "It draws with tf.random, or with keras.random without a seed, which a checkpoint does not "
    "hold: a resumed run draws other numbers; and workers of parameter servers may draw alike. "
    "Neither does keras.random with seed=self.seed, a keras.random.SeedGenerator of the layer's."
)
ALONE = "batch normalisation makes 0 of the one number that a channel then has"


def sketch(task: Task) -> Sketch:
    """Learn about the model of this task's workload, after one step with two examples.

    Raises `ValueError` that says what it cannot do.
    """
    use("cpu")
    keras.config.disable_traceback_filtering()  # it wraps errors in pages of text
    workload, spec = workloads.load(task.spec), task.spec
    with models.policy(spec.precision):
        model = built(workload, spec.seed)
        one_step(workload, model)
    flops, activations, copies, loose = in_a_graph(workload, model)
    x, y = workload.train.take(workload.train.spread(32))
    made = mapped(tf.constant, (models.outputs_of(model, x), y))
    workload.check_test(partial(models.outputs_of, model))
    kind = keras.layers.BatchNormalization
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, kind) and layer.built]
    synchronized = [layer.synchronized for layer in norms]
    # where an example has one number in each channel, Keras makes 0 of it and raises no error
    shapes = ((n.axis, n.get_build_config()["input_shape"]) for n in norms if n.trainable)
    single = any(None not in s[1:] and math.prod(s[1:]) == s[axis] for axis, s in shapes)
    return Sketch(
        parameters=sum(variable.shape.num_elements() for variable in model.trainable_variables),
        notes=(() if all(synchronized) else (BATCH_NORM,)) + ((RANDOM,) if loose else ()),
        uneven=uneven(models.loss_of(workload), *made),
        synchronized=any(synchronized),
        flops=flops,
        activations=activations,
        copies=copies,
        alone=ALONE if single else "",
    )


def built(workload: Workload, seed: int) -> keras.Model:
    """The model that its builder returns."""
    if isinstance(workload.tensorflow, keras.Model):
        raise ValueError("tensorflow is a model: give a function, such as lambda: ...")
    with trying("its tensorflow builder fails"):
        model = models.from_builder(workload, seed)
    if not isinstance(model, keras.Model):
        raise ValueError(f"its tensorflow builder returns {kind_of(model)}, no keras.Model")
    return model


def one_step(workload: Workload, model: keras.Model) -> None:
    """Two examples forward and backward; raises `ValueError` that says what went wrong."""
    inputs, targets = workload.train.take(slice(2))
    given = f"the inputs of two examples, of shape {shapes(inputs)}"
    with trying(f"its model cannot take {given}"), tf.GradientTape() as tape:
        models.with_variables(model, workload)
        outputs = model(mapped(tf.constant, inputs), **models.mode(model, training=True))
    for name, each in leaves(outputs, "outputs").items():
        if not tf.is_tensor(each):
            raise ValueError(f"its model returns {kind_of(each)} as its {name}, no tensor")
    if not model.trainable_variables:
        raise ValueError("its model has no parameters to train")
    workload.check_outputs(mapped(lambda each: each.numpy(), models.wide(outputs)))
    pair = f"outputs {shapes(outputs)} with targets {shapes(targets)}"
    compare = in_order(workload.loss, models.LOSSES)
    with trying(f"its loss fails for {pair}"), tape:
        loss = compare(models.wide(outputs), mapped(tf.constant, targets))
        loss = loss[0] if isinstance(loss, tuple) and len(loss) == 2 else loss
    if not tf.is_tensor(loss) or loss.shape.rank:
        what = tuple(loss.shape) if tf.is_tensor(loss) else kind_of(loss)
        raise ValueError(f"its loss returns {what}, {LOSS}")
    if not np.isfinite(loss):
        raise ValueError(f"its loss for the first two examples is {float(loss)}")
    trained = model.trainable_variables
    gradients = tape.gradient(loss, models.variables_of(model))
    unused = [v.path for v, each in zip(trained, gradients, strict=True) if each is None]
    if unused:
        cure = "use them, or freeze their layers with trainable=False"
        raise ValueError(f"its loss does not depend on {', '.join(unused)}: {cure}")


def in_a_graph(workload: Workload, model: keras.Model) -> tuple[int, int, int, bool]:
    """Of the training graph: the floating-point operations that train on an example, the bytes of
    activations that the forward pass keeps for it, and those of copies, kept once for all examples;
    and whether it draws random numbers whose state is not the model's.
    """
    examples = workload.train.take(slice(2))
    counted, kept, loss_of = dict[str, int](), dict[int, int](), models.loss_of(workload)

    @tf.function(autograph=False)
    def graph(inputs: Any, targets: Any) -> Any:
        made = models.loss_and_gradients(model, loss_of, counted.update, inputs, targets)
        counted["products"] = needed(made, set())
        return made

    with trying("its model and loss cannot be a graph (keras.ops.cond and where replace an `if`)"):
        for times in (2, 1):  # `counted` is of the last
            several = mapped(lambda each, n=times: tf.concat([each] * n, 0), examples)
            traced = graph.get_concrete_function(*several).graph
            kept[times] = counted["activations"]
    count = len(first_leaf(examples))
    mine = {id(each.value) for each in model.variables}
    loose = b"seed2" in traced.as_graph_def().SerializeToString()  # which tf.random leaves there
    loose |= any(models.is_seed(each) and id(each) not in mine for each in traced.variables)
    return 2 * counted["products"] // count, *per_example(kept[1], kept[2], count), loose
