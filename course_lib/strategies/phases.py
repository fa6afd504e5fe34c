"""The phases of the step that a task is in: clocks, emulated device time and what the trace says of
them.
"""

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from course_lib.cluster.task import Task
from course_lib.record.events import clock

MOMENT = 1e-6  # seconds, too short to sleep
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
