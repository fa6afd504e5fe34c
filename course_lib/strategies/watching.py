"""A training loop of a learner's own, in the trace: `lockstep = task.watch(model, optimizer)`.

The loop stays as it is. What can be seen of it from outside differs between the frameworks:
`torch/watching.py` and `tensorflow/watching.py` say it, and tell a `WatchedLoop` what begins when.
"""

from collections import deque

from course_lib.clock import clock
from course_lib.cluster.task import Task

MOMENT = 20e-6  # seconds; less computing than that, such as before an update, is no phase


class WatchedLoop:
    """The steps of a loop; each ends with an update that the optimizer makes.

    `number` counts them from 0. `samples` is how many examples the whole run has used, if each
    worker has used as many as this task. So a metric of your own is recorded by
    `task.metric("accuracy", value, lockstep.number, lockstep.samples)`.
    """

    def __init__(self, task: Task, device: str) -> None:
        self.task, self.device = task, device
        self.number = self.samples = 0
        self._doing, self._since = "read", clock()
        self._computed = 0.0  # seconds that this step has computed, without emulated device time
        self._busy = deque([0.0], maxlen=5)  # that of the last steps; a busy machine only adds

    def now(self) -> float:
        """The time, once the device has done all that it was given."""
        return clock()

    def begin(self) -> None:
        """The forward pass of a step begins, and with it the emulated device time."""
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
        """What was done since the last phase, such as an evaluation, belongs to no step."""
        self._doing = ""

    def exchanged(self, begun: float, ended: float) -> None:
        """The task exchanged something with others, and then went on with what it did before."""
        before = self._doing
        self.go_on("reduce", begun)
        self.go_on(before, ended)

    def end(
        self, loss: float | None, examples: int, gradients: int, at: float | None = None
    ) -> None:
        """The update was made `at` this time (default: now), and the step is over.

        `loss`: of this task's share of the batch. `examples`: how many those are; if that is not
        known (0), the run's `global_batch` counts. `gradients`: how many replicas the update has
        gradients of.
        """
        self.go_on("read", at)
        self._busy.append(self._computed)
        spec, number = self.task.spec, self.number
        self.samples += (examples or spec.per_worker_batch) * spec.workers
        self.task.update(number, "all", self.device, number, number + 1, gradients)
        if loss is not None:
            self.task.metric("loss", loss, number, self.samples)
        self.number += 1
