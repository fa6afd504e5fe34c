"""Means that ranks should have formed together, and what else they may have formed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# the same float32 numbers, added in another order: errors of 1e-7 of the largest of them
CLOSE = 1e-5


def near(have: Any, want: Any) -> bool:
    """Whether two vectors are the same but for rounding."""
    have, want = np.asarray(have, float), np.asarray(want, float)
    if have.shape != want.shape or not np.isfinite(have).all():
        return False
    return bool(np.abs(have - want).max(initial=0) <= CLOSE * max(1.0, np.abs(want).max(initial=0)))


def named(have: Any, mistakes: Mapping[str, Any]) -> str:
    """The first of these mistakes (words -> what it gives) that gives what a rank has; "" if none
    does.
    """
    return next((words for words, gives in mistakes.items() if near(have, gives)), "")
