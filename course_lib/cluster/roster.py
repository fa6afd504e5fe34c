"""The roster: which tasks a run has, what became of each, and what that means for the run.

No processes, no clock of its own.
"""

import signal
from collections.abc import Iterable

SERVICES = ("ps",)  # jobs that serve the others and never finish by themselves


class Roster:
    """Keeps the state of each task, and decides from these when the run is over and how it ended.

    A task goes `starting -> running -> done | failed`, and then its process is gone. A process that
    goes before its task is done has failed. `outcome` is None while the run goes on, then
    `finished`, `failed` or `stopped`.
    """

    def __init__(self, tasks: Iterable[str], services: Iterable[str] = SERVICES) -> None:
        self.states = dict.fromkeys(tasks, "starting")
        self.alive = set(self.states)
        self.services = tuple(services)
        self.outcome: str | None = None

    def said(self, task: str, state: str) -> None:
        """A task reports `running`, `done` or `failed`."""
        self.states[task] = state
        self._conclude()

    def stop(self) -> None:
        """The run is to end now, whatever its tasks are doing."""
        self.outcome = self.outcome or "stopped"

    def gone(self, task: str, status: int, asked: bool = False) -> str | None:
        """The process of a task ended with `status` (negative: the signal that killed it). Returns
        the failure in words, or None.

        `asked` says that a learner had it killed.
        """
        self.alive.discard(task)
        if (
            self.outcome == "stopped"
            or self.states[task] in ("done", "failed")
            or (self.outcome and status == -signal.SIGKILL and not asked)
        ):
            return None
        if self.outcome == "finished" and task.startswith(self.services):
            return None
        why = "it was killed by kill()" if asked else death(status)
        self.said(task, "failed")
        return why

    @property
    def over(self) -> bool:
        """No process is left."""
        return not self.alive

    def _conclude(self) -> None:
        working = {
            task: state for task, state in self.states.items() if not task.startswith(self.services)
        } or self.states
        if "failed" in self.states.values():
            self.outcome = self.outcome or "failed"
        elif all(state == "done" for state in working.values()):
            self.outcome = self.outcome or "finished"


def death(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        name = signal.Signals(-status).name
        cure = " (the system may have run out of memory)" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{cure}"
    return f"its process ended with exit code {status} before its function returned"
