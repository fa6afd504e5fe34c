"""The faults of a run, as its supervisor keeps them: when each is due, and the orders that carry it
out and undo it. There is no clock and no process here: times are given.
"""

from dataclasses import replace
from typing import Any

from course_lib.spec.faults import Fault
from course_lib.spec.run_spec import RunSpec

ORDERS = {"cut": "partition"}  # a fault -> the order for it, where that has another name
UNDOING = {"pause": "resume", "cut": "heal"}  # the others are ordered anew, as the spec has them


class Agenda:
    """Keeps the faults that are to come. One is taken once; what undoes it is then added."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self._by_step = [fault for fault in spec.faults if fault.step is not None]
        self._timed = [(f.seconds, f) for f in spec.faults if f.seconds is not None]
        self._by_time: list[tuple[float, Fault]] = []  # once all tasks run: at this time

    def all_run(self, now: float) -> None:
        """All tasks run. When this is said for the first time, times begin to count."""
        self._by_time += [(now + seconds, fault) for seconds, fault in self._timed]
        self._timed = []

    def at_step(self, task: str, step: int) -> list[Fault]:
        """The faults that are due as this task begins a step; of two alike, only one."""
        told = [f for f in dict.fromkeys(self._by_step) if f.told_by(task, self.spec)]
        found = [fault for fault in told if (fault.step or 0) <= step]
        for fault in found:
            self._by_step.remove(fault)
        return found

    def at_time(self, now: float) -> list[Fault]:
        """The faults that are due by now, and what undoes others."""
        due = [fault for at, fault in self._by_time if at <= now]
        self._by_time = [(at, fault) for at, fault in self._by_time if at > now]
        return due

    @property
    def moments(self) -> list[float]:
        """Return the times at which to ask for `at_time`."""
        return [at for at, _ in self._by_time]

    def orders(self, fault: Fault, now: float) -> list[dict[str, Any]]:
        """The orders for a fault that happens now: one for each task, if it is done to a host's."""
        spec, host = self.spec, fault.host
        if fault.lasts is not None:
            undoing = replace(
                fault,
                do=UNDOING.get(fault.do, fault.do),
                lasts=None,
                factor=spec.slow.get(fault.who, 1.0),
                jitter=spec.jitter_of(fault.who),
                link=spec.link_of(host or 0),
            )
            self._by_time.append((now + fault.lasts, undoing))
        order: dict[str, Any] = {"do": ORDERS.get(fault.do, fault.do), "fault": str(fault)}
        order |= {"factor": fault.factor, "jitter": fault.jitter}
        if fault.do in ("cut", "heal", "link"):
            return [{**order, "host": host, "link": fault.link and fault.link.model_dump()}]
        tasks = [task for task, its in spec.places.items() if its == host] or [fault.who]
        return [{**order, "task": task} for task in tasks]
