"""A run as its directory tells of it, live or long over: what views need of a run, without the
process that started it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from course_lib.errors import LockstepError, SpecError, TaskFailed
from course_lib.record.events import STATES, Lifecycle, Phase
from course_lib.record.reality import Reality, reality
from course_lib.record.trace import Trace
from course_lib.spec import RunSpec


class SavedRun:
    """The run of a directory. It can be looked at, not acted on.

    Raises `SpecError` if the directory holds no run.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self.run_dir = Path(run_dir)
        try:
            self.spec = RunSpec.model_validate_json((self.run_dir / "spec.json").read_text())
            self._trace = Trace.of_run(self.run_dir)
        except (OSError, ValueError, KeyError) as error:
            raise SpecError("run_dir", str(run_dir), f"the directory of a run ({error})") from None

    @property
    def trace(self) -> Trace:
        """What has happened so far; the same object each time, read up to now."""
        return self._trace.refresh()

    @property
    def state(self) -> str:
        """As `Run.state`. A run that ended without a word was stopped."""
        states = {e.task: e.state for e in self.trace.all(Lifecycle) if e.state in STATES}
        if self._goes_on():
            return "running" if states and "starting" not in states.values() else "starting"
        if any(state in ("failed", "killed") for state in states.values()):
            return "failed"
        served = {
            task
            for task in self.spec.tasks
            if task.startswith("ps:") or (self.spec.chief and task.startswith("worker:"))
        }
        return (
            "finished"
            if all(states.get(task) == "done" for task in self.spec.tasks if task not in served)
            else "stopped"
        )

    @property
    def reality(self) -> Reality:
        """As `Run.reality`."""
        return reality(self.spec, self.trace)

    @property
    def result(self) -> Any:
        """What came out of it.

        Raises `TaskFailed` for a run that failed, `LockstepError` if there is nothing.
        """
        path = self.run_dir / "result.json"
        if path.exists():
            return json.loads(path.read_text())
        if self.state == "failed":
            raise self._failure()
        raise LockstepError(f"the run has no result: it is {self.state}")

    def _goes_on(self) -> bool:
        """The supervisor removes the tasks' temporary folders when the last is gone; killed itself,
        it leaves processes that are no more.
        """
        if not any(self.run_dir.glob("tasks/*/tmp")):
            return False
        pids = [e.pid for e in self._trace.all(Lifecycle, state="starting")]
        return not pids or any(map(_alive, pids))

    def _failure(self) -> TaskFailed:
        """The first failure: what a task wrote, or the death that the supervisor saw."""
        wrote = [json.loads(path.read_text()) for path in self.run_dir.glob("tasks/*/error.json")]
        deaths = [
            e for e in self._trace.all(Lifecycle) if e.state in ("failed", "killed") and e.why
        ]
        origin = json.loads((self.run_dir / "run.json").read_text())["origin"]
        found = [(e["at"] - origin, e["task"], e["step"], e["reason"]) for e in wrote]
        for e in deaths:  # noticed a moment later than by those that it made fail
            steps = [p.step for p in self._trace.all(Phase, e.task)]
            found.append((e.at - 0.5, e.task, steps[-1] if steps else None, e.why))
        _, task, step, reason = min(found, key=lambda f: f[0])
        return TaskFailed(task, step, reason)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def saved_runs(path: Path | str) -> dict[str, SavedRun]:
    """The run of a directory, or those of a race's directory, by label."""
    path = Path(path)
    if (path / "spec.json").exists():
        run = SavedRun(path)
        return {run.spec.strategy: run}
    inside = sorted(p.parent for p in path.glob("*/spec.json"))
    if not inside:
        raise SpecError(
            "run_dir", str(path), "the directory of a run, or of a race with its runs in it"
        )
    return {
        p.name.partition("-")[2] if p.name[:1].isdigit() else p.name: SavedRun(p) for p in inside
    }
