"""Steps that are done again after a restart. Their events come twice in a trace, and count once: as
they were recorded first. So a curve does not go back, and an update is one update.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from course_lib.record.events import Event, Lifecycle, Metric, Phase, Update, end_of
from course_lib.record.trace import Trace

# kinds of events that are recorded again with a step -> what tells those of one step apart
TWICE: dict[type[Event], tuple[str, ...]] = {
    Phase: ("what",),
    Metric: ("name",),
    Update: ("variables", "device", "workers"),
}


class Again:
    """Tells the events that are recorded again, of a run that may go on. `restarts`: how many there
    were; `steps`: how many steps were computed again, by the task that did so most often.
    """

    def __init__(self) -> None:
        self.restarts = 0
        self._starts: dict[str, list[float]] = defaultdict(list)  # of a task's later attempts
        self._first: dict[tuple[Any, ...], int] = {}  # event -> its first attempt
        self._computed: dict[str, set[tuple[int, int]]] = defaultdict(set)  # again: attempt, step

    @property
    def steps(self) -> int:
        return max(map(len, self._computed.values()), default=0)

    def restarted(self, life: Iterable[Lifecycle], trace: Trace) -> None:
        """Take in new events of tasks' lives; `trace` has what was recorded before."""
        for e in life:
            if e.state == "starting" and e.attempt:
                self.restarts = max(self.restarts, e.attempt)
                self._starts[e.task].append(e.at)
                for event in (event for kind in TWICE for event in trace.all(kind, e.task)):
                    if end_of(event) <= e.at:
                        self._attempt(event)

    def __call__(self, event: Event) -> bool:
        """Whether an event was recorded in an earlier attempt as well."""
        if event.task not in self._starts or type(event) not in TWICE:
            return False
        number = bisect_left(self._starts[event.task], end_of(event))
        again = self._attempt(event) < number
        if again and isinstance(event, Phase) and event.what == "compute":
            self._computed[event.task].add((number, event.step))
        return again

    def _attempt(self, event: Event) -> int:
        """The first attempt in which it was recorded, counted for its task."""
        about = (getattr(event, name) for name in ("task", "step", *TWICE[type(event)]))
        number = bisect_left(self._starts[event.task], end_of(event))
        return self._first.setdefault((type(event), *about), number)


def once(trace: Trace) -> Trace:
    """A trace without what was recorded again."""
    again = Again()
    again.restarted(trace.all(Lifecycle), trace)
    return Trace(e for e in trace if not again(e)) if again.restarts else trace
