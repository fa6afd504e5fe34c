"""A training loop of a learner's own, in the trace: `lockstep = task.watch(model, optimizer)`.

The loop stays as it is. What can be seen of it from outside differs between the frameworks:
`torch/watching.py` and `tensorflow/watching.py` say it, and tell a `WatchedLoop` what begins when.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from statistics import fmean

from course_lib.cluster.task import Task
from course_lib.record.events import Update, clock
from course_lib.strategies.steps import record

MOMENT = 20e-6  # seconds; less computing than that, such as before an update, is no phase


class WatchedLoop:
    """The steps of a loop; each is over once every optimizer has made an update.

    `names`: those of the optimizers, "" for the only one. The first counts the examples.

    `number` counts the steps from 0. `samples` is how many examples the whole run has used, if each
    worker has used as many as this task. So a metric of your own is recorded by
    `task.metric("accuracy", value, lockstep.number, lockstep.samples)`.
    """

    def __init__(self, task: Task, device: str, names: Sequence[str] = ("",)) -> None:
        self.task, self.device, self.names = task, device, names
        self.number = self.samples = 0
        self.begun = False  # whether a step is
        self._doing, self._since = "read", clock()
        self._computed = 0.0  # seconds that this step has computed, without emulated device time
        self._busy = deque([0.0], maxlen=5)  # that of the last steps; a busy machine only adds
        self._examples = 0  # of this step
        self._losses = defaultdict[str, list[float]](list)  # of this step
        self._updates = Counter[str]()
        self._due = set(names)  # the optimizers that have made no update in this step

    def now(self) -> float:
        """The time, once the device has done all that it was given."""
        return clock()

    def begin(self) -> None:
        """A forward pass begins: that of a step, and with it the emulated device time, or one for
        another update in it.
        """
        if self.begun:
            self.go_on("compute")
            return
        self.begun = True
        self.task.begin(self.number)
        self.go_on("compute")
        self.task.pace(min(self._busy))
        self._computed = self._since - clock()

    def go_on(self, doing: str, at: float | None = None) -> None:
        """From `at` (default: now) on the task does something else. What it did until then becomes
        a phase.
        """
        at = self.now() if at is None else max(at, self._since)
        short = False
        if self._doing == "compute":
            self._computed += at - self._since
            short = at - self._since < MOMENT
        if self._doing and not short:
            self.task.record(self._doing, self.number, self._since, at)
        self._doing, self._since = doing, at
        self.task.enter(doing)

    def leave_out(self) -> None:
        """Count what was done since the last phase, such as an evaluation, for no step."""
        self._doing = ""

    def exchanged(self, begun: float, ended: float) -> None:
        """The task exchanged something with others, and then went on with what it did before."""
        before = self._doing
        self.go_on("reduce", begun)
        self.go_on(before, ended)

    def memory(self) -> dict[str, int]:
        """Bytes of memory that all watched models and optimizers hold, by kind."""
        return {}

    def updated(
        self, name: str, loss: float | None, examples: int, gradients: int, at: float | None = None
    ) -> None:
        """The optimizer of this name made its update `at` this time (default: now). The step is
        over if all have.

        `loss`: of this task's share of the batch. `examples`: how many those are; if that is not
        known (0), the run's `global_batch` counts. `gradients`: how many replicas the update has
        gradients of.
        """
        self.go_on("read", at)
        self._examples += examples if name == self.names[0] else 0
        if loss is not None:
            self._losses[name].append(loss)
        task, spec, number, version = self.task, self.task.spec, self.number, self._updates[name]
        self._updates[name] += 1
        written = self.device, version, version + 1, self._since, gradients
        task.recorder.add(Update(task.name, number, name or "all", *written))
        self._due.discard(name)
        if self._due:
            return
        self._busy.append(self._computed)
        self.samples += (self._examples or spec.per_worker_batch) * spec.workers
        for name in filter(self._losses.get, self.names):
            mean = fmean(self._losses.pop(name))
            task.metric(f"{name} loss".strip(), mean, number, self.samples)
        if not number:
            record(task, task.name, number, self.samples, self.memory())
        self.number += 1
        self.begun, self._examples, self._due = False, 0, set(self.names)
        self.task.at_step_end()
