"""`grade`: check all answers in a learner's notebook. The notebook and the checks run in the task
of a separate run, the examiner, with bounds on time and memory.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import psutil

from course_lib.cluster.run import Run
from course_lib.course.answers import (
    ENDLESS,
    ExerciseTask,
    TookTooLong,
    Verdict,
    bounded,
    check,
    sets,
)
from course_lib.errors import SpecError, TaskFailed
from course_lib.hardware.limits import gigabytes
from course_lib.launch import start
from course_lib.record.events import ACTIVE, Lifecycle

EXAMINER = "worker:0"
LOOK = "look"  # tag of cells that only show answers or run something with them; they are left out
CELL_PATIENCE = 10.0  # seconds of computing for one cell
Report = dict[str, Any]


@dataclass(frozen=True)
class Bounds:
    """The bounds on all cells together, and then on each check: `computing` in seconds of the
    processor, `patience` in seconds of the clock, `memory` in bytes of the examiner's process.

    `bounded` sets tighter bounds inside that process, but a learner's code can block or swallow
    those.
    """

    computing: float = 60.0
    patience: float = 300.0  # for what waits and does not compute
    memory: int = 2 << 30


def grade(path: Path, bounds: Bounds = Bounds()) -> list[Verdict]:
    """A verdict for each task of the exercise at `path`, in their order.

    A check that exceeds its bounds, or ends its process, fails; the rest are made in a new process.
    Raises SpecError if the notebook is no exercise, and whatever starting a run raises.
    """
    names = [task.name for task in read(path).tasks]
    verdicts: list[Verdict] = []
    while len(verdicts) < len(names):
        verdicts += _verdicts(path, names[len(verdicts) :], bounds)
    return verdicts


class Ended(Exception):
    """The examiner has ended, or was stopped, before it had written all its reports."""


def _verdicts(path: Path, names: Sequence[str], bounds: Bounds) -> list[Verdict]:
    """The verdicts on the first of the tasks; on all of them unless the examiner ends early."""
    doing = ["Running the cells of the notebook", *(f"Checking {name}" for name in names)]
    reports: list[Report] = []
    lost: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="lockstep-check-") as place:
        said, run_dir = Path(place, "reports"), Path(place, "run")
        work = partial(examine, path.resolve(), names, said)
        with start(work, framework="python", workers=1, trace=False, run_dir=run_dir) as examiner:
            try:
                for number, what in enumerate(doing):
                    reports.append(next_report(examiner, said, number, what, bounds))
            except Ended as problem:
                costs = names[len(reports) - 1 : len(reports)] if reports else names
                lost = [Verdict(name, "not yet", str(problem)) for name in costs]
    return [Verdict(**report) for report in reports[1:]] + lost


def next_report(
    examiner: Run, said: Path, number: int, doing: str, bounds: Bounds
) -> dict[str, Any]:
    """Wait for report `number` in the file `said`; `doing` says what the examiner does meanwhile.
    Raises Ended, with the reason, if the examiner exceeds its bounds or is gone.
    """
    begun, (computed, _) = time.monotonic(), _usage(examiner)
    while True:
        over = examiner.state not in ACTIVE  # before a last look at its reports
        written = said.read_text() if said.exists() else ""
        if written.count("\n") > number:
            return dict(json.loads(written.splitlines()[number]))
        if over:
            raise Ended(f"{doing} ended its process. {_last_words(examiner)}".rstrip())
        computing, memory = _usage(examiner)
        if computing - computed > bounds.computing:
            what, why = f"computed for more than {bounds.computing:g} seconds", ENDLESS
        elif time.monotonic() - begun > bounds.patience:
            what, why = f"was not done after {bounds.patience:g} seconds", "What does it wait for?"
        elif memory > bounds.memory:
            what, why = f"took more than {gigabytes(bounds.memory)} of memory", ENDLESS
        else:
            time.sleep(0.05)
            continue
        raise Ended(f"{doing} {what}, and was stopped. {why}")


def _last_words(examiner: Run) -> str:
    """Why an examiner that is gone failed: what it raised, else the last line of its log."""
    try:
        examiner.wait()
    except TaskFailed as failure:
        return failure.reason if failure.remote_traceback else examiner.log(EXAMINER, 1)
    return ""


def _usage(examiner: Run) -> tuple[float, int]:
    """Processor seconds and bytes of memory that the examiner uses; zeros if it is not running."""
    for event in examiner.trace.all(Lifecycle, EXAMINER, state="starting"):
        with suppress(psutil.Error):
            process = psutil.Process(event.pid)
            return sum(process.cpu_times()[:2]), process.memory_info().rss  # user and system
    return 0.0, 0


# --- the notebook ---


@dataclass(frozen=True)
class Notebook:
    """`tasks` of the exercise, and the code cells that may define the answers: number in the
    notebook (from 1 on) and source.
    """

    tasks: tuple[ExerciseTask, ...]
    cells: tuple[tuple[int, str], ...]


def read(path: Path) -> Notebook:
    """Read a notebook. Raises SpecError if there is none, or it is no exercise of this course.

    The exercise is known by the metadata that its solution gave it: the file may have been renamed.
    """
    if not path.is_file():
        problem = "is a directory: name a notebook in it" if path.is_dir() else "no such file"
        raise SpecError("notebook", str(path), problem)
    try:
        content = nbformat.read(path, as_version=4)
        exercise = content.metadata.get("lockstep", {}).get("exercise")
        numbered = enumerate((cell for cell in content.cells if cell.cell_type == "code"), 1)
        cells = tuple(
            (n, cell.source) for n, cell in numbered if LOOK not in cell.metadata.get("tags", ())
        )
    except Exception as error:  # nbformat has no error of its own for what is no notebook
        problem = f"cannot be read as a notebook: {type(error).__name__}: {error}"
        raise SpecError("notebook", str(path), problem) from None
    if exercise not in sets():
        problem = f"is no exercise of this course; there are {', '.join(sets())}"
        raise SpecError("notebook", str(path), problem)
    return Notebook(sets()[exercise], cells)


# --- in the examiner's process ---


def examine(path: Path, names: Sequence[str], said: Path) -> None:
    """Run the notebook at `path`, then judge its tasks of these names. Writes a line of JSON to
    `said` when the cells have run, and one for each verdict.
    """
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # only the errors in its log are needed
    notebook = read(path)
    with said.open("w") as out:
        namespace, troubles = run_cells(notebook.cells)
        print(json.dumps({"cells": len(notebook.cells)}), file=out, flush=True)
        for task in notebook.tasks:
            if task.name in names:
                verdict = _answer_checked(task, namespace, troubles)
                print(json.dumps(asdict(verdict)), file=out, flush=True)


def _answer_checked(
    task: ExerciseTask, namespace: dict[str, Any], troubles: Sequence[str]
) -> Verdict:
    """The verdict on the answer to a task, if the notebook has one."""
    if task.answer not in namespace:
        why = f" On the way there {'; '.join(troubles)}." if troubles else ""
        return Verdict(task.name, "not yet", f"The notebook defines no {task.answer}.{why}")
    try:
        return check(task.name, namespace[task.answer])
    except (Exception, SystemExit) as error:  # one answer must not prevent the checks of the others
        text = f"It could not be checked: {type(error).__name__}: {error}"
        return Verdict(task.name, "not yet", text)


def run_cells(cells: Sequence[tuple[int, str]]) -> tuple[dict[str, Any], list[str]]:
    """Run cells as Jupyter does, magics included: the names that they define, and what went wrong
    in which cell.
    """
    # IPython takes half a second to import: only where cells run
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    # errors are reported with the answers that are missing because of them
    shell.showtraceback = shell.showsyntaxerror = lambda *_, **__: None
    troubles = []
    for number, source in cells:
        error: BaseException | None
        try:
            with bounded(CELL_PATIENCE):
                result = shell.run_cell(source)
            error = result.error_before_exec or result.error_in_exec
        except TookTooLong as late:
            error = late
        if isinstance(error, TookTooLong):
            troubles.append(f"code cell {number} {error}: does a loop in it never end?")
        elif error is not None:
            troubles.append(f"code cell {number} raises {type(error).__name__}: {error}")
    return shell.user_ns, troubles
