"""Monitor: reads the present activity of a live run from its files. The process that started the
run has one, and so has any that only knows its directory.
"""

import time
from collections.abc import Iterable, Mapping

from course_lib.activity import sentence
from course_lib.errors import TaskFailed
from course_lib.record import calls
from course_lib.record.beats import Beat, Beats
from course_lib.record.digest import Digest
from course_lib.record.rundir import RunDir
from course_lib.record.standstill import SOON, Pulse, Snapshot, Standstill
from course_lib.record.trace import Trace


class Monitor:
    """Watches a live run, whose owner keeps these task `states` up to date. `make`: see `Beats`."""

    def __init__(
        self,
        files: RunDir,
        digest: Digest,
        trace: Trace,
        states: Mapping[str, str],
        make: bool = True,
    ) -> None:
        self._digest, self._trace, self._states = digest, trace, states
        self._beats = Beats(files.beats, files.spec.tasks, make)
        self._origin, self._services = files.facts.origin, files.facts.services

    def snapshot(self, busy: Iterable[str] | None = None, handle: str = "run") -> Snapshot:
        """Return the run as it is now; `busy`: its tasks that run, where others are meant."""
        if busy is None:
            busy = self._running()
        self._digest.update(self._trace.refresh())
        beats = {task: self._beats.now(task) for task in self._digest.spec.tasks}
        beats = {t: beat._replace(since=beat.since - self._origin) for t, beat in beats.items()}
        now = time.monotonic() - self._origin
        return Snapshot(self._digest, beats, busy, now, self._services, handle)

    def standstill(self) -> Standstill | None:
        """Explain why the run stands still; None if it moves, or if tasks are still to come."""
        lively = self._lively() or not {*self._states.values()} <= {"running", "done", "lost"}
        return None if lively else self.snapshot().standstill(self._calls())

    def pulse(self) -> Pulse:
        """Return the activity of the run at this moment."""
        if self._lively():
            return Pulse(time.monotonic() - self._origin, None)
        now = self.snapshot()
        if {*self._states.values()} <= {"running", "done", "lost"}:
            still = now.standstill(self._calls()) or now.slow_going()
        else:
            still = now.restarting()
        return Pulse(now.now, still, now.going_on(still))

    def _running(self) -> list[str]:
        return [task for task, state in [*self._states.items()] if state == "running"]

    def _lively(self) -> bool:
        """Tell whether all tasks that others wait for have entered something just now."""
        now = time.monotonic()
        active = [task for task in self._running() if not task.startswith(self._services)]
        return bool(active) and all(now - self._beats.now(task).since < SOON for task in active)

    def named(self, failure: TaskFailed) -> TaskFailed:
        """Return a failure in the name of whoever is its cause, if the task that failed had waited
        in vain for one that was stopped or has returned, or if its call of a collective was not
        that of the other ranks.
        """
        now = self.snapshot(self._digest.spec.tasks)
        for task, stop in now.stopped.items() if failure.remote_traceback else ():
            was = "its host was cut off" if stop.state == "cut" else "it was paused"
            reason = f"{was}, and {failure.task} gave up waiting: {failure.reason}"
            step = now.beats[task].step
            return TaskFailed(task, step if step >= 0 else None, reason)
        over = [task for task, state in self._states.items() if state == "done"]
        endless = calls.endless(now.beats, self._calls(), over)
        if failure.task in endless:
            reason = f"{sentence(endless)}. {calls.CURE}. "
            reason += f"{failure.task} ended with: {failure.reason}"
            told = failure.remote_traceback, failure.log_tail
            return TaskFailed(failure.task, failure.step, reason, *told)
        return failure

    def close(self) -> None:
        """The run is over; it can still be looked at."""
        self._beats.close()

    def _calls(self) -> dict[str, list[Beat]]:
        return {task: self._beats.calls(task) for task in self._digest.spec.tasks}
