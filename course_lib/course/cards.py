"""Cards of the exercises, which need no kernel and no script: a verdict, with the picture of what
failed and hints at a click; and a learner's progress in the course.

Progress is kept in one small file of the course's folder. It is the learner's own note, and no
grade.
"""

import base64
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from course_lib import text
from course_lib.collectives import Schedule
from course_lib.errors import SpecError
from course_lib.record.events import Phase
from course_lib.record.trace import Trace
from course_lib.widgets.cards.predict import kept, notebook
from course_lib.widgets.kit import Inside, Markup, element, join, page, unfold
from course_lib.widgets.stage.scene import Played
from course_lib.widgets.stage.still import film_svg, filmed
from course_lib.widgets.timeline import lanes_svg

MARKS = {  # state -> colour, sign in a circle of 24 x 24
    "passed": ("#009E73", "M6.5 12.5l4 4 7-8.5"),
    "not yet": ("#D55E00", "M8 8l8 8M16 8l-8 8"),
    "to do": ("#7A7A7A", "M8 12h8"),
}
LAST = 6  # steps of a run that are shown
FILM = (
    "Round by round: a row is a rank, a column a chunk of its gradient. A layer in a rank's colour:"
    " that rank's gradient is in. + is added, = replaces, a cross is where it goes wrong."
)
STYLE = page.asset("cards/verdict.css")

# --- a verdict ---


def card(verdict: Any, hints: Sequence[str]) -> str:
    """The HTML of a `Verdict`: the diagnosis, a picture, all else in it, the task's hints, and a
    link to the lesson.
    """
    color, sign = MARKS[verdict.state]
    stroke = {"fill": "none", "stroke": "white", "stroke_width": 2.5, "stroke_linecap": "round"}
    parts = element("circle", cx=12, cy=12, r=11, fill=color), element("path", d=sign, **stroke)
    mark = element("svg", parts, viewBox="0 0 24 24", aria_hidden="true", class_=verdict.state)
    state = element("span", element("b", verdict.task), f": {verdict.state}")
    body = (element("div", mark, state, class_="state"), *_inside(verdict, hints))
    inside = element("div", body, class_="ls-verdict", style=f"border-color:{color}")
    return page.card(inside, STYLE)


def _inside(verdict: Any, hints: Sequence[str]) -> Iterator[Markup]:
    words, hint = verdict.text, verdict.hint
    if hint and ("\n" in words or words.endswith(":")):  # an example: what it shows comes first
        words, hint = hint, words
    head, _, rest = words.replace(":\n", ": ", 1).partition("\n")
    first, *more = re.split(r"(?<=[.?!]) (?=[A-Z])", head, maxsplit=1)
    yield element("p", element("b", *_code(first)), *_code("".join(f" {each}" for each in more)))
    further = list(filter(None, (rest, hint)))
    yield from (element("p", *_code(each)) for each in further if "\n" not in each)
    yield from _picture(verdict.shown, first)
    if long := "\n\n".join(each for each in further if "\n" in each):
        yield unfold("All that was found", element("pre", *_code(long)))
    if verdict.state != "passed":
        inner: list[Markup] = []
        for number, each in reversed([*enumerate(hints, 1)]):
            inner = [unfold(f"Hint {number} of 3", element("pre", *_code(each)), *inner)]
        yield from inner
    if verdict.section:
        lesson, _, heading = verdict.section.partition("#")
        link = f"../notebooks/{lesson}.ipynb#{heading.replace(' ', '-')}"  # JupyterLab's anchor
        yield element("p", f"Lesson {lesson[:2]} explains this: ", element("a", heading, href=link))


def _picture(shown: Schedule | Trace | None, alt: str) -> Iterator[Markup]:
    """The schedule or the run that a verdict is about; nothing of one that is too large."""
    picture = caption = ""
    with suppress(SpecError):
        if isinstance(shown, Schedule):
            played = Played(shown)
            picture, caption = film_svg(played), FILM
            if start := filmed(played).start:
                caption += f" Rounds before {start} are left out: the picture would be too large."
        elif shown and (phases := shown.all(Phase)):
            first = max(phase.step for phase in phases) - LAST + 1
            picture = lanes_svg(shown, "The last steps of the run", max(first, 0), LAST)
    if picture:
        data = base64.b64encode(picture.encode()).decode()
        yield element("img", src=f"data:image/svg+xml;base64,{data}", alt=alt)
        yield element("p", caption, class_="quiet")


def _code(words: str) -> Iterator[Inside]:
    """A text in which what stands between backticks is code."""
    for i, part in enumerate(re.split(r"`([^`\n]+)`", words)):
        yield element("code", part) if i % 2 else part


# --- progress ---

NAME = ".lockstep-progress.jsonl"


class Standing(NamedTuple):
    """A learner's standing with a task: checks of an answer, and the time of the first that passed
    ("2026-11-23 14:05"; "" if none has).
    """

    checks: int = 0
    solved: str = ""

    def __str__(self) -> str:
        state = f"solved {self.solved}" if self.solved else "not yet"
        return f"{state}, {text.count(self.checks, 'check')}" if self.checks else "to do"


def place() -> Path | None:
    """The file for all lessons and exercises of a course, which lies above their folders. None if
    no notebook is open, as in a program or a test run: nothing is kept then.
    """
    if not (book := notebook()):
        return None
    folder = book.parent
    inside = folder.name in ("notebooks", "exercises", "solutions")
    return (folder.parent if inside else folder) / NAME


def note(task: str, state: str) -> None:
    """Note a check of an answer. A folder that cannot be written costs the note, nothing else.

    A line is added in one call, so that kernels may do so at the same time.
    """
    if (path := place()) and state != "to do":
        entry = {"task": task, "state": state, "when": time.strftime("%Y-%m-%d %H:%M")}
        with suppress(OSError), path.open("ab", buffering=0) as file:
            file.write(f"{json.dumps(entry)}\n".encode())


def noted(path: Path | None) -> dict[str, Standing]:
    """The standing of each task that was checked. Lines that cannot be read are left out."""
    standings, lines = dict[str, Standing](), list[bytes]()
    with suppress(OSError):
        lines = path.read_bytes().splitlines() if path else []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # damaged
            task, state, when = itemgetter("task", "state", "when")(json.loads(line))
            before = standings.get(task, Standing())
            if not before.solved:  # what is checked once more later is no further try
                solved = str(when)[:16] if state == "passed" else ""
                standings[task] = Standing(before.checks + 1, solved)
    return standings


class Book(NamedTuple):
    """A notebook of the course. `cells`: its title, how many of its questions are answered or tasks
    solved, "", and how it stands: "done", "begun" or "to do". `tasks`: those of an exercise, each
    as "", its name, its points and how it stands.
    """

    path: Path
    cells: tuple[str, str, str, str]
    tasks: Sequence[tuple[str, str, str, str]]


def books(course: Path, exercises: Mapping[str, Sequence[Any]], place: Path | None) -> list[Book]:
    """The lessons and exercises of a course, each exercise after its lesson. A question is answered
    when its guess has met its result. `exercises`: the `ExerciseTask`s of each set. What was done
    stands in the file `place`, and beside it or in `notebooks` there.
    """
    standings, listed = noted(place), list[Book]()
    entries = kept(place) | kept(place and place.parent / "notebooks" / place.name)
    answered = Counter(str(entry.get("lesson")) for entry in entries.values() if "result" in entry)
    for path in (*course.glob("notebooks/*.ipynb"), *course.glob("exercises/*.ipynb")):
        sources, tasks = [path.stem], list[tuple[str, str, str, str]]()
        with suppress(OSError, ValueError, LookupError, TypeError):  # damaged
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            sources = ["".join(cell["source"]) for cell in cells] or sources
        title, what = sources[0].partition("\n")[0].removeprefix("# "), "questions"
        asked = sum(source.count(" = Predict(") for source in sources)
        done = min(asked, answered[path.stem])
        if path.parent.name == "exercises":
            for task in exercises.get(path.stem, ()):
                state = str(standings.get(task.name, Standing()))
                tasks.append(("", task.name, f"{task.points} points", state))
            done, asked = sum(task[3].startswith("solved") for task in tasks), len(tasks)
            what = "tasks"
        state = "done" if done == asked > 0 else "begun" if done else "to do"
        listed.append(Book(path, (title, f"{done} of {asked} {what}", "", state), tasks))
    return sorted(listed, key=lambda book: (book.path.stem[:2], bool(book.tasks)))


class Progress(page.Card):
    """A card of all lessons and exercises: what is done or solved, when, after how many checks,
    and where to go on. `books`: those of the course, in its order.
    """

    title = "Your course"

    def __init__(self, books: Sequence[Book]) -> None:
        self.books = books

    def rows(self) -> list[tuple[str, str, str, str]]:
        """A row for each lesson, exercise and task: title, name, points, and how it stands."""
        return [row for book in self.books for row in (book.cells, *book.tasks)]

    def following(self) -> tuple[Book | None, str]:
        """The notebook to go on with, and that in words: of the lessons not done the first from the
        last one that was begun, or else the first; then the exercises. None if all is done.
        """
        lessons = [book for book in self.books if not book.tasks]
        begun = max((i for i, book in enumerate(lessons) if book.cells[3] != "to do"), default=0)
        for book in (*lessons[begun:], *lessons, *self.books):
            if book.cells[3] != "done":
                return book, f"Go on with {'' if book.tasks else 'lesson '}{book.cells[0]}."
        return None, "All is done."

    def body(self) -> str:
        book, words = self.following()
        onward = link(book, words) if book else words
        head = [element("p", each) for each in (self.summary(), onward)]
        groups = list[Markup]()
        for book in self.books:
            name, count, *rest = book.cells
            first = _row("", link(book, name), unfold(count) if book.tasks else count, *rest)
            groups.append(element("tbody", first, [_row("task", *task) for task in book.tasks]))
        return join([element("h3", self.title), *head, element("table", groups)])

    def summary(self) -> str:
        """The lessons done, the tasks solved and the points, in words."""
        lessons = [book.cells[3] for book in self.books if not book.tasks]
        tasks = [task for book in self.books for task in book.tasks]
        solved = [task for task in tasks if task[3].startswith("solved")]
        points, most = (sum(int(task[2].split()[0]) for task in those) for those in (solved, tasks))
        done = f"{lessons.count('done')} of {len(lessons)} lessons done."
        return f"{done} {len(solved)} of {len(tasks)} tasks solved, {points} of {most} points."

    def table(self) -> str:
        return "\n".join([text.table(self.rows()), self.summary(), self.following()[1]])

    def style(self) -> str:
        return f"{STYLE}\n.ls-card tbody:not(:has([open])) .task {{ display: none; }}"


def link(book: Book, words: str) -> Markup:
    """A link to a notebook of the course from the one that is open."""
    here = notebook() or book.path
    return element("a", words, href=quote(Path(os.path.relpath(book.path, here.parent)).as_posix()))


def _row(kind: str, name: Inside, *cells: str) -> Markup:
    done = "solved" if cells[-1].startswith(("done", "solved")) else "quiet"
    listed = [element("td", each) for each in cells[:-1]], element("td", cells[-1], class_=done)
    return element("tr", element("th", name, scope="row"), *listed, class_=kind)
