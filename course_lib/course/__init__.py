"""Exercises: answers checked in words, hints in three levels, and notebooks for learners made from
the solutions. What belongs to one exercise set lies in `exercises/checks/`.
"""

from course_lib.course.answers import check, hint
