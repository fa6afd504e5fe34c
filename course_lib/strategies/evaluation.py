"""The test accuracy while a run goes on, every so many steps if its spec asks for that
(`evaluate_every`).

It is measured between two steps, so that it is in no phase of either, by one task, or by all of
them where each has only a part of the model.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.cluster.task import Task
from course_lib.spec import RunSpec


def due(spec: RunSpec, steps: int) -> bool:
    """Whether the accuracy is to be measured when so many steps are done."""
    return spec.evaluate_every > 0 and steps % spec.evaluate_every == 0


def evaluate(task: Task, step: int, samples: int, accuracy: Callable[[], float]) -> None:
    """Record the metric `accuracy` after a step, if it is due; `samples`: the examples that the
    whole run has used so far.
    """
    if due(task.spec, step + 1):
        task.metric("accuracy", accuracy(), step, samples)
