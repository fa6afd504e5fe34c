"""Side: one run as a board shows it, in figures and sentences, without any widget.

In its sentences, the name of the run is written between ** and **.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from course_lib.activity import Activity, names, sentence
from course_lib.errors import LockstepError
from course_lib.record import measures
from course_lib.record.curves import WINDOW
from course_lib.record.digest import Digest
from course_lib.record.events import ACTIVE, Update
from course_lib.record.reality import reality
from course_lib.record.standstill import Pulse, Standstill
from course_lib.record.trace import Trace
from course_lib.spec.run_spec import RunSpec


class Watched(Protocol):
    """The part of a run that a view reads; live runs and saved runs have it."""

    @property
    def spec(self) -> RunSpec: ...
    @property
    def state(self) -> str: ...
    @property
    def trace(self) -> Trace: ...
    @property
    def digest(self) -> Digest: ...
    @property
    def result(self) -> Any: ...
    def pulse(self) -> Pulse | None: ...


class Side:
    """One run in a view: the run, the digest of its trace, and its `state`, `reality` and `pulse`
    (None once it is over) as they were at the last look.
    """

    def __init__(self, label: str, run: Watched) -> None:
        self.label, self.run, self.spec = label, run, run.spec
        self.state, self.reality = run.state, reality(run.spec)
        self.digest, self._events = Digest(run.spec), 0  # until the first look
        self.pulse: Pulse | None = None
        self._shown = 0.0  # up to which time lanes were

    def look(self) -> bool:
        """Take in what is new; whether anything was."""
        state = self.run.state  # before the digest: if it is over by now, that is whole
        self.digest = self.run.digest
        self.pulse = self.run.pulse() if state in ACTIVE else None
        if (self.digest.events, state) == (self._events, self.state):
            return False
        self._events, self.state = self.digest.events, state
        self.reality = reality(self.spec, self.digest.life)
        return True

    def order(self, what: str, *values: Any) -> None:
        """Have a live run do something: it has a method for it. A saved run has none, but is over,
        so nobody orders anything.
        """
        getattr(self.run, what)(*values)

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def failure(self) -> str:
        """The cause of a failure, in one line; empty for a run that did not fail."""
        if self.state != "failed":
            return ""
        try:
            return str(self.run.result)
        except LockstepError as error:
            return str(error).splitlines()[0]

    @property
    def still(self) -> Standstill | None:
        """The standstill of a run that goes on; None while any task moves."""
        return self.pulse.still if self.pulse else None

    def still_since(self) -> tuple[float, float] | None:
        """Return the beginning and the end (now) of a standstill, on the clock of the charts."""
        if not (self.pulse and self.still):
            return None
        return self.still.since - self.digest.zero, self.pulse.now - self.digest.zero

    def edge(self) -> float:
        """The time up to which lanes can be shown, in seconds of the trace: of a run that goes on,
        never before what was shown; of one that stands still, now.
        """
        if not self.active:
            return self.digest.edge()
        now = self.pulse.now if self.pulse and self.still else self.digest.edge()
        self._shown = max(self._shown, now)
        return self._shown

    @property
    def idle(self) -> float | None:
        """The share of their time that workers waited for others, a mean over the workers; None
        while it is not known.
        """
        idle = self.digest.idle
        shares = [share for task, share in idle.items() if task.startswith("worker:")]
        return sum(shares) / len(shares) if shares else 0.0 if idle else None

    @property
    def _steps(self) -> int | None:
        """The number of steps of the whole run; None for a learner's own function without one."""
        own = self.spec.strategy == "custom" and "steps" not in self.spec.model_fields_set
        return None if own else self.spec.steps

    def how_far(self) -> str:
        """Say the progress of the run, or the reason for its standstill."""
        state = f"**{self.label}** {'has' if self.state == 'failed' else 'is'} {self.state}"
        begun = math.isfinite(self.digest.zero)
        if self.still and (begun or self.still.certain):
            return f"**{self.label}** has been {self.still.brief}: {self.still.words}"
        if steps := self.steps():
            return f"{state}: {steps}"
        why = f": {self.still.words}" if self.still else ""
        return state + (f"; no step is done yet{why}" if self.active else "")

    def note(self, alone: bool) -> str:
        """Say what needs attention: the failure of the run; tasks that are paused, cut off or
        killed, or were so at its end; a standstill. On a board of its own (`alone`) the headline
        tells of a standstill, and this is the progress.
        """
        if self.still:
            return (
                self.steps().capitalize() if alone else f"{self.still.brief}: {self.still.words}."
            )
        ended = "" if self.active else " when the run ended"
        held = {
            task: Activity(
                f"{'is' if self.active and fate != 'killed' else 'was'}"
                f" {'cut off' if fate == 'cut' else fate}{ended}"
            )
            for task in self.spec.tasks
            for fate, _, end in self.digest.fates(task)
            if (self.active or fate != "killed") and math.isinf(end)
        }
        return self.failure or (f"{sentence(held)}." if held else "")

    def steps(self) -> str:
        """Count the steps done, with the loss by then; empty before the first."""
        losses, of = ", ".join(self._losses()), f" of {self._steps:,}" if self._steps else ""
        if not losses:
            return ""
        return f"step {self.digest.steps_done:,}{of}, {losses} (mean of {WINDOW} batches)"

    def _losses(self) -> list[str]:
        """The losses by now, each with its name."""
        named = self.digest.by_name.items()
        return [f"{name} {curve.last:.3g}" for name, curve in named if curve.last is not None]

    def summary(self, explained: bool = False) -> str:
        """The figures of the run so far, in one line. They cover its whole time, except for the
        throughput of a run that goes on. `explained`: say what the loss is, where no headline does.
        """
        speed = self.digest.losses.rate(over=2.0 if self.active else math.inf)
        if self.still:
            speed = None
        losses, accuracy = " · ".join(self._losses()), self.digest.accuracies.last
        of = f" (mean of {WINDOW} batches)"
        done = min(1.0, self.digest.steps_done / self._steps) if self._steps else 0.0
        parts = [
            self.still.brief if self.still else "",
            f"{speed:,.0f} examples/s" if speed else "",
            f"{losses}{of if explained else ''}" if losses else "",
            f"accuracy {accuracy:.3g}" if accuracy is not None else "",
            f"workers waited {self.idle:.0%} of the run" if self.idle is not None else "",
            f"{done:.0%} done" if self.active and self._steps and losses else "",
        ]
        return " · ".join(filter(None, parts))

    def memory(self) -> str:
        """Sum up the memory of the fullest task in a line; empty before it is known."""
        known = self.digest.memory
        fullest = max(known, key=lambda task: sum(known[task].values()), default=None)
        return f"memory of {fullest}: {measures.memory_line(known[fullest])}" if fullest else ""

    def hosts(self) -> str:
        """List the tasks of each host or node, and the error of its clock, in a line; empty for
        a single one.
        """
        places, hosts = self.spec.places, self.spec.all_hosts
        on = {host: [task for task, place in places.items() if place == host] for host in hosts}
        what = "node " if self.spec.on_nodes else "host:"
        said = [f"{what}{host}: {names(tasks)}{self._clock(tasks)}" for host, tasks in on.items()]
        return " \u00b7 ".join(said) if len(said) > 1 else ""

    def _clock(self, tasks: Sequence[str]) -> str:
        """Say the largest error of the clocks of these tasks; empty on one machine."""
        unsure = max((self.digest.unsure.get(task, 0.0) for task in tasks), default=0.0)
        return f" (clock \u00b1{1000 * unsure:.2g} ms)" if unsure else ""

    def details(self) -> str:
        """The same and more, in lines."""
        waiting = ", ".join(f"{task} {share:.0%}" for task, share in self.digest.idle.items())
        stale = sorted(self.digest.updates.staleness.items())
        updates = ", ".join(f"{n:,} of staleness {s}" for s, n in stale)
        mine = self.run.trace.all(Update, self.spec.tasks[0])
        if len(named := Counter(update.variables for update in mine)) > 1:  # by optimizer
            updates += "; " + ", ".join(f"{n:,} of {name}" for name, n in named.items())
        parts = [
            f"{self.label}: {self.state}",
            self.summary(),
            f"waiting {waiting or 'not known'}",
            f"updates: {updates or 'none'}",
            self.memory(),
            self.hosts(),
            f"{self.reality.word}: {self.reality.why}",
            self.failure,
        ]
        return "\n  ".join(filter(None, parts))
