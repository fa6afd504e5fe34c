"""What tests of several files use."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.record.events import Metric
from course_lib.record.trace import Trace

SUM_ORDER: dict[str, Any] = {"rtol": 0, "atol": 2e-6}
"""The tolerance for float32 sums in another order. One device adds the same numbers as several
workers, but in another order; weights and losses are of size 0.1 to 2.
"""


def until(
    true: Callable[[], object], what: str, seconds: float = 60.0, every: float = 0.02
) -> None:
    """Wait until `true()` holds; fails after `seconds`, and says for `what` it waited."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"still not after {seconds:g} s: {what}"
        time.sleep(every)


def losses(trace: Trace, task: str = "worker:0") -> list[float]:
    """The losses that a task recorded, in the order of its steps."""
    return [metric.value for metric in trace.all(Metric, task, name="loss")]


def keeping_weights(path: str) -> Callable[[Any], dict[str, Any]]:
    """A role function that returns, besides what the one at `path` (`module:function`) returns, the
    `weights` that its task ended with.
    """

    def role(task: Any) -> dict[str, Any]:
        from course_lib.workloads import model  # before the strategy takes `digest` from it

        kept: list[np.ndarray] = []
        original = model.digest

        def digest(weights: Any) -> str:
            kept.extend(np.array(w) for w in weights)
            return original(weights)

        model.digest = digest
        module, _, function = path.partition(":")
        result: dict[str, Any] = getattr(importlib.import_module(module), function)(task)
        return result | {"weights": kept}

    return role
