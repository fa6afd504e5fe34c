"""Tasks of exercises, and the verdict on an answer. A learner calls `check` and `hint`. The
exercise sets lie in `exercises/checks/`, one file for each.
"""

import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import cloudpickle

from course_lib.collectives import Schedule
from course_lib.course.handed_in import Answer, TookTooLong, belongs
from course_lib.errors import SpecError, Unavailable
from course_lib.notebook import lazy
from course_lib.notebook.output import few_words
from course_lib.record.progress import Line
from course_lib.record.trace import Trace

ENDLESS = "Does a loop in it never end?"

ROOT = Path(__file__).parents[2]
CHECKS = ROOT / "exercises" / "checks"
_PACKAGE = "exercise_checks"
MOST = 5000  # characters of a verdict


@dataclass(frozen=True, repr=False)
class Verdict:
    """The outcome of a check of the answer to `task`; true if it passed.

    `text` says what was shown, or what is wrong. `hint` names the mistake if it was recognised.
    `shown` is the schedule, or the trace of the run, that it is about; a notebook draws it.
    """

    task: str
    state: Literal["passed", "not yet", "to do"]
    text: str
    hint: str = ""
    shown: Schedule | Trace | None = None

    def __post_init__(self) -> None:
        for name in ("text", "hint"):  # words of an answer may be in them
            object.__setattr__(self, name, _harmless(getattr(self, name)))

    def __bool__(self) -> bool:
        return self.state == "passed"

    def __repr__(self) -> str:
        text, (lesson, _, heading) = f"{self.task}: {self.state}.", self.section.partition("#")
        where = f"Lesson {lesson[:2]} explains this: {heading} (notebooks/{lesson}.ipynb)"
        return "\n\n".join(filter(None, [f"{text}\n{self.text}", self.hint, heading and where]))

    @property
    def section(self) -> str:
        """The section of a lesson to read where an answer is not right yet, as an `ExerciseTask`
        has it; "" for an error that it raises, which no lesson explains.
        """
        explained = self.state == "not yet" and not self.text.startswith("It raises")
        tasks = sets().values() if explained else ()
        return next((task.section for each in tasks for task in each if task.name == self.task), "")

    def _repr_html_(self) -> str:
        from course_lib.course.cards import card  # widgets take long to import

        return card(self, find(self.task).hints)


@dataclass(frozen=True)
class ExerciseTask:
    """One thing that a learner writes.

    `answer` is the name of the learner's function in the notebook. Each of the three `hints` says
    more than the one before. `judge(name, answer)` returns the verdict. It may raise `Unusable`, or
    whatever the learner's function raises if it is still the stub, never ends, or fills the memory;
    `check` puts these into words. A judge gets what a learner wrote as an `Answer`.

    `ready_made`: the full name of each function, class or module that would do the task for the
    learner, and what it is in words. An answer that is right but calls one is not passed.
    `section`: the section of a lesson that explains it, "03_synchronous_training#Explain".
    """

    name: str
    answer: str
    hints: tuple[str, str, str]
    judge: Callable[[str, Answer], Verdict]
    ready_made: Mapping[str, str] = field(default_factory=dict)
    points: int = 10
    section: str = ""


class Unusable(Exception):
    """Raised by a judge for an answer that cannot be judged; its text tells the learner why."""


def _harmless(text: str) -> str:
    """The text, cut if it is long, without what a terminal may take for an order."""
    cut = len(text) - MOST
    kept = "".join(c if c.isprintable() or c == "\n" else "?" for c in text[:MOST])
    return kept if cut <= 0 else f"{kept} [... {cut:,} characters more]"


# --- the exercise sets ---


@functools.cache
def sets() -> dict[str, tuple[ExerciseTask, ...]]:
    """The tasks of each exercise set, in their order; the name of a set is that of its notebook.

    A set is a file `NN_name.py` with its `TASKS`. Its name is no identifier, so all of them are
    imported by path, as one package. Raises Unavailable if there is no such folder.
    """
    spec = importlib.util.spec_from_file_location(_PACKAGE, CHECKS / "__init__.py")
    if not (spec and spec.loader and CHECKS.is_dir()):
        why = f"there is no folder {CHECKS}: an installed package has no exercises"
        cure = "Take a copy of the whole course, and run `pip install -e .` (or `make lab`) in it"
        raise Unavailable("checking exercises", why, cure)
    package = sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    # neither tasks of a run nor the process of an examinee have it
    cloudpickle.register_pickle_by_value(package)
    modules = {module.__name__.partition(".")[2]: module for module in lazy.modules(_PACKAGE)}
    return {name: module.TASKS for name, module in modules.items() if name[0].isdigit()}


def find(name: str) -> ExerciseTask:
    """The task of that name. Raises SpecError with the nearest name if there is none."""
    tasks = {task.name: task for tasks in sets().values() for task in tasks}
    if name not in tasks:
        raise SpecError.unknown("task", name, tasks)
    return tasks[name]


# --- what a learner calls ---


def check(task: str, answer: Any) -> Verdict:
    """Judge an answer in words: they give the smallest case that fails, and name the mistake if it
    is a known one. An answer may be anything: no function, still the stub, or one that never ends.

    The verdict is true only if the answer passed. Raises SpecError for an unknown task, and
    whatever a run of real processes raises if the machine cannot carry it out.

        check("ring", my_ring)
    """
    from course_lib.course.cards import note  # widgets take long to import

    verdict = judged(find(task), answer)
    note(task, verdict.state)
    return verdict


def judged(asked: ExerciseTask, answer: Any) -> Verdict:
    """Judge an answer as `check` does, and note nothing in the learner's progress."""
    task = asked.name
    if not callable(answer):
        given = "None" if answer is None else f"of type {type(answer).__name__}"
        call = f"check({task!r}, {asked.answer})"
        text = f"This is {given}. Give the function itself: {call}, without ( ) after its name."
        return Verdict(task, "not yet", text)
    if not isinstance(answer, Answer):
        answer = Answer(answer, asked.ready_made)
    name, began = answer.__name__, time.monotonic()
    try:
        with Line(lambda: f"Checking {task}: {time.monotonic() - began:.0f} s"), few_words(name):
            verdict = asked.judge(task, answer)
        if not (verdict and answer.used):
            return verdict
        used = answer.used[0]
        words = [words for full, words in asked.ready_made.items() if belongs(used, full)]
        what = words[0] if words else "turning off the check's own watch"
        text = f"This is {what}: right, and not yet yours. {name} runs {used}."
        cure = "Read how that is done if you like; then write it out, without calling it."
        return Verdict(task, "not yet", text, cure)
    except NotImplementedError:  # the stub that an exercise begins with
        text = "Nothing is here yet: write the function, then check it again."
        return Verdict(task, "to do", text)
    except Unusable as problem:
        text = str(problem)
    except TookTooLong as late:
        text = f"{name} had not come back after {late.seconds:g} seconds of computing. {ENDLESS}"
    except SystemExit:
        text = f"{name} ends the process (sys.exit, exit or quit): return from it instead."
    except MemoryError:
        text = f"{name} fills the memory. {ENDLESS}"
    return Verdict(task, "not yet", text)


def hint(task: str, level: int = 1) -> None:
    """Print one of the three hints for a task; each `level`, 1 to 3, says more than the one before.
    Raises SpecError for an unknown task or level.
    """
    if level not in (1, 2, 3):
        raise SpecError("level", level, "1 to 3")
    print(f"Hint {level} of 3 for {task}. {find(task).hints[level - 1]}")


def progress(folder: Path | str | None = None) -> Any:
    """All lessons and exercises: what is done and solved, when, after how many checks, and where
    to go on.

    What was done in notebooks is counted, that of `folder`'s course if it is given. Raises
    Unavailable if the exercises are not there.

        progress()          # in a notebook a card, on a terminal a table
    """
    from course_lib.course import cards  # widgets take long to import

    if folder is not None and not Path(folder).is_dir():
        raise SpecError("folder", str(folder), "the folder of the course")
    place = Path(folder) / cards.NAME if folder else cards.place()
    return cards.Progress(cards.books(ROOT, sets(), place))
