"""Answers to the tasks of an exercise set, as its tests collect them.

ANSWERS = Answers("04_allreduce_from_scratch", "exercise_04")

@ANSWERS.wrong("ring")
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
from tests.screens import blocks, masked, says

Answer = Callable[..., Any]


class Answers:
    """Wrong answers and right ones; the name of an answer says what somebody did. The verdicts of
    the wrong ones are blocks of `screen`; `varies`: their numbers differ each time. `make test`
    tries one in `sample` of the answers.
    """

    def __init__(self, name: str, screen: str = "", varies: bool = False, sample: int = 1) -> None:
        self.tasks = [task.name for task in sets()[name]]
        self.screen, self.varies = screen, varies
        self.sample = pytest.mark.sample(sample)
        self.wrongs: dict[str, tuple[str, Answer]] = {}
        self.rights: list[tuple[str, Answer]] = []

    def wrong(self, task: str, did: str = "") -> Callable[[Answer], Answer]:
        """A wrong answer to a task; `did`: what it does, if its name does not say that."""

        def kept(answer: Answer) -> Answer:
            key = f"{task}: {did or answer.__name__.replace('_', ' ')}"
            assert key not in self.wrongs, key
            self.wrongs[key] = task, answer
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

        @self.sample
        @pytest.mark.parametrize("key", self.wrongs)
        def test(key: str) -> None:
            verdict = check(*self.wrongs[key])
            assert (verdict.state, bool(verdict)) == ("not yet", False), repr(verdict)
            assert len(verdict._repr_html_()) < 100_000
            words = f"{verdict.text}\n\n{verdict.hint}"
            says(self.screen, key, masked(words) if self.varies else words)

        return test

    def accepted(self) -> Callable[..., None]:
        """The test that all right answers so far pass."""
        ids = [f"{task}-{answer.__name__}" for task, answer in self.rights]

        @self.sample
        @pytest.mark.parametrize(("task", "answer"), self.rights, ids=ids)
        def test(task: str, answer: Answer) -> None:
            verdict = check(task, answer)
            assert verdict, repr(verdict)

        return test

    def enough(self, wrong: int = 8, right: int = 3, *tasks: str) -> Callable[..., None]:
        """The test that each task (or of these) has so many answers, the wrong ones told apart."""

        @pytest.mark.parametrize("task", tasks or self.tasks)
        def test(task: str) -> None:
            wrongs = [key for key, (name, _) in self.wrongs.items() if name == task]
            assert len({blocks(self.screen)[key] for key in wrongs}) >= wrong
            assert len([name for name, _ in self.rights if name == task]) >= right

        return test
