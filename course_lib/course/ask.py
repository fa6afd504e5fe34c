"""`check` and `hint`: what a learner calls in a notebook."""

from collections import Counter
from typing import Any

from course_lib.course.limits import TookTooLong
from course_lib.course.task import ENDLESS, Task, Unusable, Verdict, find
from course_lib.errors import SpecError

_asked: Counter[str] = Counter()  # hints given so far, by task


class Text(str):
    """A string that a notebook shows without quotes, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def check(task: str, answer: Any) -> Verdict:
    """Judge an answer in words: they give the smallest case that fails, and name the mistake if it
    is a known one.

    The verdict is true only if the answer passed. Raises SpecError for an unknown task, and
    whatever a run of real processes raises if the machine cannot carry it out.

        check("ring", my_ring)
    """
    return judged(find(task), answer)


def judged(task: Task, answer: Any) -> Verdict:
    """The verdict on any answer, also on one that is not a function, is still the stub, or never
    ends.
    """
    if not callable(answer):
        given = "None" if answer is None else f"of type {type(answer).__name__}"
        call = f"check({task.name!r}, {task.answer})"
        text = f"This is {given}. Give the function itself: {call}, without ( ) after its name."
        return Verdict(task.name, "not yet", text)
    name = getattr(answer, "__name__", "the function")
    try:
        return task.judge(task.name, answer)
    except NotImplementedError:  # the stub that an exercise begins with
        text = "Nothing is here yet: write the function, then check it again."
        return Verdict(task.name, "to do", text)
    except Unusable as problem:
        text = problem.text
    except TookTooLong as late:
        text = f"{name} had not come back after {late.seconds:g} seconds of computing. {ENDLESS}"
    except MemoryError:
        text = f"{name} fills the memory. {ENDLESS}"
    return Verdict(task.name, "not yet", text)


def hint(task: str, level: int | None = None) -> Text:
    """The next hint for a task; each call says more, up to the third. `level` (1 to 3) gives that
    hint instead. Raises SpecError for an unknown task or level.
    """
    hints = find(task).hints
    if level is None:
        _asked[task] = level = min(_asked[task] + 1, len(hints))
    if level not in range(1, len(hints) + 1):
        raise SpecError("level", level, f"1 to {len(hints)}")
    return Text(f"Hint {level} of {len(hints)} for {task}. {hints[level - 1]}")
