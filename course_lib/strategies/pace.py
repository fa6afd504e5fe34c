"""Emulated device time where a task does only a share of a step's work at a time, as stages of a pipeline and shards of a layer do."""

from __future__ import annotations

import time

from course_lib.cluster.task import Task


def pace(task: Task, share: float, busy: float) -> None:
    """Sleep for `share` of the emulated device time of a step; on a task with slow factor f, f times as long over that and over computing.

    `busy` is how many seconds that share of the step really computes.
    """
    factor = task.slow_factor
    seconds = factor * share * task.spec.device_ms / 1000 + (factor - 1) * busy
    if seconds > 0:
        time.sleep(seconds)
