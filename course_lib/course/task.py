"""A task of an exercise: the answer that it asks for, hints, and who judges it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course_lib.course.verdict import Verdict


@dataclass(frozen=True)
class Task:
    """`answer` is the name that the learner's function has in the notebook; `hints` has three, each
    says more than the one before.

    `judge(name, answer)` gives the verdict.
    """

    name: str
    answer: str
    hints: tuple[str, str, str]
    judge: Callable[[str, Any], Verdict]
