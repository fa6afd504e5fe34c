"""Answers to the tasks of an exercise set, as its tests collect them.

ANSWERS = Answers("04_allreduce_from_scratch")

@ANSWERS.wrong("ring", "Whole buffers are passed")
def whole_buffers(workers): ...

@ANSWERS.right("ring")
def to_the_left(workers): ...

test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from course_lib.course import check
from course_lib.course.answers import sets

Answer = Callable[..., Any]


class Answers:
    """Wrong answers with what their verdicts must say, and right ones; the name of an answer says
    what somebody did.
    """

    def __init__(self, name: str) -> None:
        self.tasks = [task.name for task in sets()[name]]
        self.wrongs: list[tuple[str, Answer, str]] = []
        self.rights: list[tuple[str, Answer]] = []

    def wrong(self, task: str, says: str) -> Callable[[Answer], Answer]:
        """A wrong answer to a task, whose verdict says `says`."""

        def kept(answer: Answer) -> Answer:
            self.wrongs.append((task, answer, says))
            return answer

        return kept

    def right(self, task: str) -> Callable[[Answer], Answer]:
        """A right answer to a task, written in another way than ours."""

        def kept(answer: Answer) -> Answer:
            self.rights.append((task, answer))
            return answer

        return kept

    def rejected(self) -> Callable[..., None]:
        """The test that all wrong answers so far are rejected by words that name the mistake."""
        ids = [f"{task}-{answer.__name__}" for task, answer, _ in self.wrongs]

        @pytest.mark.parametrize(("task", "answer", "says"), self.wrongs, ids=ids)
        def test(task: str, answer: Answer, says: str) -> None:
            verdict = check(task, answer)
            assert (verdict.state, bool(verdict)) == ("not yet", False), repr(verdict)
            assert says in repr(verdict), repr(verdict)
            assert len(verdict._repr_html_()) < 100_000

        return test

    def accepted(self) -> Callable[..., None]:
        """The test that all right answers so far pass."""
        ids = [f"{task}-{answer.__name__}" for task, answer in self.rights]

        @pytest.mark.parametrize(("task", "answer"), self.rights, ids=ids)
        def test(task: str, answer: Answer) -> None:
            verdict = check(task, answer)
            assert verdict, repr(verdict)

        return test

    def enough(self, wrong: int = 8, right: int = 3, *tasks: str) -> Callable[..., None]:
        """The test that each task (or of these) has so many answers, the wrong ones told apart."""

        @pytest.mark.parametrize("task", tasks or self.tasks)
        def test(task: str) -> None:
            assert len({says for name, _, says in self.wrongs if name == task}) >= wrong
            assert len([name for name, _ in self.rights if name == task]) >= right

        return test
