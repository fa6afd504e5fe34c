"""The checks of exercise 02: wrong answers are told by their names, right ones accepted, whatever
way they are written.
"""

from __future__ import annotations

from collections import Counter

import pytest

from course_lib.course import check
from course_lib.course.answers import sets
from tests.answers_02 import RIGHT, WRONG, Answer

TASKS = [task.name for task in sets()["02_data_and_batch"]]


@pytest.mark.parametrize(("task", "answer"), RIGHT, ids=[f"{t}-{a.__name__}" for t, a in RIGHT])
def test_a_right_answer_is_accepted_in_whatever_way_it_is_written(
    task: str, answer: Answer
) -> None:
    verdict = check(task, answer)
    assert verdict, repr(verdict)
    assert "Carried out by 2, 3 and 5 real processes" in verdict.text


@pytest.mark.parametrize(
    ("task", "answer", "says"), WRONG, ids=[f"{t}-{a.__name__}" for t, a, _ in WRONG]
)
def test_a_wrong_answer_is_met_by_words_that_name_its_mistake(
    task: str, answer: Answer, says: str
) -> None:
    verdict = check(task, answer)
    assert verdict.state == "not yet", repr(verdict)
    assert says in repr(verdict), repr(verdict)


def test_each_task_has_eight_wrong_answers_and_three_right_ones() -> None:
    wrong, right = Counter(task for task, *_ in WRONG), Counter(task for task, _ in RIGHT)
    assert all(wrong[task] >= 8 and right[task] >= 3 for task in TASKS), (wrong, right)
