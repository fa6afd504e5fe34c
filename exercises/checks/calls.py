"""Calls of an answer that need no processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.course.answers import Unusable
from course_lib.course.handed_in import Answer, bounded

LONGEST = 5.0  # seconds that a function may compute
NOTHING = "It returns nothing: is `return` missing?"


def asked(answer: Answer, function: Callable[..., Any], *given: Any) -> Any:
    """What `function(learner's, *given)` returns. Raises Unusable for an answer that fails."""
    try:
        with bounded(LONGEST):
            return answer.within(function, *given)
    except NotImplementedError:
        raise
    except Exception as error:
        raise Unusable(f"{answer.__name__} raises {type(error).__name__}: {error}") from None
