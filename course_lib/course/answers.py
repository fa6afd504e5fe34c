"""What the process does that runs a learner's notebook and judges the answers in it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from course_lib.course.bounded import TookTooLong, bounded
from course_lib.course.notebook import read
from course_lib.course.task import Task
from course_lib.course.verdict import Verdict

CELL_PATIENCE = 10.0  # seconds of computing for one cell


def main(report: str, path: str, *names: str) -> NoReturn:
    """Run the notebook at `path`, then judge the tasks of these names: each verdict leaves as a
    line of JSON on the descriptor `report`.
    """
    notebook = read(Path(path))
    namespace, troubles = run(notebook.cells)
    with os.fdopen(int(report), "w") as out:
        print(json.dumps({"cells": len(notebook.cells)}), file=out, flush=True)
        for task in notebook.tasks:
            if task.name in names:
                print(json.dumps(asdict(judged(task, namespace, troubles))), file=out, flush=True)
    os._exit(0)  # whatever threads the notebook has started


def run(cells: Sequence[tuple[int, str]]) -> tuple[dict[str, Any], list[str]]:
    """Run cells as Jupyter does, magics and all: the names that they define, and what went wrong in
    which cell.
    """
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    # the trouble is told with the answer that it cost
    shell.showtraceback = shell.showsyntaxerror = lambda *_, **__: None
    troubles = []
    for number, source in cells:
        try:
            with bounded(CELL_PATIENCE):
                result = shell.run_cell(source)
            error = result.error_before_exec or result.error_in_exec
        except TookTooLong as late:
            error = late
        if isinstance(error, TookTooLong):
            troubles.append(
                f"code cell {number} computed for more than {CELL_PATIENCE:g} seconds: does a loop in it never end?"
            )
        elif error is not None:
            troubles.append(f"code cell {number} raises {type(error).__name__}: {error}")
    return shell.user_ns, troubles


def judged(task: Task, namespace: dict[str, Any], troubles: Sequence[str]) -> Verdict:
    """The verdict on the answer to a task, if the notebook has one."""
    if task.answer not in namespace:
        why = f" On the way there {'; '.join(troubles)}." if troubles else ""
        return Verdict(task.name, "not yet", f"The notebook defines no {task.answer}.{why}")
    try:
        return task.judge(task.name, namespace[task.answer])
    except Exception as error:  # one check that cannot be carried out must not cost the others
        return Verdict(
            task.name, "not yet", f"It could not be checked: {type(error).__name__}: {error}"
        )
