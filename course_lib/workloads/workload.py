"""Workloads: examples, a model for each framework, a loss and a metric, whatever trains them.
Losses and metrics are functions of outputs and targets, each a mean, or a sum and a count.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.errors import LockstepError, SpecError, trying
from course_lib.record import pickles
from course_lib.record.rundir import RunDir
from course_lib.text import amount, count, kind_of
from course_lib.workloads.examples import (
    Examples,
    Tree,
    first_leaf,
    iterable,
    leaves,
    mapped,
    shapes,
)
from course_lib.workloads.layers import Layer, Shape, Sketch, glorot, of_layers

LOSSES = ("cross_entropy", "mean_squared_error", "next_token")
IGNORED = -100  # a token that `next_token` does not count, as in PyTorch
LOSS = "neither one number, the mean over the batch, nor (sum, count)"
TARGETS_FIRST = ("y_true", "labels", "label", "targets", "target")

Metric = Callable[[Any, Any], Any]
"""How good outputs (examples, ...) are for targets (examples, ...), both numpy arrays or structures
of them: one number, or a (sum, count), which is added to those of other examples."""

FRAMEWORKS = ("tensorflow", "torch")
WAYS = ("columns", "rows", "heads")  # to cut a layer
GATHERED = 2**30  # bytes of outputs that a metric may be given at once

Builder = Callable[..., Any]
"""Makes a model: a `torch.nn.Module`, or a `keras.Model`."""

Outputs = Callable[[Tree], Tree]
"""What a model makes of inputs when it is not being trained; both are of numpy arrays."""

WORKLOADS: dict[str, Callable[..., Workload]] = {}
"""The course's workloads by name, each as the function that makes it."""

OWN: dict[str, Workload] = {}
"""A learner's workloads by name; the last one of a name."""


# --- losses and metrics ---


def accuracy(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """The number of targets, classes from 0 on, that have the largest output, and that of all;
    those that are `IGNORED` do not count.
    """
    hits = np.argmax(outputs, axis=-1) == targets
    return float(np.sum(hits)), float(np.sum(targets != IGNORED))


def mean_squared_error(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """Sum and count of the squared differences. Raises `ValueError` if the shapes differ."""
    if outputs.shape != targets.shape:  # numpy would broadcast, and compare each with each
        raise ValueError("outputs and targets must have the same shape: give a metric=")
    return np.sum((outputs - targets) ** 2, dtype=float), outputs.size


METRICS: dict[str, Metric] = {"accuracy": accuracy, "mean_squared_error": mean_squared_error}


def quotient(values: Sequence[Any]) -> float:
    """The value of a metric: a number, or the quotient of the sums of all (sum, count)."""
    if not isinstance(values[0], tuple):
        return float(values[0])
    total, count = np.sum(values, axis=0, dtype=float)
    return float(total / (count or 1))


def in_order(given: Any, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A loss or metric, given as a function or by its name among those that are `known`, as a
    function of outputs and targets. One whose first parameter is called `y_true` or the like, as in
    Keras and scikit-learn, gets the targets first.
    """
    function: Callable[..., Any] = given if callable(given) else known[given]
    first = ""
    with contextlib.suppress(ValueError, TypeError):  # of a function in C
        first = next(iter(inspect.signature(function).parameters), "")
    if first not in TARGETS_FIRST:
        return function
    return lambda outputs, targets: function(targets, outputs)


def uneven(loss: Callable[..., Any], outputs: Tree, targets: Tree) -> str:
    """Why a loss is no mean over examples, or "". `loss(outputs, targets)` is a framework's tensor
    for some of these examples: a mean, or sum and count.
    """
    pairs = len(first_leaf(targets)) // 2

    def mean(parts: int) -> Any:
        """That of equal parts of the examples."""
        size = 2 * pairs // parts
        cuts = (itemgetter(slice(k * size, (k + 1) * size)) for k in range(parts))
        with trying(f"its loss fails for {size} examples"):
            return np.mean([loss(*mapped(cut, (outputs, targets))).numpy() for cut in cuts], axis=0)

    if not pairs or np.any((whole := mean(1)) != mean(1)):
        return ""  # too few, or it draws random numbers
    means = {parts: mean(parts) for parts in (2, pairs)}
    off = [n for n, each in means.items() if not np.allclose(whole, each, rtol=1e-4, atol=1e-7)]
    if not off:
        return ""
    if whole.ndim:
        return "Its loss returns (sum, count): return the sum, not the mean, so that parts add up."
    return (
        f"Its loss is no mean over examples: for {2 * pairs} of them, outputs of shape "
        f"{shapes(outputs)} with targets of {shapes(targets)}, it is {whole:.4g}, and for "
        f"{off[0]} equal parts of them {means[off[0]]:.4g} on average. So a batch that is divided "
        "gives other gradients. If it divides by something else than the examples that it is "
        "given, such as tokens that are no padding, let it return (sum, count). If it compares "
        "examples with each other, as where shapes broadcast, that is no cure."
    )


# --- workloads ---


@dataclass(frozen=True, eq=False)
class Workload:
    """A model, its data and its loss, whatever trains it.

        mine = Workload(
            "mine",
            train=(x, y),
            test=(x_test, y_test),
            torch=lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
            learning_rate=0.05,
        )
        start("parameter_server", workload=mine)

    `train` and `test`: see `Examples`. `torch` and `tensorflow` make the model: a function without
    arguments that returns a `torch.nn.Module` or a `keras.Model` for a batch of inputs. One of them
    is enough. A builder is called in every task, after the framework's random numbers have been
    seeded with the run's `seed`, so all tasks start from the same weights. If it has a parameter
    `seed`, it is given that.

    `loss`: `cross_entropy` of logits (batch, classes) and classes (batch,); `mean_squared_error` of
    outputs and targets of the same shape; `next_token`, the cross entropy of logits (batch, length,
    classes) and classes (batch, length), where the class -100 does not count; or a function of the
    framework's outputs and targets. It returns the mean over the batch, or `(sum, count)` where the
    mean is over something else than examples, such as tokens that are no padding: gradients are
    then divided by the count of the whole global batch, however that is divided.

    `metric`: `accuracy`, `mean_squared_error`, or a function of outputs and targets as numpy
    arrays; if it is not given, the mean squared error where targets are floats or that is the loss,
    else the accuracy. It gets the outputs for all of `test` at once, at most 1 GiB; or, if it
    returns `(sum, count)`, those for 1,000 examples at a time. A loss or a metric gets the outputs
    first, but one whose first parameter is called `y_true`, `labels` or `targets`, as in Keras and
    scikit-learn, gets the targets first.

    Inputs, outputs and targets may be structures of arrays, see `Examples`: dicts, tuples, and of
    outputs lists, too. The model gets the inputs of a batch as one argument, as they are; if
    PyTorch's `forward` takes several, a tuple becomes its arguments, and a dict those of its names.
    The loss gets all outputs and all targets, and so does the metric. If outputs or targets are a
    structure, both have to be functions. Each array of outputs has a row for each example.

    `stages`: the names of the modules of a PyTorch model that a batch passes one after the other,
    such as `["embed", "blocks.0", "blocks.1", "logits"]`: `pipeline_parallel` cuts between them. A
    `torch.nn.Sequential` needs none.

    `parallel`: which layers of a PyTorch model `tensor_parallel` cuts, and how. In a name `*` is
    anything between two dots: `{"blocks.*.up": "columns", "blocks.*.down": "rows"}`. A `Linear`
    that is cut by columns leaves each worker some of its outputs, and the `Linear` that takes them
    is cut by rows; a `MultiheadAttention` is cut by `heads`; what is not named stays whole. If it
    is not given, PyTorch's own attention and transformer layers are cut, and `Linear` layers in
    pairs, where two follow each other in a `Sequential` with nothing but activation functions and
    dropout between them.

    `sample`: a function that shows what the model has learned. It is given a function from inputs
    to the model's outputs, both numpy arrays. The text that it returns is in the result as
    `sample`.

    `examples`: how many examples are read at most of a `train` or `test` that can only be iterated,
    such as a `tf.data.Dataset` or PyTorch's `IterableDataset`; needed if its length is not known.

    From the moment it is made, a workload is known by its name: `RunSpec(workload="mine")`. Another
    of the same name takes its place. Raises `SpecError`.
    """

    name: str
    train: Any
    test: Any
    torch: Builder | None = None
    tensorflow: Builder | None = None
    loss: str | Callable[..., Any] = "cross_entropy"
    metric: str | Metric | None = None
    learning_rate: float = 0.1
    stages: Sequence[str] = ()
    parallel: Mapping[str, str] = field(default_factory=dict)
    sample: Callable[[Outputs], str] | None = None
    layers: tuple[Layer, ...] = ()  # of our own workloads, in place of builders
    gain: float = 1.0  # scales their initial weights
    known: Sketch | None = None  # of our own that have builders
    examples: InitVar[int | None] = None
    sketches: dict[tuple[str, str], Sketch] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self, examples: int | None) -> None:
        if examples is not None and not any(map(iterable, (self.train, self.test))):
            raise SpecError("examples", examples, "is for datasets that can only be iterated")
        for name in ("train", "test"):
            given = getattr(self, name)
            if not isinstance(given, Examples):
                object.__setattr__(self, name, Examples(given, name, examples))
        if self.metric is None:
            targets = self.train.take([0])[1]
            if not isinstance(targets, np.ndarray):
                raise SpecError("metric", None, "targets are several arrays: give a function")
            classes = targets.dtype.kind == "i" and self.loss != "mean_squared_error"
            object.__setattr__(self, "metric", "accuracy" if classes else "mean_squared_error")
        for name, known in (("loss", LOSSES), ("metric", METRICS)):
            if not callable(given := getattr(self, name)) and given not in known:
                raise SpecError.unknown(name, given, [*known, "a function"])
        rate, names, plan = self.learning_rate, self.stages, self.parallel
        named = isinstance(self.name, str) and self.name.isidentifier()
        small = isinstance(rate, int | float) and 0 < rate <= 100
        apart = not isinstance(names, str) and len(set(names)) == len(names)
        cuts = isinstance(plan, Mapping) and set(plan.values()) <= set(WAYS)
        builders = all(callable(each) for each in (self.torch, self.tensorflow) if each is not None)
        for name, fine, allowed in (
            ("name", named, "a name of letters, digits and _, such as mine"),
            ("name", self.ours or self.name not in WORKLOADS, "the course has one of this name"),
            ("torch", builders, "a function without arguments that makes the model: lambda: ..."),
            ("torch", self.frameworks, "a builder for torch or for tensorflow is missing"),
            ("loss", not isinstance(self.loss, type), "a function; a class() makes one"),
            ("learning_rate", small, "a number above 0, at most 100"),
            ("stages", apart, "a list of names, each once: ['embed', 'blocks.0', 'logits']"),
            ("parallel", cuts, f"how each layer is cut, {', '.join(WAYS)}: {{'up': 'columns'}}"),
        ):
            if not fine:
                raise SpecError(name, getattr(self, name), allowed)
        if not self.ours:
            OWN[self.name] = self

    @property
    def ours(self) -> bool:
        """Return whether it is one of the course's, which are known by their functions."""
        return bool(self.layers or self.known)

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that it has a model for."""
        return tuple(name for name in FRAMEWORKS if self.layers or getattr(self, name))

    @property
    def metric_name(self) -> str:
        """`accuracy`, or the name of the function."""
        given = self.metric
        return given if isinstance(given, str) else getattr(given, "__name__", "metric")

    def check_outputs(self, outputs: Tree) -> None:
        """Raise `ValueError` if these outputs, for two examples, are not what the targets and the
        loss want. The classes of a dataset, which may be larger than the memory, are not looked at.
        """
        first = self.train.take(slice(2))[1]
        kinds = [kind_of(each) for each in (outputs, first) if not isinstance(each, np.ndarray)]
        if kinds:
            if ours := [name for name in ("loss", "metric") if not callable(getattr(self, name))]:
                cure = f"give a function of both as {' and '.join(ours)}"
                raise ValueError(f"its outputs or targets are {kinds[0]} of arrays: {cure}")
            for name, each in leaves(outputs, "outputs").items():
                if each.shape[:1] != first_leaf(first).shape[:1]:
                    raise ValueError(f"{name} has the shape {each.shape}, no row for each example")
            return
        shape, targets = outputs.shape, first.shape
        given = f"its outputs for two examples have the shape {shape}, their targets {targets}"
        if self.loss == "mean_squared_error" and shape != targets:
            raise ValueError(f"{given}; both must be the same (y[:, None] adds a dimension to y)")
        if self.loss not in ("cross_entropy", "next_token"):
            return
        if shape[:-1] != targets or first.dtype.kind != "i":
            text = "wants a class for each row of outputs, whole numbers such as y.astype(int)"
            raise ValueError(f"{given} of {first.dtype}; {self.loss} {text}")
        for what in ("train", "test"):
            classes = np.append(getattr(self, what).targets, 0)  # nothing of a dataset
            if self.loss == "next_token":
                classes = classes[classes != IGNORED]
            if classes.min() < 0 or classes.max() >= shape[-1]:
                has = f"its {what} targets are from {classes.min()} to {classes.max()}"
                cure = "make one for each class, without an activation, or take mean_squared_error"
                raise ValueError(f"{has}, and its model has {count(shape[-1], 'output')}: {cure}")
        within = np.all((outputs >= 0) & (outputs <= 1)) and shape[-1] > 1
        if within and np.allclose(outputs.sum(axis=-1), 1, rtol=0, atol=1e-4):
            cure = f"{self.loss} wants logits: leave the softmax at its end out"
            raise ValueError(f"its outputs look like probabilities, and {cure}")

    def check_test(self, outputs: Outputs) -> None:
        """Raise `ValueError` if the model cannot take some test examples, or the metric what it
        makes of them.
        """
        inputs, targets = self.test.take(self.test.spread(32))  # of several classes, if sorted
        with trying(f"its model cannot take test inputs of shape {shapes(inputs)}"):
            computed = outputs(inputs)
        pair = f"outputs of shape {shapes(computed)} and targets of {shapes(targets)}"
        with trying(f"its metric fails for numpy arrays, {pair}"):
            quotient([self.metric_of(computed, targets)])

    def metric_of(self, outputs: Tree, targets: Tree) -> Any:
        """The metric for these outputs: a number, or (sum, count)."""
        return in_order(self.metric, METRICS)(outputs, targets)

    def measure(self, outputs: Outputs) -> float:
        """The metric over all test examples. Raises `LockstepError` if it has to get all outputs at
        once and these are more than `GATHERED` bytes.
        """
        parts = ((outputs(x), y) for x, y in self.test.batches())
        made, targets = first = next(parts)
        value = None
        with contextlib.suppress(Exception):  # such as of a metric that wants all classes
            value = self.metric_of(made, targets)
        if isinstance(value, tuple):
            return quotient([value, *(self.metric_of(*part) for part in parts)])
        size = sum(each.nbytes // len(each) for each in leaves(made).values()) * len(self.test)
        if size > GATHERED:
            given = f"the metric {self.metric_name} gets all outputs for test, {amount(size)}"
            raise LockstepError(f"{given}: let it return (sum, count), and it gets 1,000 at a time")
        every, targets = mapped(lambda *each: np.concatenate(each), first, *parts)
        return float(self.metric_of(every, targets))

    def sketch_in(self, framework: str, precision: str = "float32") -> Sketch | None:
        """The sketch of its model in a framework and precision; None if that has not been tried
        yet.
        """
        if self.layers:
            return of_layers(self.layers, self.input_shape, precision)
        if self.known and precision != "float32":
            return self.known._replace(activations=0)  # only layers tell those
        return self.known or self.sketches.get((framework, precision))

    def fingerprint(self) -> str:
        """Of what its model and its loss are made of, and of the values of the global names that
        they use.
        """
        made_of = (self.torch, self.tensorflow, self.loss, self.metric, self.stages, self.parallel)
        return hashlib.sha256(pickles.dumps(made_of)).hexdigest()

    def built(self, framework: str, seed: int) -> Any:
        """Call its builder for a framework."""
        builder = getattr(self, framework)
        takes = inspect.signature(builder).parameters
        return builder(seed=seed) if "seed" in takes else builder()

    def trained(self, run_dir: Path | str) -> Any:
        """Its model as a run that trained it left it: a `torch.nn.Module` or a `keras.Model`, made
        by its builder in this process, with the run's weights and buffers (statistics of batch
        normalisation are those of the first replica). Raises `LockstepError` if the run left none,
        or trained another workload.

            model = mine.trained(run.run_dir)  # the same as run.model()
        """
        files = RunDir(run_dir)
        values, its = files.trained_weights(), files.spec.workload
        if its != self.name:
            raise LockstepError(f"the run in {run_dir} trained {its}: take its Workload, not this")
        name = f"course_lib.strategies.{files.spec.framework}.models:rebuilt"
        return pkgutil.resolve_name(name)(self, files.spec.seed, values)

    # --- of our own workloads, whose models are described by layers ---

    @property
    def input_shape(self) -> Shape:
        """Shape of one input."""
        return self.train.take([0])[0].shape[1:]

    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """The weights that every run with this seed starts from, in the layout of `layers.py`."""
        return glorot(self.layers, self.input_shape, seed, self.gain)

    # --- on its way into the tasks ---

    def leave(self, folder: Path) -> None:
        """Write it into a folder, from which `load` makes it again in another process."""
        self.train.leave(folder / "train")
        self.test.leave(folder / "test")
        kept = {name: value for name, value in vars(self).items() if name not in ("train", "test")}
        (folder / "workload.pickle").write_bytes(pickles.dumps(kept))

    @classmethod
    def load(cls, folder: Path) -> Workload:
        """The workload that `leave` wrote."""
        kept = pickles.loads((folder / "workload.pickle").read_bytes())
        sketches = kept.pop("sketches")
        train, test = (Examples.load(folder / name) for name in ("train", "test"))
        workload = cls(train=train, test=test, **kept)
        workload.sketches.update(sketches)
        return workload
