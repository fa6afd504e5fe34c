"""The same run on a Ray cluster."""

import time
from typing import Any

import pytest

from course_lib import start
from course_lib.errors import TaskFailed
from course_lib.record.events import Clock
from course_lib.strategies import pages

PAGE = "notebooks/strategies/local_sgd.py:local_sgd"


def test_tasks_of_a_learners_own_function_are_spread_over_the_nodes(cluster: str) -> None:
    def work(task: Any) -> str:
        return str(task.name)

    run = start(work, workers=3, engine=f"ray:{cluster}").wait(60)
    assert run.values == {task: task for task in run.spec.tasks}
    nodes = next(reason for reason in run.plan.reasons if reason.what == "nodes")
    assert nodes.choice == "3 nodes"
    assert {clock.task for clock in run.trace.all(Clock)} == set(run.spec.tasks)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_strategy_ends_with_the_same_weights_as_on_one_machine(
    cluster: str, framework: str
) -> None:
    here, there = (
        start(framework=framework, workers=3, steps=10, **more).wait(90).result
        for more in ({}, {"engine": f"ray:{cluster}"})
    )
    assert here["parameter_digest"] == there["parameter_digest"]


def test_a_page_of_the_course_runs_on_the_nodes_and_ends_with_the_same_weights(
    cluster: str,
) -> None:
    fields: dict[str, Any] = {"workers": 2, "steps": 9}
    there, here = (
        start(pages.named(PAGE), **fields, **how).wait(90)
        for how in ({"engine": f"ray:{cluster}"}, {})
    )
    assert there.result["parameter_digest"] == here.result["parameter_digest"]
    assert len(set(there.result["parameter_digest"].values())) == 2  # apart in the ninth step
    assert "observed" in there.result


def test_an_error_names_task_and_step(cluster: str) -> None:
    def work(task: Any) -> None:
        task.begin(7)
        if task.index:
            raise ValueError("boom")
        time.sleep(60)

    with pytest.raises(TaskFailed, match="worker:1 failed in step 7: ValueError: boom"):
        start(work, workers=2, engine=f"ray:{cluster}").wait(60)
