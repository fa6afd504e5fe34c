"""Times from inside a TensorFlow graph, on the trace's clock.

A graph runs its operations as soon as their inputs are there, in any order. A time stamp means
something only if it is tied to what it should come after, which is what control dependencies do:
`after` stamps when all of some tensors are ready, and `hold` keeps the next operations from
starting before the stamp. That costs microseconds, where leaving the graph between phases would
cost a dispatch for each.
"""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from course_lib.cluster.task import clock


def after(values: Any) -> Any:
    """The time at which all tensors and operations in `values` are ready: a float64 scalar, seconds
    of wall-clock time, to the microsecond.
    """
    with tf.control_dependencies(tf.nest.flatten(values, expand_composites=True)):
        return tf.timestamp()


def hold(values: list[Any], stamp: Any) -> list[Any]:
    """The same tensors, not before `stamp` was taken."""
    with tf.control_dependencies([stamp]):
        return [tf.identity(value) for value in values]


class WallClock:
    """Turns wall-clock stamps into the trace's monotonic clock, also while the wall clock is being
    adjusted.
    """

    CLOSE = 20e-6  # seconds

    def __init__(self) -> None:
        self._offset, _ = min((self._measure() for _ in range(20)), key=lambda pair: pair[1])

    def offset(self) -> float:
        """Seconds to add to a stamp taken just now.

        Measured anew, unless the process was held up in the middle of measuring.
        """
        offset, width = self._measure()
        if width < self.CLOSE:
            self._offset = offset
        return self._offset

    @staticmethod
    def _measure() -> tuple[float, float]:
        """The offset between the clocks, and within how many seconds both were read."""
        before, wall, later = clock(), time.time(), clock()
        return (before + later) / 2 - wall, later - before
