"""`grade`: check all answers in a learner's notebook. The process that judges them, this one, never
runs the learner's code. The examinee does (`examinee.py`), in a run of its own: it calls the
learner's functions as the judge asks, and what they gave back comes here as plain data, through a
socket. With all that it starts, it is held to bounds.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from course_lib.course.answers import ExerciseTask, Verdict, bounded, judged, sets, short
from course_lib.course.examination import USUAL, Bounds, Ended, Examinee, Found, examinee
from course_lib.course.generate import opened
from course_lib.errors import SpecError

LOOK = "look"  # tag of cells that only show answers or run something with them; they are left out
Cell = tuple[int, str]  # its number among the code cells of the notebook, from 1 on, and its source


def grade(path: Path, bounds: Bounds = USUAL) -> list[Verdict]:
    """A verdict for each task of the exercise at `path`, in their order.

    A check in which the examinee exceeds its bounds, or ends, fails; the rest are made with a new
    one. Raises SpecError if the notebook is no exercise, and whatever starting a run raises.
    """
    tasks, cells = read(path)
    verdicts: list[Verdict] = []
    while left := tasks[len(verdicts) :]:
        verdicts += _verdicts(path.resolve().parent, cells, left, bounds)
    return [replace(v, text=printable(v.text), hint=printable(v.hint)) for v in verdicts]


def printable(text: str) -> str:
    """A text without what a terminal may take for an order: words of an answer may be in it."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in short(text))


def _verdicts(
    folder: Path, cells: Sequence[Cell], tasks: Sequence[ExerciseTask], bounds: Bounds
) -> list[Verdict]:
    """The verdicts on the first of the tasks; on all of them unless the examinee ends early."""
    verdicts: list[Verdict] = []
    found = None
    with examinee(folder, bounds) as by:
        try:
            by.begin("Running the cells of the notebook")
            found = by.ask(Found, cells=cells, names=[task.answer for task in tasks])
            for task in tasks:
                by.begin(f"Checking {task.name}")
                verdicts.append(_verdict(task, by, found))
        except Ended as problem:
            costs = tasks[len(verdicts) : len(verdicts) + 1] if found else tasks
            verdicts += [Verdict(task.name, "not yet", str(problem)) for task in costs]
    return verdicts


def _verdict(task: ExerciseTask, by: Examinee, found: Found) -> Verdict:
    """The verdict on the answer to a task, if the notebook has one."""
    if task.answer not in found.answers:
        why = f" On the way there {'; '.join(found.troubles)}." if found.troubles else ""
        return Verdict(task.name, "not yet", f"The notebook defines no {task.answer}.{why}")
    try:
        with bounded(by.bounds.computing):
            return judged(task.name, by.stand_in(task.answer, found, task.ready_made))
    except Exception as error:  # one answer must not prevent the checks of the others
        text = f"It could not be checked: {type(error).__name__}: {error}"
        return Verdict(task.name, "not yet", text)


# --- the notebook ---


def exercises_in(folder: Path) -> list[Path]:
    """The exercises of this course in a folder and those below it, hidden ones left out. Raises
    SpecError if there is none.
    """
    found = []
    for path in sorted(folder.rglob("*.ipynb")):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            with suppress(SpecError), opened(path) as content:
                found += [path] if content.metadata.get("lockstep", {}).get("exercise") else []
    if not found:
        raise SpecError("notebook", str(folder), "no exercise of this course is in it")
    return found


def read(path: Path) -> tuple[Sequence[ExerciseTask], Sequence[Cell]]:
    """The tasks of the exercise in a notebook, and the code cells that may define the answers.
    Raises SpecError if there is none, or it is no exercise of this course.

    The exercise is known by the metadata that its solution gave it: the file may have been renamed.
    """
    with opened(path) as content:
        exercise = str(content.metadata.get("lockstep", {}).get("exercise"))
        code = enumerate((cell for cell in content.cells if cell.cell_type == "code"), 1)
        wanted = ((n, cell) for n, cell in code if LOOK not in cell.metadata.get("tags", ()))
        cells = [(n, str(cell.source)) for n, cell in wanted]
    if exercise not in sets():
        problem = f"is no exercise of this course; there are {', '.join(sets())}"
        raise SpecError("notebook", str(path), problem)
    return sets()[exercise], cells
