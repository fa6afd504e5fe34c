"""Of all that went wrong in a run, the first: the root cause, and the only one worth showing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from course_lib.cluster.process import task_dir
from course_lib.errors import TaskFailed
from course_lib.record.events import Phase
from course_lib.record.trace import Trace

# A killed process cannot stamp its own death. The supervisor notes it a moment later, and peers may
# have noticed before.
_NOTICE = 0.5


def first_failure(
    run_dir: Path, deaths: Mapping[str, Mapping[str, Any]], trace: Trace, paused: Sequence[str] = ()
) -> TaskFailed:
    """The first failure of a run, from the errors that tasks left and the deaths (task -> when,
    why) that the supervisor saw.

    If tasks are `paused`, they are the cause of what the others say.
    """
    found: list[tuple[float, str, int | None, str, str]] = []
    for path in run_dir.glob("tasks/*/error.json"):
        e = json.loads(path.read_text())
        found.append((e["at"], e["task"], e["step"], e["reason"], e["traceback"]))
    for task, death in deaths.items():
        steps = [phase.step for phase in trace.all(Phase, task)]
        found.append((death["at"] - _NOTICE, task, steps[-1] if steps else None, death["why"], ""))
    _, task, step, reason, text = min(
        found, default=(0.0, "a task", None, "it left no word of why", "")
    )
    if paused and text:
        reason = f"{' and '.join(paused)} was paused, and {task} gave up waiting. It said: {reason}"
    return TaskFailed(task, step, reason, text, log_tail(run_dir, task))


def log_tail(run_dir: Path, task: str, lines: int = 15) -> str:
    """The last lines of what a task printed, errors last."""
    here = task_dir(run_dir, task)
    texts = [
        (here / name).read_text(errors="replace")
        for name in ("stdout.log", "stderr.log")
        if (here / name).exists()
    ]
    return "\n".join(line[:300] for line in "".join(texts).splitlines()[-lines:])
