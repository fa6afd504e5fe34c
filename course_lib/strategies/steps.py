"""A training step: its examples, its checkpoint, its result, and a record of what happens in it, so
that a strategy's page need not show them.

A page says what happens in a step, in the order in which it happens:

    while step.begin():
        inputs, targets = step.read(task.index, task.spec.workers)
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            average the gradients
        with step.applying():
            update the parameters
        step.done(loss)
    return step.result()

Each line leaves its phase in the trace, see `phases.py`. What is particular to a framework (its
tensors, how to wait for a GPU, stamps inside of a graph) is in `torch/steps.py` and
`tensorflow/steps.py`.
"""

import contextlib
import functools
import random
import timeit
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.record.checkpoints import Checkpoint
from course_lib.record.events import clock
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import saving
from course_lib.strategies.memory import Census
from course_lib.strategies.phases import Phases
from course_lib.strategies.precision import LossScale
from course_lib.workloads import order
from course_lib.workloads.layers import digest
from course_lib.workloads.workload import Outputs


class TrainingStep(Phases, ABC):
    """The step that a task is in: `begin` goes on to the next one, `done` ends it.

    `number` counts steps from 0, `updates` the updates of the variables that this task holds;
    `loss` is that of the last step done, `scale` the loss scale of the next one.

    With `evaluate_at`, `read` measures the metric of the parameters that were fetched for this
    step, which have seen so many examples. `holders` are the variables that this task updates in
    each step, with the device of each: `[("all", "cpu")]`. A task that holds all variables
    applies the gradients of all replicas; one that holds a shard or a stage shares the evaluation
    with the others, as nobody has the whole model.

    The first `begin` goes back to the last checkpoint, if the run goes on from one, and `done`
    leaves one when it is due (`saving.py`): each of the `writers` leaves a part of it. After one
    of larger batches, the run has read more examples than steps of this size would make: it is
    `ahead` by so many.

    The `first` of the tasks that hold the same saves the trained weights in the end.
    """

    writers: Sequence[str] = ("worker:0",)

    def __init__(self, task: Task, holders: Sequence[tuple[str, str]]) -> None:
        super().__init__(task)
        self.spec, self.holders = task.spec, holders
        self.workload = workloads.load(task.spec)
        self.updates = self.ahead = self.evaluate_at = 0
        self.first = task.index == 0
        self.scale, self._skipped = LossScale(task.spec), False
        self.loss = float("nan")
        self.census = Census(task)
        self._whole = holders[0][0] == "all"

    # --- what differs between frameworks ---

    @abstractmethod
    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        """Inputs and targets of these training examples, on the task's device."""

    @abstractmethod
    def outputs(self, inputs: Any) -> Any:
        """Compute the outputs of the model when it is not being trained."""

    @abstractmethod
    def weights(self) -> list[np.ndarray]:
        """The weights that this task ends with, in the layout that all frameworks share."""

    @abstractmethod
    def named_weights(self) -> dict[str, np.ndarray]:
        """All weights of the workload's model by name, also those that are not trained; on a stage
        of a pipeline only the stage's own.
        """

    @abstractmethod
    def variables_on(self) -> dict[str, int]:
        """Bytes of the variables that this task holds, by device."""

    @abstractmethod
    def state_on(self) -> dict[str, int]:
        """Bytes of the optimizer's state that this task holds, by device."""

    @abstractmethod
    def matmul_flops(self) -> float:
        """Floating-point operations that a float32 matrix product does here in a second."""

    @abstractmethod
    def save_state(self, part: Path) -> None:
        """Write what the next step depends on into this folder, which belongs to one of the
        `writers`. The numbers that every step counts are kept elsewhere.
        """

    @abstractmethod
    def load_state(self, part: Path) -> None:
        """Go on from what `save_state` has written. The numbers are those of the checkpoint."""

    def memory(self) -> dict[str, int]:
        """Bytes of memory that this task holds between two steps, by kind."""
        return {
            "parameters": sum(self.variables_on().values()),
            "optimizer_state": sum(self.state_on().values()),
            "buffers": 0,
        }

    @functools.cached_property
    def origin(self) -> Checkpoint | None:
        """The checkpoint that this task goes on from."""
        return saving.latest(self.task.files, self.spec)

    # --- a step, from its beginning to its end ---

    def begin(self, number: int | None = None) -> bool:
        """Go on to step `number` (default: the next one); False if the run has no such step.

        The phase `read` begins now.
        """
        if number is None and self.number < 0 and self.writers:
            saving.restore(self)
        self.number = self.number + 1 if number is None else number
        if self.number >= self.spec.steps:
            return False
        self.task.begin(self.number)
        self._end = self.now()
        return True

    def read(self, share: int = 0, of: int = 1, batch: int = 0) -> tuple[Any, Any]:
        """Inputs and targets of the `share`-th of `of` equal slices of the step's global batch
        (`batch`: its size, if it is not that of the run). The phase `read` ends with it.

        Random numbers begin anew here, also those that a dataset draws (`draw_as`).
        """
        train = self.workload.train
        self.draw_as(share)
        pieces = order.pieces(self.spec, train, self.number, share, of, batch, self.ahead)
        examples = self.tensors(np.concatenate([indices for _, indices in pieces]))
        if self.spec.record_examples:
            for epoch, indices in pieces:
                self.task.examples(self.number, epoch, indices.tolist())
        self._record("read", self._end, self.now())
        if self.evaluate_at:
            self.evaluate(self.evaluate_at)
            self.evaluate_at = 0
        return examples

    def draw_as(self, share: int) -> None:
        """Let random numbers begin anew: those of Python's `random` and of numpy here, those of a
        framework with the seed that is `drawn`.

        They follow from the run's seed, the step and the `share` of the batch. So a run that is
        repeated, or goes on from a checkpoint, draws the same; shares draw apart, and tasks that
        divide the work on a share between them draw alike.
        """
        drawn = np.random.SeedSequence([self.spec.seed, self.number, share]).generate_state(3)
        random.seed(int(drawn[0])), np.random.seed(drawn[1])
        self.drawn = int(drawn[2])

    @contextlib.contextmanager
    def applying(self) -> Iterator[None]:
        """The update of the variables that this task holds: one more version of each of them,
        unless it is skipped (see `finite`).
        """
        with self._phase("apply"):
            yield
        self.updated()

    def finite(self, norm: float, zeros: float) -> bool:
        """Check that a gradient with this norm over the whole model is finite; if not, the update
        is skipped. To be called in float16 only: it records the gradient, with its share of
        `zeros`, and adjusts the loss scale.
        """
        found = self.scale.seen(norm, zeros)
        for name, value in found.items():
            self.task.metric(name, value, self.number, self.samples)
        self._skipped = bool(found["overflow"])
        return not self._skipped

    def updated(self) -> None:
        """Record one update of everything that this task holds, unless it was skipped."""
        if self._skipped:
            return
        gradients, before = self.spec.shares if self._whole else 1, self.updates
        self.updates += 1
        for variables, device in self.holders:
            self.task.update(self.number, variables, device, before, self.updates, gradients)

    def done(self, loss: float | None = None) -> None:
        """The step is over. `loss`: the mean over its global batch, where this task knows it.

        The metric is measured here if the run asks for it now: after the last phase of this
        step and before the first of the next one.
        """
        if loss is not None:
            self.loss = loss
            self.task.metric("loss", self.loss, self.number, self.samples)
        if due(self.spec, self.number + 1) and not (self._whole and self.task.index):
            self.evaluate(self.samples)
        self.census.close(self.number, self.samples, self.memory)
        self.save()
        self.task.at_step_end()

    def save(self) -> None:
        """Leave a checkpoint, if one is due after this step."""
        if saving.due(self.spec, self.number + 1):
            with self._phase("checkpoint"):
                saving.save(self)

    @property
    def samples(self) -> int:
        """Examples that the run has used when this step is over."""
        return (self.number + 1) * self.spec.batch + self.ahead

    def evaluate(self, samples: int) -> None:
        """Record the metric of the model, whose parameters have seen so many examples."""
        self.task.enter("evaluate")
        value, name = self.workload.measure(self.outputs), self.workload.metric_name
        step = (samples - self.ahead) // self.spec.batch - 1
        self.task.metric(name, value, step, samples)

    # --- what it leaves ---

    def result(self) -> dict[str, Any]:
        """Return the strategy's result: see `outcome`, and the `sample` of a workload that has one.
        The first task saves the trained weights; in a pipeline each stage saves its own. The first
        task also adds `matmul_flops`, measured last, when the other tasks are done.

        Where each task holds a shard, all tasks must call it together.
        """
        self.task.enter("evaluate")
        named = self.named_weights()
        if self.first or self.holders[0][0].startswith("stage"):  # before the metric may fail
            self.task.files.leave_weights(self.task.name, named)
        held = {"variables_on": self.variables_on(), "optimizer_state_on": self.state_on()}
        found = outcome(self.task, self.outputs, self.weights(), self.loss) | held
        if self.workload.sample and (self.first or not self._whole):
            found["sample"] = self.workload.sample(self.outputs)
        if self.first:
            found["matmul_flops"] = self.matmul_flops()
        return found


def due(spec: RunSpec, steps: int) -> bool:
    """Return whether `evaluate_every` asks for the metric once so many steps are done."""
    return spec.evaluate_every > 0 and steps % spec.evaluate_every == 0


def fastest(multiply: Callable[[], Any], size: int) -> float:
    """Floating-point operations a second of `multiply`, which multiplies two square matrices of a
    `size`: those of the shortest of ten, as other programs only ever add to the time.
    """
    multiply()
    return 2 * size**3 / min(timeit.repeat(multiply, timer=clock, number=1, repeat=10))


def outcome(
    task: Task, outputs: Outputs, weights: Sequence[np.ndarray], loss: float
) -> dict[str, Any]:
    """Make the result of a strategy, but for variables_on and optimizer_state_on (bytes by device).

    final_loss (mean over the last global batch), test_accuracy (or test_ and another metric),
    digest (of the weights that this task ended with), parameters (of the whole model),
    flops_per_step (see `training_flops`).
    """
    workload = workloads.load(task.spec)
    model = workload.sketch_in(task.spec.framework, task.spec.precision)
    metric = workload.measure(outputs)
    return {
        "final_loss": loss,
        f"test_{workload.metric_name}": metric,
        "digest": digest(weights),
        "parameters": model.parameters if model else sum(weight.size for weight in weights),
        "flops_per_step": model.flops * task.spec.batch if model else 0,
    }
