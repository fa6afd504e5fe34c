"""The recorder of a training step: clocks, emulated device time and events, so that a strategy's
page need not show them.

A page says what happens in a step, in the order in which it happens:

    while step.begin():
        inputs, targets = step.read(task.index, task.spec.workers)
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            average the gradients
        with step.applying():
            descend(step)
        step.done(loss.item())
    return step.result()

Each line leaves its phase in the trace. What is particular to a framework (its tensors, how to wait
for a GPU, stamps inside of a graph) is in `torch/steps.py` and `tensorflow/steps.py`.
"""

import contextlib
import functools
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.record import weights
from course_lib.record.checkpoints import Checkpoint
from course_lib.spec import RunSpec
from course_lib.strategies import saving
from course_lib.strategies.memory import Census
from course_lib.strategies.precision import LossScale
from course_lib.workloads.workload import Outputs, digest

MOMENT = 1e-6  # seconds, too short to sleep
Moment = Any
"""A time on the clock of the trace, or an event of a GPU from which `time` can tell it."""
Span = tuple[Moment, Moment]
"""When something began and ended."""


class TrainingStep(ABC):
    """The step that a task is in: `begin` goes on to the next one, `done` ends it.

    `number` counts steps from 0, `updates` the updates of the variables that this task holds;
    `loss` is that of the last step done, `scale` the loss scale of the next one.

    With `evaluate_at`, `read` measures the metric of the parameters that were fetched for this
    step, which have seen so many examples. `holders` are the variables that this task updates in
    each step, with the device of each: `[("all", "cpu")]`. A task that holds all variables
    applies the gradients of all replicas; one that holds a shard or a stage shares the evaluation
    with the others, as nobody has the whole model.

    The first `begin` goes back to the last checkpoint, if the run goes on from one, and `done`
    leaves one when it is due (`saving.py`): each of the `writers` leaves a part of it. After a
    restart with fewer workers, whose batches are smaller, the run has read more examples than steps
    of this size would make: it is `ahead` by so many.

    The `first` of the tasks that hold the same saves the trained weights in the end.
    """

    writers: Sequence[str] = ("worker:0",)

    def __init__(self, task: Task, holders: Sequence[tuple[str, str]]) -> None:
        self.task, self.spec, self.holders = task, task.spec, holders
        self.workload = workloads.load(task.spec)
        self.number, self.updates, self.ahead = -1, 0, 0
        self.first = task.index == 0
        self.scale, self._skipped = LossScale(task.spec), False
        self.loss = float("nan")
        self.census = Census(task)
        self._whole = holders[0][0] == "all"
        # The seconds that recent steps computed, for each part of a step that is computed at a
        # time. The least of them counts, as a busy machine only ever adds to it.
        self._busy: defaultdict[float, deque[float]] = defaultdict(lambda: deque([0.0], maxlen=5))
        self.failure: Exception | None = None  # what went wrong in an exchange beside computing
        self.evaluate_at = 0
        self._beside: list[Span] = []
        # the exchanges that the present computing waited for; None if nothing is being computed
        self._exchanged: list[Span] | None = None
        # seconds of device time in the present computing: still to pass, and passed
        self._owed = self._slept = 0.0
        self._computed: float | None = None  # when that ended, if the clock after it is too late
        self._end: Moment = clock()  # of the last phase

    # --- what differs between frameworks ---

    @abstractmethod
    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        """Inputs and targets of these training examples, on the task's device."""

    @abstractmethod
    def outputs(self, inputs: np.ndarray) -> np.ndarray:
        """What the model makes of inputs when it is not being trained."""

    def now(self) -> Moment:
        """When the device will have done all that it was given so far."""
        return clock()

    def time(self, moment: Moment) -> float:
        """A moment as a time on the clock of the trace."""
        return float(moment)

    def later(self, note: Callable[[], None]) -> None:
        """Call a function that asks for the times of moments, once these are known."""
        note()

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

    def held(self) -> dict[str, int]:
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

    def read(self, share: int = 0, of: int = 1, batch: int | None = None) -> tuple[Any, Any]:
        """Inputs and targets of the `share`-th of `of` equal slices of the step's global batch
        (`batch`: its size, if it is not that of the run). The phase `read` ends with it.
        """
        size = batch or self.spec.batch
        pieces = pieces_of(self.spec, self.workload, self.number, share, of, size, self.ahead)
        examples = self.tensors(np.concatenate([indices for _, indices in pieces]))
        if self.spec.record_examples:
            for epoch, indices in pieces:
                self.task.examples(self.number, epoch, indices.tolist())
        self._record("read", self._end, self.now())
        if self.evaluate_at:
            self.evaluate(self.evaluate_at)
            self.evaluate_at = 0
        return examples

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
        exchanged = self._exchanged = list[Span]()
        with self.emulating():
            yield
        if self.failure:
            raise self.failure
        self.sleep(self._owed)  # what no layer has taken
        number, slept, going_on = self.number, self._slept, self._end
        end, self._computed = self._computed or self.now(), None
        beside, self._beside = self._beside, []
        self._end, self._exchanged = end, None

        def note() -> None:
            reduced = sorted((self.time(a), self.time(b)) for a, b in beside)
            computed = reduced[-1][0] if reduced else self.time(end)
            waited = [self.time(b) - self.time(a) for a, b in exchanged]
            self._busy[part].append(computed - self.time(begun) - slept - sum(waited))
            self.task.record("compute", number, self.time(going_on), computed)
            for span in reduced:
                self.task.record("reduce", number, *span)

        self.later(note)
        self.task.enter("wait")  # until the next line of the page; a pipeline's stage for others

    @contextlib.contextmanager
    def emulating(self) -> Iterator[None]:
        """Let the device time that is owed pass, before the block or inside it."""
        self.sleep(self._owed)
        yield

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
    def held_up(self) -> Iterator[Moment]:
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
                self._note("reduce", number, begun, self.now())

        return over

    def reduced_beside(self, begun: Moment) -> None:
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
    def applying(self) -> Iterator[None]:
        """The update of the variables that this task holds: one more version of each of them,
        unless it is skipped (see `finite`).
        """
        with self._phase("apply"):
            yield
        self.updated()

    def finite(self, norm: float, zeros: float) -> bool:
        """Whether a gradient with this norm over the whole model is free of infinities and NaNs; if
        not, the update is skipped. To be called in float16 only: it records the gradient, with its
        share of `zeros`, and adjusts the loss scale.
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
        self.census.close(self.number, self.samples, self.held)
        if saving.due(self.spec, self.number + 1):
            with self._phase("checkpoint"):
                saving.save(self)
        self.task.at_step_end()

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
        """What the strategy returns: see `outcome`, and the `sample` of a workload that has one.
        The first task saves the trained weights; in a pipeline each stage saves its own. The first
        task also adds `matmul_flops`, measured last, when the other tasks are done.

        Where each task holds a shard, all tasks must call it together.
        """
        self.task.enter("evaluate")
        held = self.variables_on(), self.state_on()
        found = outcome(self.task, self.outputs, self.weights(), self.loss, *held)
        if self.spec.keep_model:
            named = self.named_weights()
            if self.first or self.holders[0][0].startswith("stage"):
                weights.leave(self.task.files, self.task.name, named)
        if self.workload.sample and (self.first or not self._whole):
            found["sample"] = self.workload.sample(self.outputs)
        if self.first:
            found["matmul_flops"] = self.matmul_flops()
        return found

    @contextlib.contextmanager
    def _phase(self, what: str) -> Iterator[None]:
        self.task.enter(what)
        begun = self.now()
        yield
        self._record(what, begun, self.now())

    def _record(self, what: str, start: Moment, end: Moment) -> None:
        self._note(what, self.number, start, end)
        self._end = end

    def _note(self, what: str, number: int, start: Moment, end: Moment) -> None:
        self.later(lambda: self.task.record(what, number, self.time(start), self.time(end)))


@contextlib.contextmanager
def trying(what: str) -> Iterator[None]:
    """Say in a `ValueError` of one line what failed in the block, and how."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{what}: {type(error).__name__}: {reason}") from error


def pieces_of(
    spec: RunSpec,
    workload: workloads.Workload,
    step: int,
    share: int,
    of: int,
    batch: int,
    ahead: int = 0,
) -> list[tuple[int, np.ndarray]]:
    """The examples of the `share`-th of `of` slices of a step's global `batch`, as pairs of an
    epoch and its examples. If each worker has its own part of the data, so has each replica. The
    run is `ahead` by so many examples.
    """
    replicas = spec.replicas if spec.sampler == "per_worker" else 1
    return [
        piece
        for k in range(share * replicas, (share + 1) * replicas)
        for piece in workload.pieces(step, spec.seed, batch, k, of * replicas, spec.sampler, ahead)
    ]


def due(spec: RunSpec, steps: int) -> bool:
    """Whether `evaluate_every` asks for the metric once so many steps are done."""
    return spec.evaluate_every > 0 and steps % spec.evaluate_every == 0


def fastest(multiply: Callable[[], Any], size: int) -> float:
    """Floating-point operations a second of `multiply`, which multiplies two square matrices of a
    `size`: those of the shortest of ten, as other programs only ever add to the time.
    """
    multiply()

    def seconds() -> float:
        begun = clock()
        multiply()
        return clock() - begun

    return 2 * size**3 / min(seconds() for _ in range(10))


def outcome(
    task: Task,
    outputs: Outputs,
    weights: Sequence[np.ndarray],
    loss: float,
    variables_on: dict[str, int],
    state_on: dict[str, int],
) -> dict[str, Any]:
    """What a strategy returns.

    final_loss (mean over the last global batch), test_accuracy (or test_ and another metric),
    digest (of the weights that this task ended with), parameters (of the whole model),
    flops_per_step (see `training_flops`), variables_on and optimizer_state_on (bytes by device).
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
        "variables_on": variables_on,
        "optimizer_state_on": state_on,
    }
