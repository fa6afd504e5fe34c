"""Answers that want to pass a check without doing the task, in the learner's own kernel. What has
to hold against a whole notebook is in tests/processes/test_grading.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np

from course_lib.collectives import Schedule, Transfer, ring
from course_lib.course import check
from tests.answers import Answers

ANSWERS = Answers("04_allreduce_from_scratch", "exercise_04_fooled", varies=True)
T = Transfer


def by_hand(workers: int) -> Schedule:
    """A right ring."""

    def half(behind: int, op: Any) -> list[Any]:
        return [
            [T(r, (r + 1) % workers, (r - behind - i) % workers, op) for r in range(workers)]
            for i in range(workers - 1)
        ]

    return Schedule("mine", workers, workers, half(1, "reduce") + half(0, "copy"))


TABLE = {workers: ring(workers) for workers in range(1, 10)}


@ANSWERS.wrong("ring")
def a_table_of_the_librarys_own(workers: int) -> Schedule:
    return TABLE[workers]


@ANSWERS.wrong("ring")
def right_for_three_only(workers: int) -> Schedule:
    return by_hand(workers) if workers == 3 else by_hand(3)


@ANSWERS.wrong("ring")
def right_for_2_3_and_5(workers: int) -> Schedule | None:
    return by_hand(workers) if workers in (2, 3, 5) else None


CALLS: Counter[int] = Counter()


@ANSWERS.wrong("ring")
def right_once(workers: int) -> Schedule:
    CALLS[workers] += 1
    return by_hand(workers if CALLS[workers] == 1 else workers + 1)


class Equal:
    """Equal to all, true, with any attribute."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return 3


class Right(Schedule):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@ANSWERS.wrong("ring")
def what_equals_everything(workers: int) -> Any:
    return Equal()


@ANSWERS.wrong("ring")
def a_schedule_that_equals_all_others(workers: int) -> Schedule:
    return Right("mine", workers, workers, [])


@ANSWERS.wrong("ring")
def leaves(workers: int) -> Schedule:
    sys.exit(0)


@ANSWERS.wrong("ring")
def without_end(workers: int) -> Any:
    return without_end(workers)


@ANSWERS.wrong("ring")
def says_so(workers: int) -> str:
    print("ring: passed.")
    return "passed"


@ANSWERS.wrong("ring")
def numbers(workers: int) -> Any:
    return np.ones(workers)


test_what_is_no_answer_is_rejected_in_words = ANSWERS.rejected()


def test_a_learners_own_ring_is_not_taken_for_the_librarys() -> None:
    """The very same schedule; what follows after the proof needs processes, and is not reached."""
    assert by_hand(5).digest == ring(5).digest

    def breaks_later(workers: int) -> Schedule:
        return by_hand(workers) if workers < 10 else ring(3)

    assert "for 1 to 9 workers" in check("ring", breaks_later).text
