"""Side: one run on a board, as it was at the last look."""

from __future__ import annotations

from typing import Any, Protocol

from course_lib.errors import LockstepError
from course_lib.record.curves import EMPTY, Goal
from course_lib.record.digest import Digest
from course_lib.record.reality import reality
from course_lib.record.trace import Trace
from course_lib.spec import RunSpec

ACTIVE = ("starting", "running")


class Watched(Protocol):
    """What is needed of a run to look at it. A live run has it, and so has a saved one."""

    @property
    def spec(self) -> RunSpec: ...
    @property
    def state(self) -> str: ...
    @property
    def trace(self) -> Trace: ...
    @property
    def result(self) -> Any: ...


class Side:
    """One run in a view: the run, the digest of its trace, and its `state`, its `reality` and the
    curves of its `loss` and `accuracy` as they were at the last look.
    """

    def __init__(self, label: str, run: Watched) -> None:
        self.label, self.run, self.spec = label, run, run.spec
        self.digest = Digest(run.spec)
        self.state, self.reality = run.state, reality(run.spec)
        self.loss, self.accuracy = EMPTY, EMPTY

    def look(self) -> bool:
        """Take in what is new; whether anything was."""
        state = self.run.state  # before the trace: if it is over by now, the trace is whole
        trace = self.run.trace
        news = self.digest.look(trace, over=state not in ACTIVE)
        if news or state != self.state:
            self.state, self.reality = state, reality(self.spec, trace)
            self.loss, self.accuracy = self.digest.losses, self.digest.accuracies
            return True
        return False

    def begin_at(self, zero: float) -> None:
        """Count all figures of a run that is over from this time on."""
        self.digest = Digest.of(self.spec, self.run.trace, zero)
        self.loss, self.accuracy = self.digest.losses, self.digest.accuracies

    def order(self, what: str, *values: Any) -> None:
        """Have a live run do something: it has a method for it. A saved run has none, but is over,
        so nobody orders anything.
        """
        getattr(self.run, what)(*values)

    def reached(self, goal: Goal) -> tuple[float, int] | None:
        """Seconds and examples to a goal; None if it is not reached."""
        return goal.reached(self.accuracy if goal.what == "accuracy" else self.loss)

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def failure(self) -> str:
        """What ended a failed run, in one line; empty for others."""
        if self.state != "failed":
            return ""
        try:
            return str(self.run.result)
        except LockstepError as error:
            return str(error).splitlines()[0]

    @property
    def idle(self) -> float | None:
        """The share of their time that workers waited for others, a mean over the workers; None
        while it is not known.
        """
        idle = self.digest.idle
        shares = [share for task, share in idle.items() if task.startswith("worker:")]
        return sum(shares) / len(shares) if shares else 0.0 if idle else None
