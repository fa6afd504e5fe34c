"""A node elsewhere, without a cluster: the supervisor is a thread of this process, and the nodes
are two processes of this machine, which write into the run's own directory.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import psutil
import pytest

from course_lib import hardware
from course_lib.cluster import nursery
from course_lib.cluster.node import Node, Report
from course_lib.cluster.pipes import Channel, pair
from course_lib.cluster.run import Run
from course_lib.cluster.supervisor import Supervisor
from course_lib.engines import Engine
from course_lib.engines.ray.remote import Away
from course_lib.errors import TaskFailed
from course_lib.launch import prepare
from course_lib.record.events import Lifecycle, clock
from course_lib.record.rundir import RunDir
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.gate import Request
from tests.helpers import until


class TwoNodes(Engine):
    """An engine with a node for even tasks and one for odd ones."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []

    def supervisor(self, framework: str, start_method: str, timeout: float) -> Channel:
        ours, theirs = pair()
        threading.Thread(target=self._supervise, args=(Channel(theirs),), daemon=True).start()
        return ours

    def _supervise(self, kernel: Channel) -> None:
        first, *more = kernel.receive() or [{}]
        files = RunDir(first["start"])

        def connect(selector: Any, report: Report, which: Sequence[str]) -> dict[str, Node]:
            found: dict[str, Node] = {}
            for n in range(2):
                tasks = [task for task in files.spec.tasks[n::2] if task in which]
                if not tasks:
                    continue
                channel = nursery.supervisor("python", "fork", 30.0)
                channel.post(start=str(files.path), engine="ray", tasks=tasks)
                [said] = channel.receive() or [{}]
                self.channels.append(channel)
                away: Node = Away(f"node {n}", said["addresses"], channel, selector, report)
                found |= dict.fromkeys(tasks, away)
            return found

        Supervisor(kernel, files, connect).supervise(more)
        kernel.settle()
        kernel.close()


Begin = Callable[..., Run]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start a run of a function on two nodes; all its processes are gone in the end."""
    runs: list[Run] = []

    def started(work: Any, **fields: Any) -> Run:
        spec = RunSpec(strategy="work()", framework="python", **{"workers": 4, **fields})
        prepared = prepare(Request(spec.complete(), programs={"worker": work}), hardware.probe())
        runs.append(Run(replace(prepared, engine=TwoNodes()), clock()))
        return runs[-1]

    yield started
    for run in runs:
        run.stop()
        until(lambda: not any(map(psutil.pid_exists, pids(run))), "the end of its processes")  # noqa: B023


def pids(run: Run) -> list[int]:
    return [event.pid for event in run.trace.all(Lifecycle, state="starting")]


def lose_node(run: Run, task: str) -> None:
    [pid] = [e.pid for e in run.trace.all(Lifecycle, task, state="starting")]
    parent = psutil.Process(pid).parent()
    assert parent
    parent.kill()


def test_tasks_on_two_nodes_return_their_values_and_know_of_each_other(begin: Begin) -> None:
    run = begin(lambda task: (task.name, len(task.addresses["worker"])), workers=5).wait(30)
    assert run.values == {task: (task, 5) for task in run.spec.tasks}
    assert len(set(pids(run))) == 5


def test_the_first_error_ends_the_tasks_of_both_nodes(begin: Begin) -> None:
    def work(task: Any) -> None:
        if task.index == 2:
            raise ValueError("boom")
        time.sleep(600)

    with pytest.raises(TaskFailed, match="worker:2 failed: ValueError: boom"):
        begin(work).wait(30)


def test_orders_reach_a_node_and_what_a_signal_does_is_told(begin: Begin) -> None:
    run = begin(lambda: time.sleep(600)).wait_running(30)
    states = lambda task: [e.state for e in run.trace.all(Lifecycle) if e.task == task]  # noqa: E731
    run.pause("worker:1")
    run.slow("worker:0", 3)
    until(lambda: states("worker:1")[-1] == "paused", "the pause")
    assert psutil.Process(pids(run)[1]).status() == psutil.STATUS_STOPPED or run.refused == []
    run.resume("worker:1")
    until(lambda: states("worker:1")[-1] == "resumed", "its end")
    [second] = [e.pid for e in run.trace.all(Lifecycle, state="starting") if e.task == "worker:2"]
    os.kill(second, signal.SIGSTOP)
    until(lambda: states("worker:2")[-1] == "paused", "the pause from outside")
    assert states("worker:0")[-1] == "slowed"


def test_a_task_that_is_killed_is_named_and_one_with_restarts_left_starts_again(
    begin: Begin,
) -> None:
    def work(task: Any) -> int:
        if task.attempt == 0:
            time.sleep(600)
        return int(task.attempt)

    run = begin(work, max_restarts=1).wait_running(30)
    run.kill("worker:3")
    assert set(run.wait(30).values.values()) == {1}
    run = begin(lambda: time.sleep(600)).wait_running(30)
    run.kill("worker:3")
    with pytest.raises(TaskFailed, match="worker:3 failed: it was killed by"):
        run.wait(30)


def test_a_node_that_is_lost_is_named(begin: Begin) -> None:
    run = begin(lambda: time.sleep(600)).wait_running(30)
    lose_node(run, "worker:1")
    with pytest.raises(TaskFailed, match=r"worker:[13] failed: its node, node 1, was lost"):
        run.wait(30)


def test_tasks_of_a_node_that_is_lost_start_again_on_another(begin: Begin) -> None:
    def work(task: Any) -> tuple[str, list[str]]:
        task.files.meetings.mkdir(parents=True, exist_ok=True)
        (task.files.meetings / f"{task.index}-{task.attempt}").touch()
        if task.attempt == 0:
            time.sleep(600)
        return task.addresses["worker"][task.index], [
            path.name for path in task.files.meetings.iterdir()
        ]

    run = begin(work, max_restarts=1).wait_running(30)
    before = run.files.addresses["worker"]
    lose_node(run, "worker:1")
    values = run.wait(30).values
    after = [address for address, _ in values.values()]
    assert after == run.files.addresses["worker"]
    moved = [a != b for a, b in zip(after, before, strict=True)]
    assert moved == [False, True, False, True]
    assert all(name.endswith("-1") for _, names in values.values() for name in names)
