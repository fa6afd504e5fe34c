"""Exercises: answers checked in words, hints in three levels, and notebooks for learners made from
the solutions. What belongs to one exercise set lies in `exercises/checks/`.
"""

from typing import TYPE_CHECKING

from course_lib import lazy

if TYPE_CHECKING:
    from course_lib.course.ask import check, hint

__all__ = ["check", "hint"]

__getattr__, __dir__ = lazy.names(
    __name__, {"check": "course_lib.course.ask:check", "hint": "course_lib.course.ask:hint"}
)
