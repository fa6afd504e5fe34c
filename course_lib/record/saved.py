"""A run read from its directory, whether it is still going or not; views use it where another
process started the run.
"""

import contextlib
import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from course_lib.errors import LockstepError, SpecError, TaskFailed
from course_lib.record.digest import Digest
from course_lib.record.events import ACTIVE
from course_lib.record.export import Result
from course_lib.record.files import read
from course_lib.record.reality import Reality, reality
from course_lib.record.rundir import RunDir, TaskError, runs
from course_lib.record.standstill import Monitor, Pulse
from course_lib.record.tensorboard import save_tensorboard
from course_lib.record.trace import Trace
from course_lib.spec.faults import Fault

# A process that is killed cannot stamp its own death. The supervisor notes it a moment later, and
# peers may have noticed before.
_NOTICE = 0.5  # seconds
OUTCOMES = ("starting", "running", "finished", "failed", "stopped")
"""The states of a run."""


class SavedRun(RunDir):
    """The run in a directory. It can be looked at, but not controlled.

    Raises `SpecError` if the directory holds no run.
    """

    def __init__(self, run_dir: Path | str) -> None:
        super().__init__(run_dir)
        self._states: dict[str, str] = {}
        self._monitor: Monitor | None = None
        try:
            self._digest = Digest(self.spec, Trace.of_run(self))
        except (OSError, ValueError) as error:
            allowed = f"the directory of a run of this version ({error})"
            raise SpecError("run_dir", str(run_dir), _missing(self.path) or allowed) from None

    @property
    def trace(self) -> Trace:
        """Its events so far: the same object each time, brought up to date."""
        return self._digest.trace.refresh()

    @property
    def digest(self) -> Digest:
        """Its figures so far: the same object each time, brought up to date."""
        return self._digest.update(self.state not in ACTIVE)

    @property
    def state(self) -> str:
        """As `Run.state`. A run that left no outcome counts as stopped."""
        life, states = self._digest.update().life, self._states
        states |= {task: state for task in self.spec.tasks if (state := life.state(task))}
        return outcome(self, states)

    to_tensorboard = save_tensorboard

    def pulse(self) -> Pulse | None:
        """As `Run.pulse`: the process that started the run may be another."""
        if self.state not in ACTIVE:
            return None
        with contextlib.suppress(OSError, ValueError):  # it may end at this moment
            self._monitor = self._monitor or Monitor(self, self._digest, self._states, make=False)
        return self._monitor.pulse() if self._monitor else None

    @property
    def reality(self) -> Reality:
        """As `Run.reality`."""
        return reality(self.spec, self.digest.life)

    @property
    def result(self) -> Any:
        """The result of the run.

        Raises `TaskFailed` for a run that failed, `LockstepError` if there is nothing.
        """
        if self.result_file.exists():
            return read(self.result_file, lambda text: Result(json.loads(text)))
        if self.state == "failed":
            raise first_failure(self, self.digest)
        raise LockstepError(f"the run has no result: it is {self.state}")


def outcome(run: RunDir, states: Mapping[str, str]) -> str:
    """The state of a run, one of `OUTCOMES`, by those that its tasks are in, or were in last. A run
    that left no outcome counts as stopped.
    """
    if run.goes_on():
        return "running" if states and "starting" not in states.values() else "starting"
    if not {"failed", "killed"}.isdisjoint(states.values()):
        return "failed"
    # services never finish: they are told to leave when the others are done
    awaited = [task for task in run.spec.tasks if not task.startswith(run.facts.services)]
    over = all(states.get(task) in ("done", "lost") for task in awaited)
    return "finished" if over else "stopped"


def _missing(path: Path) -> str:
    """Say that a path does not exist, and which runs are near it; "" if it does."""
    with contextlib.suppress(OSError, ValueError):
        if path.exists():
            return ""
        beside = any(RunDir(each).holds_run for each in path.parent.glob("*/"))
        folder = path.parent if beside else runs()
        near = get_close_matches(path.name, [each.name for each in folder.glob("*/")], 3, 0.0)
        has = f"; {folder} has {', '.join(near)}" if near else ""
        return f"it does not exist{has}; lockstep runs lists the runs that are kept"
    return ""


def first_failure(run: RunDir, digest: Digest) -> TaskFailed:
    """The first failure of a run, which caused all others. It is found among the errors that tasks
    left and the deaths that the supervisor saw; an error that only tells of the loss of another
    task counts if there is nothing else.
    """
    life, errors = digest.life, run.errors()
    # what came before a restart, or was done without, did not end the run
    for span in life.of(None, "starting", "lost"):
        since = span.attempt + (span.state == "lost")
        errors = [e for e in errors if e.task != span.who or e.attempt >= since]
    for death in life.of(None, "failed", "killed"):
        task, fault, why = death.who, death.cause.fault, death.cause.why
        settled = life.last(task, "starting", "lost")
        begun = settled.start if settled else 0.0
        if not why or death.start < begun:
            continue
        if (left := life.last(task, "left")) and left.start >= begun:  # it was told to
            fault, why = left.cause.fault, f"{why}, {left.cause.why}"
        step = Fault.of(fault).step if fault else None
        for phase in digest.latest(task, 1) if step is None else ():
            step = phase.step
        at = run.facts.origin + death.start - _NOTICE
        errors.append(TaskError(task=task, step=step, reason=why, at=at))
    nobody = TaskError(task="a task", reason="it left no word of why", at=0.0)
    first = min(errors, key=lambda e: (e.echo, e.at), default=nobody)
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
        allowed = "no run is in it; name the directory of a run, or of a race with its runs in it"
        raise SpecError("run_dir", str(path), _missing(path) or allowed)
    return {
        p.name.partition("-")[2] if p.name[:1].isdigit() else p.name: SavedRun(p) for p in inside
    }
