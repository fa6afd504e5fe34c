"""What tests of several files use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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
