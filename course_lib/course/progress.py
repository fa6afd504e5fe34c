"""A learner's progress, what is solved, when, and after how many tries: kept in one small file of
the course's folder, and shown as a card. It is the learner's own note, and no grade.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from course_lib import text
from course_lib.course.answers import ExerciseTask, sets
from course_lib.errors import SpecError
from course_lib.widgets.cards import guesses
from course_lib.widgets.kit import Markup, element, join
from course_lib.widgets.kit.page import Card

NAME = ".lockstep-progress.jsonl"
STYLE = ".ls.ls-card .solved { color: #009E73; font-weight: 600 }"


class Entry(BaseModel):
    """A line of the file: a check of the answer to `task`, and `when` that was."""

    task: str
    state: str
    when: str


@dataclass(frozen=True)
class Standing:
    """A learner's standing with a task: checks of an answer, and the time of the first that passed
    ("2026-11-23 14:05"; "" if none has).
    """

    tries: int = 0
    solved: str = ""

    def __str__(self) -> str:
        tries = f"{self.tries} {'try' if self.tries == 1 else 'tries'}"
        if self.solved:
            return f"solved {self.solved}, {tries}"
        return f"not yet, {tries}" if self.tries else "to do"


def place() -> Path | None:
    """The file for all lessons and exercises of a course, which lies above their folders. None if
    no notebook is open, as in a program or a test run: nothing is kept then.
    """
    if not (beside := guesses.place()):
        return None
    inside = beside.parent.name in ("notebooks", "exercises", "solutions")
    return beside.parents[1 if inside else 0] / NAME


def note(task: str, state: str) -> None:
    """Note a check of an answer. A folder that cannot be written costs the note, nothing else.

    A line is added in one call, so that kernels may do so at the same time.
    """
    if (path := place()) and state != "to do":
        entry = Entry(task=task, state=state, when=time.strftime("%Y-%m-%d %H:%M"))
        with suppress(OSError), path.open("ab", buffering=0) as file:
            file.write(f"{entry.model_dump_json()}\n".encode())


def noted(path: Path | None) -> tuple[dict[str, Standing], str]:
    """The standing of each task that was checked, and words for a file that is damaged; lines that
    cannot be read are left out.
    """
    standings, damaged = dict[str, Standing](), 0
    try:
        lines = path.read_bytes().splitlines() if path and path.exists() else []
    except OSError as error:
        return {}, f"{path} cannot be read ({error.strerror}): nothing is known of earlier checks."
    for line in lines:
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError:
            damaged += 1
            continue
        before = standings.get(entry.task, Standing())
        if not before.solved:  # what is checked again once it is solved is no try
            solved = entry.when[:16] if entry.state == "passed" else ""
            standings[entry.task] = Standing(before.tries + 1, solved)
    words = f"{text.count(damaged, 'line')} of {path} cannot be read." if damaged else ""
    return standings, words


class Progress(Card):
    """A card of all exercises with their tasks: points, what is solved and when, and after how many
    tries. `progress()` makes one.
    """

    title = "Your exercises"

    def __init__(
        self,
        exercises: Mapping[str, Sequence[ExerciseTask]],
        standings: dict[str, Standing],
        note: str = "",
    ) -> None:
        self.exercises, self.standings, self.note = exercises, standings, note

    def standing(self, task: ExerciseTask) -> Standing:
        return self.standings.get(task.name, Standing())

    def rows(self) -> list[tuple[str, str, str, str]]:
        """A row for each task: its exercise, its name, its points, and how it stands."""
        return [
            (_title(name), task.name, f"{task.points}", str(self.standing(task)))
            for name, tasks in self.exercises.items()
            for task in tasks
        ]

    def body(self) -> str:
        words = [element("p", part) for part in (self.summary(), self.note) if part]
        return join([element("h3", self.title), *words, *map(self._exercise, self.exercises)])

    def _exercise(self, name: str) -> Markup:
        """An exercise, open once one of its tasks was tried."""
        tasks = self.exercises[name]
        lines: list[Markup] = []
        for task in tasks:
            standing = self.standing(task)
            tick = element("span", "✓ ", class_="solved") if standing.solved else None
            kind = "" if standing.solved else "quiet"
            cells = [element("td", f"{task.points} points", class_="quiet")]
            cells.append(element("td", [tick, str(standing)], class_=kind))
            lines.append(element("tr", element("th", task.name, scope="row"), *cells))
        summary = element("summary", f"{_title(name)}: {self._counted(tasks)}")
        tried = any(task.name in self.standings for task in tasks)
        table = element("table", element("tbody", lines))
        return element("details", summary, table, open="" if tried else None)

    def summary(self) -> str:
        return self._counted([task for each in self.exercises.values() for task in each])

    def _counted(self, tasks: Sequence[ExerciseTask]) -> str:
        done = [task for task in tasks if self.standing(task).solved]
        points, most = (sum(task.points for task in those) for those in (done, tasks))
        return f"{len(done)} of {text.count(len(tasks), 'task')} solved, {points} of {most} points."

    def table(self) -> str:
        rows = [("exercise", "task", "points", ""), *self.rows()]
        return "\n".join(filter(None, [text.table(rows), self.summary(), self.note]))

    def style(self) -> str:
        return STYLE

    def __repr__(self) -> str:
        return self.table()


def progress(folder: Path | str | None = None) -> Progress:
    """All exercises with their tasks: what is solved, when, and after how many tries.

    Checks made in notebooks are counted, those of `folder`'s course if it is given. Raises
    Unavailable if the exercises are not there.

        progress()          # in a notebook a card, on a terminal a table
    """
    if folder is not None and not Path(folder).is_dir():
        raise SpecError("folder", str(folder), "the folder of the course")
    path = Path(folder) / NAME if folder is not None else place()
    return Progress(sets(), *noted(path))


def _title(name: str) -> str:
    number, _, words = name.partition("_")
    return f"{number} · {words.replace('_', ' ')}"
