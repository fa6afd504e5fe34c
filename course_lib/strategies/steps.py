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

Each line leaves its phase in the trace, see `Phases`. What is particular to a framework (its
tensors, how to wait for a GPU, stamps inside of a graph) is in `torch/steps.py` and
`tensorflow/steps.py`.
"""

import contextlib
import functools
import math
import random
import time
import timeit
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.errors import SpecError, trying
from course_lib.record import checkpoints
from course_lib.record.checkpoints import Checkpoint
from course_lib.record.events import Metric, clock
from course_lib.record.measures import MEMORY
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import saving
from course_lib.strategies.optimizers import LossScale
from course_lib.workloads import order
from course_lib.workloads.layers import digest

MOMENT = 1e-6  # seconds, too short to sleep
PARTS = ("stage", "experts")
"""Variables that nobody else holds, and that nobody puts together: each task leaves its own."""
Span = tuple[float, float]
"""The times at which something began and ended."""


class Phases:
    """The phases of a task in step `number`, one after the other.

    `now` waits for devices that do later what they are told now; `emulating` says when the emulated
    device time passes.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.number = task, -1
        # The seconds that recent steps computed, for each part of a step that is computed at a
        # time. The least of them counts, as a busy machine only ever adds to it.
        self._busy: defaultdict[float, deque[float]] = defaultdict(lambda: deque([0.0], maxlen=5))
        self._beside: list[Span] = []
        # the exchanges that the present computing waited for; None if nothing is being computed
        self._exchanged: list[Span] | None = None
        # seconds of device time in the present computing: still to pass, and passed
        self._owed = self._slept = 0.0
        self._computed: float | None = None  # when that ended, if the clock after it is too late
        self._end = clock()  # of the last phase

    def now(self) -> float:
        """The time, once the device has done all that it was given so far."""
        return clock()

    @contextlib.contextmanager
    def computing(self, part: float = 1.0) -> Iterator[None]:
        """The forward pass, the backward pass, or both, with the emulated device time.

        `part`: which part of a step's work this is, where a task does only a part of it at a time.
        An exchange in the middle of it (`exchanging`) divides the phase in two. Where reductions
        went on beside it (`reduced_beside`), it ends when the last of them begins: by then all
        gradients were there.
        """
        self.task.enter("compute")
        begun = self._end = self.now()
        self._owed, self._slept = self.task.delay(min(self._busy[part]), part), 0.0
        exchanged: list[Span] = []
        self._exchanged = exchanged
        with self.emulating():
            yield
        self.sleep(self._owed)  # what no layer has taken
        end, self._computed = self._computed or self.now(), None
        reduced, self._beside = sorted(self._beside), []
        computed = reduced[-1][0] if reduced else end
        waited = sum(b - a for a, b in exchanged)
        self._busy[part].append(computed - begun - self._slept - waited)
        self.task.record("compute", self.number, self._end, computed)
        for span in reduced:
            self.task.record("reduce", self.number, *span)
        self._end, self._exchanged = end, None
        self.task.enter("wait")  # until the next line of the page; a pipeline's stage for others

    def emulating(self) -> contextlib.AbstractContextManager[None]:
        """Let the device time that is owed pass, before the block or inside it."""
        self.sleep(self._owed)
        return contextlib.nullcontext()

    def sleep(self, seconds: float) -> float:
        """Sleep for `seconds`, at most for those that are owed; return how many it really took."""
        begun = clock()
        if (seconds := min(seconds, self._owed)) > MOMENT:
            time.sleep(seconds)
        took = clock() - begun
        self._owed, self._slept = self._owed - took, self._slept + took
        return took

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """An exchange in the middle of the forward or backward pass, which waits for it.

        It is recorded only during `computing`, and so not while the metric is measured.
        """
        with self.held_up() as begun:
            yield
        if self._exchanged is not None:
            self._record("reduce", begun, self._end)

    @contextlib.contextmanager
    def held_up(self) -> Iterator[float]:
        """The block waits for an exchange, and divides the `compute` phase in two."""
        begun, before = self.now(), self.task.doing
        self.task.enter("reduce")
        yield begun
        self.task.enter(before)
        if self._exchanged is not None:
            self._record("compute", self._end, begun)
            self._end = self.now()
            self._exchanged.append((begun, self._end))

    def exchange_begins(self) -> Callable[[], None]:
        """An exchange begins that goes on beside computing. Call the function that is returned when
        the exchange is over, from any thread.
        """
        begun, number, computing = self.now(), self.number, self._exchanged is not None

        def over() -> None:
            if computing:
                self.task.record("reduce", number, begun, self.now())

        return over

    def reduced_beside(self, begun: float) -> None:
        """Note a reduction that went on beside the backward pass, from `begun` until now.

        It may be called by another thread than that of the pass.
        """
        self._beside.append((begun, self.now()))

    def reducing(self) -> contextlib.AbstractContextManager[None]:
        """An exchange of gradients after the backward pass."""
        return self._phase("reduce")

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """A time in which the task can only wait for others."""
        return self._phase("wait")

    def waited(self) -> None:
        """Nothing happened here since the last phase: the task waited for others."""
        self._record("wait", self._end, self.now())

    @contextlib.contextmanager
    def _phase(self, what: str) -> Iterator[None]:
        self.task.enter(what)
        begun = self.now()
        yield
        self._record(what, begun, self.now())

    def _record(self, what: str, start: float, end: float) -> None:
        self.task.record(what, self.number, start, end)
        self._end = end


class Census:
    """The memory of a task, by kind (`record/measures.py`), at its peak in the first step."""

    def __init__(self, task: Task) -> None:
        self.task, self.open, self.peak = task, True, dict[str, int]()

    def note(self, **bytes_now: int) -> None:
        """So many bytes of each kind are held now. Those of an `exchange` count as buffers."""
        if self.open:
            for kind, count in bytes_now.items():
                self.peak[kind] = max(count, self.peak.get(kind, 0))

    def close(self, step: int, samples: int, memory: Callable[[], dict[str, int]]) -> None:
        """A step is over. If it was the first, record what was noted in it, and the `memory` now of
        the kinds that were not noted.
        """
        if self.open:
            self.open = False
            peak = memory() | self.peak
            if "exchange" in peak:
                peak["buffers"] = peak.get("buffers", 0) + peak.pop("exchange")
            record(self.task, self.task.name, step, samples, peak)


def record(task: Task, whose: str, step: int, samples: int, memory: dict[str, int]) -> None:
    """Record the memory of a task, which may be another one."""
    for kind in MEMORY:
        if kind in memory:
            task.recorder.add(Metric(whose, kind, memory[kind], step, samples, clock()))


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

    Where each replica goes its own way for a while, they are `apart`: an update has the gradients
    of one of them, and a checkpoint holds each. The metric is then that of the first.

    The `first` of the tasks that hold the same saves the trained weights in the end.
    """

    writers: Sequence[str] = ("worker:0",)
    apart = False

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
        self._has_part = holders[0][0].partition(" ")[0] in PARTS

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
            self.restore()
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
        if not 0 <= share < of:
            raise SpecError("share", share, f"one of {of}: a whole number from 0 to {of - 1}")
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
        scaled = self.scale.seen(norm, zeros)
        for name, value in scaled.items():
            self.task.metric(name, value, self.number, self.samples)
        self._skipped = bool(scaled["overflow"])
        return not self._skipped

    def updated(self) -> None:
        """Record one update of everything that this task holds, unless it was skipped."""
        if self._skipped:
            return
        gradients = self.spec.shares if self._whole and not self.apart else 1
        before = self.updates
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
                self.leave_checkpoint()

    def leave_checkpoint(self) -> None:
        """Leave a checkpoint of the state after this step. All tasks call it, as they may write
        together; those among the `writers` leave a part each.
        """
        steps, writes = self.number + 1, self.task.name in self.writers
        owner = self.task.name if writes else self.writers[0]
        part = checkpoints.part_of(self.task.files, owner, steps, self.task.attempt)
        self.save_state(part)
        if writes:
            numbers = {"samples": self.samples, "updates": self.updates, "loss": self.loss}
            numbers |= self.scale.state
            checkpoints.seal(part, steps, numbers, saving.facts_of(self.spec), self.writers)

    def restore(self) -> None:
        """Go back to the checkpoint that the run goes on from, if there is one."""
        if origin := self.origin:
            part, manifest = origin.part(self.task.name)
            numbers = manifest.numbers
            self.number, self.updates = origin.steps - 1, int(numbers["updates"])
            self.ahead = int(numbers["samples"]) - origin.steps * self.spec.batch
            self.scale.state, self.loss = numbers, numbers.get("loss", math.nan)
            with trying(f"the model is not that of the checkpoint in {part}"):
                self.load_state(part)

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
        """Return the strategy's result: final_loss (mean over the last global batch), test_accuracy
        (or test_ and another metric), digest (of the weights that this task ended with), parameters
        (of the whole model), flops_per_step (see `training_flops`), variables_on and
        optimizer_state_on (bytes by device); and the `sample` of a workload that has one. The first
        task saves the trained weights; with `PARTS` each saves its own. The first task also adds
        `matmul_flops`, measured last, when the other tasks are done.

        Where each task holds a shard, all tasks must call it together.
        """
        self.task.enter("evaluate")
        spec, workload, named = self.spec, self.workload, self.named_weights()
        if self.first or self._has_part:  # before the metric may fail
            self.task.files.leave_weights(self.task.name, named)
        placed = {"variables_on": self.variables_on(), "optimizer_state_on": self.state_on()}
        weights, metric = self.weights(), workload.measure(self.outputs)
        model = workload.sketch_in(spec.framework, spec.precision)
        values = {
            "final_loss": self.loss,
            f"test_{workload.metric_name}": metric,
            "digest": digest(weights),
            "parameters": model.parameters if model else sum(weight.size for weight in weights),
            "flops_per_step": model.flops * spec.batch if model else 0,
            **placed,
        }
        if workload.sample and (self.first or not self._whole):
            values["sample"] = workload.sample(self.outputs)
        if self.first:
            values["matmul_flops"] = self.matmul_flops()
        return values


def due(spec: RunSpec, steps: int) -> bool:
    """Return whether `evaluate_every` asks for the metric once so many steps are done."""
    return spec.evaluate_every > 0 and steps % spec.evaluate_every == 0


def fastest(multiply: Callable[[], Any], size: int) -> float:
    """Floating-point operations a second of `multiply`, which multiplies two square matrices of a
    `size`: those of the shortest of ten, as other programs only ever add to the time.
    """
    multiply()
    return 2 * size**3 / min(timeit.repeat(multiply, timer=clock, number=1, repeat=10))
