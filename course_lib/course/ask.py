"""`check` and `hint`: what a learner asks in a notebook."""

from __future__ import annotations

from collections import Counter
from typing import Any

from course_lib.course.tasks import find
from course_lib.course.verdict import Text, Verdict
from course_lib.errors import SpecError

_asked: Counter[str] = Counter()  # hints given so far, by task


def check(task: str, answer: Any) -> Verdict:
    """Judge an answer in words: what is wrong with it in the smallest case that fails, and the
    mistake by its name where that is known.

    True in an `if` just when it passed. Raises SpecError for a task that is unknown.

        check("ring", my_ring)
    """
    found = find(task)
    if not callable(answer):
        given = "None" if answer is None else f"of type {type(answer).__name__}"
        return Verdict(
            task,
            "not yet",
            f"This is {given}. Give the function itself: check({task!r}, {found.answer}), without ( ) after its name.",
        )
    return found.judge(task, answer)


def hint(task: str, level: int | None = None) -> Text:
    """The next hint for a task, each time one that says more, up to the third; or that of a
    `level`, 1 to 3. Raises SpecError.
    """
    hints = find(task).hints
    if level is None:
        _asked[task] = level = min(_asked[task] + 1, len(hints))
    if level not in range(1, len(hints) + 1):
        raise SpecError("level", level, f"1 to {len(hints)}")
    return Text(f"Hint {level} of {len(hints)} for {task}. {hints[level - 1]}")
