"""What is trained, whatever trains it: examples, a model for each framework, a loss, a metric."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.errors import LockstepError, SpecError, trying
from course_lib.record import pickles
from course_lib.record.rundir import RunDir
from course_lib.text import amount, kind_of
from course_lib.workloads.examples import Examples, iterable
from course_lib.workloads.layers import Layer, Shape, glorot
from course_lib.workloads.losses import IGNORED, LOSSES, METRICS, Metric, in_order, quotient
from course_lib.workloads.sketch import Sketch, of_layers
from course_lib.workloads.trees import Tree, first_leaf, leaves, mapped, shapes

FRAMEWORKS = ("tensorflow", "torch")
WAYS = ("columns", "rows", "heads")  # to cut a layer
GATHERED = 2**30  # bytes of outputs that a metric may be given at once

Builder = Callable[..., Any]
"""Makes a model: a `torch.nn.Module`, or a `keras.Model`."""

Outputs = Callable[[Tree], Tree]
"""What a model makes of inputs when it is not being trained; both are of numpy arrays."""

OURS: set[str] = set()
"""The names of the course's own workloads."""

OWN: dict[str, Workload] = {}
"""A learner's workloads by name; the last one of a name."""


@dataclass(frozen=True, eq=False)
class Workload:
    """What is trained, whatever trains it.

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
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            raise SpecError("name", self.name, "a name of letters, digits and _, such as mine")
        if self.name in OURS and not self.ours:
            raise SpecError("name", self.name, "the course has one of this name: take another")
        if examples is not None and not any(map(iterable, (self.train, self.test))):
            raise SpecError("examples", examples, "is for datasets that can only be iterated")
        for name in ("train", "test"):
            given = getattr(self, name)
            if not isinstance(given, Examples):
                object.__setattr__(self, name, Examples(given, name, examples))
        for name in FRAMEWORKS:
            builder = getattr(self, name)
            if builder is not None and not callable(builder):
                text = "a function without arguments that makes the model, such as lambda: ..."
                raise SpecError(name, type(builder).__name__, text)
        if not self.frameworks:
            raise SpecError("torch", None, "a builder for torch or for tensorflow is missing")
        if isinstance(self.loss, type):
            made = f"{self.loss.__name__}() makes one"
            raise SpecError("loss", self.loss.__name__, f"a function, and this is a class: {made}")
        if not (callable(self.loss) or self.loss in LOSSES):
            raise SpecError.unknown("loss", self.loss, [*LOSSES, "a function"])
        if self.metric is None:
            targets = self.train.take([0])[1]
            if not isinstance(targets, np.ndarray):
                raise SpecError("metric", None, "targets are several arrays: give a function")
            classes = targets.dtype.kind == "i" and self.loss != "mean_squared_error"
            object.__setattr__(self, "metric", "accuracy" if classes else "mean_squared_error")
        elif not (callable(self.metric) or self.metric in METRICS):
            raise SpecError.unknown("metric", self.metric, [*METRICS, "a function"])
        if not (isinstance(self.learning_rate, (int, float)) and 0 < self.learning_rate <= 100):
            raise SpecError("learning_rate", self.learning_rate, "a number above 0, at most 100")
        names = self.stages
        if isinstance(names, str) or len(set(names)) < len(names):
            text = 'a list of names, each once, such as ["embed", "blocks.0", "logits"]'
            raise SpecError("stages", names, text)
        plan = self.parallel
        if not isinstance(plan, Mapping) or not set(plan.values()) <= set(WAYS):
            text = f"how each layer is cut, {', '.join(WAYS)}, such as {{'up': 'columns'}}"
            raise SpecError("parallel", plan, text)
        if not self.ours:
            OWN[self.name] = self

    @property
    def ours(self) -> bool:
        """Whether it is one of the course's, which are known by their functions."""
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
        shape, targets, kind = outputs.shape, first.shape, first.dtype.kind
        given = f"its outputs for two examples have the shape {shape}, their targets {targets}"
        if self.loss == "mean_squared_error" and shape != targets:
            raise ValueError(f"{given}; both must be the same (y[:, None] adds a dimension to y)")
        if self.loss not in ("cross_entropy", "next_token"):
            return
        if shape[:-1] != targets:
            text = "wants a class for each row of outputs, a whole number from 0 on"
            raise ValueError(f"{given}; {self.loss} {text}")
        if kind != "i":
            raise ValueError(f"{self.loss} wants whole numbers as targets, such as y.astype(int)")
        for what in ("train", "test"):
            ignored = IGNORED if self.loss == "next_token" else None
            low, high = getattr(self, what).range_of_targets(ignored)
            if low < 0 or high >= shape[-1]:
                has = f"its {what} targets are from {low:g} to {high:g}, and its model has"
                if shape[-1] == 1:
                    other = 'loss="mean_squared_error" with targets of shape (n, 1)'
                    cure = f"make it {high + 1:g}, without an activation, or take {other}"
                    raise ValueError(f"{has} 1 output, which can tell no classes apart: {cure}")
                raise ValueError(f"{has} {shape[-1]} classes, from 0 on")
        sums, within = outputs.sum(axis=-1), np.all((outputs >= 0) & (outputs <= 1))
        if shape[-1] > 1 and within and np.allclose(sums, 1, rtol=0, atol=1e-4):
            cure = f"{self.loss} wants logits: leave the softmax at its end out"
            raise ValueError(f"its outputs look like probabilities, and {cure}")

    def check_test(self, outputs: Outputs) -> None:
        """Raise `ValueError` if the model cannot take some test examples, or the metric what it
        makes of them.
        """
        inputs, targets = self.test.take(self.test.spread(32))  # of several classes, if sorted
        with trying(f"its model cannot take test inputs of shape {shapes(inputs)}"):
            found = outputs(inputs)
        pair = f"outputs of shape {shapes(found)} and targets of {shapes(targets)}"
        with trying(f"its metric fails for numpy arrays, {pair}"):
            quotient([self.metric_of(found, targets)])

    def metric_of(self, outputs: Tree, targets: Tree) -> Any:
        """The metric for these outputs: a number, or (sum, count)."""
        measure = self.metric if callable(self.metric) else METRICS[str(self.metric)]
        return in_order(measure)(outputs, targets)

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
        """What is known of its model in a framework and precision; None if that has not been tried
        yet.
        """
        if not self.ours:
            return self.sketches.get((framework, precision))
        if self.layers:
            return of_layers(self.layers, self.input_shape, precision)
        if self.known and precision != "float32":
            return self.known._replace(activations=0)  # only layers tell those
        return self.known

    def fingerprint(self) -> str:
        """Of what its model and its loss are made of, and of the values of the global names that
        they use.
        """
        made_of = (self.torch, self.tensorflow, self.loss, self.metric, self.stages, self.parallel)
        return hashlib.sha256(pickles.dumps(made_of)).hexdigest()

    def built(self, framework: str, seed: int) -> Any:
        """What its builder for a framework makes."""
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
        """Write it into a folder, from which `found` makes it again in another process."""
        self.train.leave(folder / "train")
        self.test.leave(folder / "test")
        kept = {name: value for name, value in vars(self).items() if name not in ("train", "test")}
        (folder / "workload.pickle").write_bytes(pickles.dumps(kept))

    @classmethod
    def found(cls, folder: Path) -> Workload:
        """What `leave` wrote."""
        kept = pickles.loads((folder / "workload.pickle").read_bytes())
        sketches = kept.pop("sketches")
        train, test = (Examples.found(folder / name) for name in ("train", "test"))
        workload = cls(train=train, test=test, **kept)
        workload.sketches.update(sketches)
        return workload
