"""The roster: the state of each task of a run, and what follows from it: whether the run goes on,
which tasks are to end, and which are to be started again. It decides; the supervisor acts.

A task goes `starting -> running -> done | failed`, and then its process ends. A process that ends
before its task is done has failed. What a failure means is for the strategy to say (`recovers`):

    together   all tasks are ended and started again: a synchronous step needs them all
    alone      a worker is started again while the others go on. Once no restarts are left, or if
               its node is gone, they go on without it, and it is `lost`. If a task fails that is no
               worker, all are started again together, as all depend on it; also if any task fails
               while they still connect
    ""         the run fails

And the agenda: when each fault of a run is due, and the orders that carry it out and undo it. There
is no clock and no process here: times are given.
"""

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from course_lib.spec.faults import Fault
from course_lib.spec.run_spec import RunSpec

ORDERS = {"cut": "partition"}  # a fault -> the order for it, where that has another name
UNDOING = {"pause": "resume", "cut": "heal"}  # the others are ordered anew, as the spec has them


class Attempt(NamedTuple):
    """Counts the restarts before a task was started, and those before all were last started
    together.
    """

    number: int = 0
    together: int = 0


class Roster:
    """The tasks of one run.

    `services` are the jobs that serve the others and never finish by themselves. `max_restarts`:
    how often tasks may be started again. `connected()`: whether the tasks have found each other, so
    that the others can do without one.

    `outcome` is None while the run goes on, then `finished`, `failed` or `stopped`. `alive`: tasks
    that have a process; `attempts`: the number of each task's attempt. `news`: states that the
    roster has decided on, with the tasks, for the supervisor to record.
    """

    def __init__(
        self,
        tasks: Iterable[str],
        services: Iterable[str] = ("ps",),
        recovers: str = "",
        max_restarts: int = 0,
        connected: Callable[[], bool] = lambda: True,
    ) -> None:
        self.states = dict.fromkeys(tasks, "starting")
        self.alive = set(self.states)
        self.attempts = dict.fromkeys(self.states, 0)
        self.services, self.recovers = tuple(services), recovers
        self.connected = connected
        self.outcome: str | None = None
        self.attempt = Attempt()
        self.news: list[tuple[str, str]] = []
        self._left = max_restarts
        self._first: set[str] = set()  # tasks that have to end before any is started again
        self._dismissed: set[str] = set()  # told to leave, or killed, by the supervisor
        self._homeless = False  # the node of the task that has failed is gone

    # --- what happens ---

    def report(self, task: str, state: str) -> bool:
        """Take a task's report: `running`, `done` or `failed`. Returns whether that is news: of a
        task that is to be started again, or is done without, it is not.
        """
        if self.states[task] in ("restarting", "lost"):
            return False
        self.states[task] = state
        if state == "failed" and not self.outcome:
            self._recover(task)
        self._conclude()
        return True

    def stop(self) -> None:
        """The run is to end now, whatever its tasks are doing."""
        self.outcome = self.outcome or "stopped"

    def dismiss(self, task: str) -> None:
        """The supervisor tells a task to leave, or kills it, so its end is no failure."""
        self._dismissed.add(task)

    def exited(self, task: str, status: int, asked: str = "", homeless: bool = False) -> str | None:
        """The process of a task ended with `status` (negative: the signal that killed it). Returns
        the failure in words, or None.

        `asked`: how a learner had it killed, such as "by run.kill()"; "" if nobody had. `homeless`:
        its node is gone as well, so it cannot be started again alone: the others know it where it
        was. A death that the supervisor has not caused is told even if the run has failed already:
        peers may complain of it before it is noticed.
        """
        self.alive.discard(task)
        self._first.discard(task)
        state, dismissed = self.states[task], task in self._dismissed and not asked
        if (
            self.outcome == "stopped"
            or state in ("done", "failed", "lost")
            or (dismissed and status in (0, -signal.SIGKILL))
            or (state == "restarting" and status >= 0)  # it gave up, as its peers did
            or (self.outcome == "finished" and task.startswith(self.services))
        ):
            return None
        self._homeless = homeless
        # peers notice first, so a restart may have been in vain: it was the same loss
        self._left += homeless and state == "starting" and self.attempts[task] > 0
        self.report(task, "failed")
        return f"it was killed {asked}" if asked else death(status)

    def started(self, task: str) -> None:
        """A task that was `ready` has a process again."""
        self.states[task], self.attempts[task] = "starting", self.attempt.number
        self.alive.add(task)
        self._dismissed.discard(task)

    # --- what is to be done ---

    @property
    def ending(self) -> set[str]:
        """The tasks whose processes are to end now."""
        return self.alive if self.outcome else self._first

    @property
    def ready(self) -> list[str]:
        """The tasks to start again now: once all have ended that have to end before."""
        waiting = self.outcome or self._first
        return [] if waiting else [t for t, state in self.states.items() if state == "restarting"]

    @property
    def over(self) -> bool:
        """No process is left, and none will be started."""
        return not self.alive and not self.ready

    def _recover(self, task: str) -> None:
        """A task has failed: it, or all, are to be started again, or the run goes on without it, or
        fails.
        """
        workers = [t for t in self.states if t.startswith("worker:")]
        others = any(self.states[t] not in ("failed", "lost") for t in workers)
        alone = self.recovers == "alone" and task in workers and self.connected()
        if alone and others and (self._homeless or not self._left):
            self._decide("lost", [task])
        elif not (self.recovers and self._left):
            self.outcome = "failed"
        else:
            self._left -= 1
            number = self.attempt.number + 1
            self.attempt = Attempt(number, self.attempt.together if alone else number)
            going = [t for t, state in self.states.items() if state != "lost"]
            self._decide("restarting", [task] if alone else going)

    def _decide(self, state: str, tasks: Iterable[str]) -> None:
        for task in tasks:
            self.states[task] = state
            self.news.append((task, state))
            self._first |= {task} & self.alive

    def _conclude(self) -> None:
        working = [state for t, state in self.states.items() if not t.startswith(self.services)]
        if {*(working or self.states.values())} <= {"done", "lost"}:
            self.outcome = self.outcome or "finished"


def death(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        known = {s.value: s.name for s in signal.Signals}
        name = known.get(-status, f"signal {-status}")
        cure = " (the system may have run out of memory)" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{cure}"
    return f"its process ended with exit code {status} before its function returned"


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
        faults = [f for f in dict.fromkeys(self._by_step) if self.spec.begins_in(task, f)]
        due = [fault for fault in faults if (fault.step or 0) <= step]
        for fault in due:
            self._by_step.remove(fault)
        return due

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
            usual: dict[str, Any] = {"do": UNDOING.get(fault.do, fault.do)}
            usual |= {"factor": spec.slow.get(fault.who, 1.0), "jitter": spec.jitter_of(fault.who)}
            usual |= {"link": spec.link_of(host or 0)}
            self._by_time.append((now + fault.lasts, replace(fault, lasts=None, **usual)))
        order: dict[str, Any] = {"do": ORDERS.get(fault.do, fault.do), "fault": str(fault)}
        order |= {"factor": fault.factor, "jitter": fault.jitter}
        if fault.do in ("cut", "heal", "link"):
            return [{**order, "host": host, "link": fault.link and fault.link.model_dump()}]
        tasks = [task for task, its in spec.places.items() if its == host] or [fault.who]
        return [{**order, "task": task} for task in tasks]
