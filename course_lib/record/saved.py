"""A run read from its directory, whether it is still going or not; views use it where another
process started the run.
"""

import contextlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from course_lib.errors import LockstepError, SpecError, TaskFailed
from course_lib.record.events import STATES, Lifecycle, Phase
from course_lib.record.files import read_json
from course_lib.record.frames import Result
from course_lib.record.monitor import Monitor
from course_lib.record.planned import TaskError
from course_lib.record.reality import Reality, reality
from course_lib.record.rundir import RunDir
from course_lib.record.standstill import Pulse
from course_lib.record.trace import Trace
from course_lib.spec.faults import Fault

# A process that is killed cannot stamp its own death. The supervisor notes it a moment later, and
# peers may have noticed before.
_NOTICE = 0.5  # seconds


class SavedRun(RunDir):
    """The run in a directory. It can be looked at, but not controlled.

    Raises `SpecError` if the directory holds no run.
    """

    def __init__(self, run_dir: Path | str) -> None:
        super().__init__(run_dir)
        self._states: dict[str, str] = {}
        self._lookout: Monitor | None = None
        try:
            _ = self.spec
            self._trace = Trace.of_run(self)
        except (OSError, ValueError) as error:
            allowed = f"the directory of a run{self._other_version()} ({error})"
            raise SpecError("run_dir", str(run_dir), allowed) from None

    def _other_version(self) -> str:
        """Which other version wrote it, if one did, and what can be read of it all the same."""
        with contextlib.suppress(OSError, ValueError, PackageNotFoundError):
            its, ours = self.facts.version or "an early version", version("lockstep-course")
            if its != ours:
                return f" of {ours}; {its} wrote this one, and Trace.of_run still reads its events"
        return ""

    @property
    def trace(self) -> Trace:
        """What has happened so far: the same object each time, brought up to date."""
        return self._trace.refresh()

    @property
    def state(self) -> str:
        """As `Run.state`. A run that left no outcome counts as stopped."""
        states = {e.task: e.state for e in self.trace.all(Lifecycle) if e.state in STATES}
        if self.goes_on():
            return "running" if states and "starting" not in states.values() else "starting"
        if any(state in ("failed", "killed") for state in states.values()):
            return "failed"
        # services never finish: they are told to leave when the others are done
        awaited = [task for task in self.spec.tasks if not task.startswith(self.facts.services)]
        over = all(states.get(task) in ("done", "lost") for task in awaited)
        return "finished" if over else "stopped"

    def pulse(self) -> Pulse | None:
        """As `Run.pulse`: the process that started the run may be another."""
        if not self.goes_on():
            return None
        self._states |= {e.task: e.state for e in self.trace.all(Lifecycle) if e.state in STATES}
        with contextlib.suppress(OSError, ValueError):  # it may end at this moment
            self._lookout = self._lookout or Monitor(self, self._trace, self._states, make=False)
        return self._lookout.pulse() if self._lookout else None

    @property
    def reality(self) -> Reality:
        """As `Run.reality`."""
        return reality(self.spec, self.trace)

    @property
    def result(self) -> Any:
        """The result of the run.

        Raises `TaskFailed` for a run that failed, `LockstepError` if there is nothing.
        """
        if self.result_file.exists():
            return Result(read_json(self.result_file))
        if self.state == "failed":
            raise first_failure(self, self.trace)
        raise LockstepError(f"the run has no result: it is {self.state}")


def first_failure(run: RunDir, trace: Trace) -> TaskFailed:
    """The first failure of a run, which caused all others. It is found among the errors that tasks
    left and the deaths that the supervisor saw; an error that only tells of the loss of another
    task counts if there is nothing else.
    """
    life = trace.all(Lifecycle)
    # what came before a restart, or was done without, did not end the run
    decided = [e for e in life if e.state in ("starting", "lost")]
    settled = {e.task: e.at for e in decided}
    attempt = {e.task: e.attempt + (e.state == "lost") for e in decided}
    # who was told to leave
    left = {e.task: e for e in life if e.state == "left" and e.at >= settled.get(e.task, 0.0)}
    origin = run.facts.origin
    found = [e for e in run.errors() if e.attempt >= attempt.get(e.task, 0)]
    for death in life:
        ended = death.state in ("failed", "killed") and death.why
        if ended and death.at >= settled.get(death.task, 0.0):
            steps = [phase.step for phase in trace.all(Phase, death.task)]
            fault, why = death.fault, death.why
            if told := left.get(death.task):
                fault, why = told.fault, f"{why}, {told.why}"
            planned = Fault.of(fault).step if fault else None
            step = steps[-1] if steps and planned is None else planned
            at = origin + death.at - _NOTICE
            found.append(TaskError(task=death.task, step=step, reason=why, at=at))
    nobody = TaskError(task="a task", reason="it left no word of why", at=0.0)
    first = min(found, key=lambda e: (e.echo, e.at), default=nobody)
    log = run.log_tail(first.task)
    return TaskFailed(first.task, first.step, first.reason, first.traceback, log)


def saved_runs(path: Path | str) -> dict[str, SavedRun]:
    """The run in a directory, or the runs in a race's directory, by label. Raises `SpecError` if
    there is none.
    """
    path, inside = Path(path), list[Path]()
    with contextlib.suppress(OSError):  # of a name that is too long, or a folder that is closed
        if RunDir(path).holds_run:
            run = SavedRun(path)
            return {run.spec.strategy: run}
        inside = sorted(p for p in path.glob("*/") if RunDir(p).holds_run)
    if not inside:
        allowed = "the directory of a run, or of a race with its runs in it"
        raise SpecError("run_dir", str(path), allowed)
    return {
        p.name.partition("-")[2] if p.name[:1].isdigit() else p.name: SavedRun(p) for p in inside
    }
