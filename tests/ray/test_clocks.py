"""The clocks of nodes: two of three are made wrong by 300 ms, and gain or lose more than quartz."""

from collections.abc import Iterator
from typing import Any

import pytest

from course_lib import start
from course_lib.record.events import Clock, Phase, own
from course_lib.widgets import Timeline
from course_lib.widgets.board.view import View

DRIFT = 5e-5
STEPS = 40


def meet(task: Any) -> None:
    """A barrier in each step: worker:0 lets the others go on when all have come."""
    import time
    from multiprocessing.connection import Client, Listener

    host, port = task.addresses["worker"][0].split(":")
    address = host, int(port)
    if task.index == 0:
        listener = Listener(address)
        others = [listener.accept() for _ in range(task.spec.workers - 1)]
    else:
        for _ in range(300):
            try:
                others = [Client(address)]
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
    for step in range(STEPS):
        time.sleep(0.1)
        with task.phase("reduce", step):
            for other in others:
                other.send(0) if task.index else other.recv()
            for other in others:
                other.recv() if task.index else other.send(0)


@pytest.fixture
def wrong(cluster: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, float]]]:
    """By how much the clock of each node is wrong, and what it gains a second."""
    import ray

    from course_lib.engines.ray import cluster as rooms

    rooms.connect(cluster)
    monkeypatch.setattr(rooms, "_actors", {})
    skews = [(turn * (0.3 - DRIFT * own()), turn * DRIFT) for turn in (0, 1, -1)]
    of_node = dict(zip((node["NodeID"] for node in ray.nodes()), skews, strict=True))

    class Wrong(rooms.RayNode):
        """Its clock is wrong, and so are those of all processes that it starts."""

        def __init__(self, driver: tuple[str, int]) -> None:
            import os

            import course_lib.record.events

            mine = of_node[ray.get_runtime_context().get_node_id()]
            os.environ["LOCKSTEP_SKEW"] = "{},{}".format(*mine)
            course_lib.record.events._skew, course_lib.record.events._drift = mine
            super().__init__(driver)

    monkeypatch.setattr(rooms, "RayNode", Wrong)
    yield skews
    for actor in rooms._actors.values():
        ray.kill(actor)


def test_clocks_that_are_wrong_and_drift_are_found_within_the_bound_that_is_drawn(
    cluster: str, wrong: list[tuple[float, float]]
) -> None:
    run = start(meet, workers=3, framework="python", engine=f"ray:{cluster}").wait(60)
    origin, found = run.files.facts.origin, set()
    for task in run.spec.tasks:
        read = run.trace.all(Clock, task)
        assert len(read) > 2 and read[-1].at - read[0].at > 2
        lacked = [[-seconds - drift * (it.at + origin) for it in read] for seconds, drift in wrong]
        node = min(range(3), key=lambda i: abs(lacked[i][0] - read[0].offset))
        for it, true in zip(read, lacked[node], strict=True):
            assert abs(it.offset - true) <= it.unsure + 1e-6, (task, it, true)
        found.add(node)
    assert found == {0, 1, 2}

    unsure = {t: max(it.unsure for it in run.trace.all(Clock, t)) for t in run.spec.tasks}
    assert max(unsure.values()) < 0.1
    for step in range(STEPS):
        phases = {p.task: p for p in run.trace.all(Phase, what="reduce", step=step)}
        come = max(phases.values(), key=lambda p: p.start)
        for p in phases.values():
            assert p.end - come.start >= -(unsure[p.task] + unsure[come.task]), step

    board = View({"run": run})
    board.update()
    assert board.table().count(" (clock \u00b1") == 3
    drawn = Timeline(run)
    assert drawn.scene["lanes"] == list(run.spec.tasks)  # a node is no task
    assert drawn.scene["unsure"] == [unsure[task] for task in run.spec.tasks]
