"""The recorder of a watched loop: what its hooks tell it, and what the trace then holds."""

import itertools
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from course_lib import RunSpec
from course_lib.cluster.task import Task
from course_lib.errors import SpecError
from course_lib.record.digest import Digest
from course_lib.record.events import Metric, Phase, Update
from course_lib.record.ledger import ledger
from course_lib.record.rundir import RunDir
from course_lib.record.trace import Trace
from course_lib.strategies.watching import MOMENT, WatchedLoop
from course_lib.widgets.board.view import View


def watched(names: Sequence[str] = ("",), **fields: Any) -> tuple[WatchedLoop, list[Any]]:
    """A watched loop of a task that has two workers, and the list of its events."""
    spec = RunSpec(strategy="work()", framework="python", **{"workers": 2, **fields})
    events: list[Any] = []
    recorder: Any = SimpleNamespace(add=events.append)
    task = Task("worker:0", spec, {}, RunDir("nowhere"), recorder, slow_factor=3.0)
    return WatchedLoop(task, "cpu", names), events


def kinds(events: list[Any]) -> list[tuple[int, str]]:
    found = [event for event in events if isinstance(event, Phase)]
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))
    return [(p.step, p.what) for p in found]


def compute(seconds: float = 2 * MOMENT) -> None:
    time.sleep(seconds)


def test_what_a_loop_does_follows_each_other_in_lanes() -> None:
    loop, events = watched()
    for loss in (2.0, 1.0):
        loop.begin()
        compute()
        begun = loop.now()
        compute()
        ended = loop.now()
        loop.exchanged(begun, ended)
        loop.go_on("apply", ended)  # at once: computing that takes no time is no phase
        loop.updated("", loss, examples=16, gradients=2)
    order = ("read", "compute", "reduce", "apply")
    assert kinds(events) == list(itertools.product(range(2), order))
    metrics = [(m.step, m.value, m.samples) for m in events if isinstance(m, Metric)]
    assert metrics == [(0, 2.0, 32), (1, 1.0, 64)]  # of both workers
    updates = [(u.step, u.read, u.written, u.gradients) for u in events if isinstance(u, Update)]
    assert updates == [(n, n, n + 1, 2) for n in range(2)]
    assert (loop.number, loop.samples) == (2, 64)


def test_a_step_is_over_once_every_optimizer_has_made_an_update() -> None:
    loop, events = watched(("generator", "critic"))
    for number in range(2):
        for loss in (3.0, 1.0):
            loop.begin()
            compute()
            loop.go_on("apply")
            loop.updated("critic", loss, examples=99, gradients=2)
            assert loop.number == number
        loop.begin()
        compute()
        loop.go_on("apply")
        loop.updated("generator", 0.5, examples=16, gradients=2)
        assert loop.number == number + 1
    order = ["read", "compute", "apply"] * 3
    assert kinds(events) == [(number, what) for number in range(2) for what in order]
    # the mean of a step's updates, and the examples of the first model, in the order of the names
    metrics = [(m.step, m.name, m.value, m.samples) for m in events if isinstance(m, Metric)]
    assert metrics == [
        (number, name, value, 32 * (number + 1))
        for number in range(2)
        for name, value in (("generator loss", 0.5), ("critic loss", 2.0))
    ]
    updates = [e for e in events if isinstance(e, Update)]
    assert [u.variables for u in updates] == ["critic", "critic", "generator"] * 2
    of_critic = [(u.step, u.read, u.written) for u in updates if u.variables == "critic"]
    assert of_critic == [(0, 0, 1), (0, 1, 2), (1, 2, 3), (1, 3, 4)]
    found = ledger(Trace(events))
    assert (found.computed, found.applied, found.balanced) == (6, 6, True)


def test_what_belongs_to_no_step_is_left_out() -> None:
    loop, events = watched()
    loop.leave_out()
    loop.begin()
    compute()
    loop.go_on("apply")
    loop.updated("", None, examples=0, gradients=1)  # without a loss there is no curve
    assert kinds(events) == [(0, "compute"), (0, "apply")]
    assert not any(isinstance(event, Metric) for event in events)
    assert loop.samples == loop.task.spec.batch  # what it saw no examples of counts as asked for


def test_a_slow_task_takes_so_many_times_its_device_time_and_its_computing() -> None:
    loop, events = watched(device_ms=2)
    for _ in range(6):
        loop.begin()
        compute(0.01)
        loop.updated("", 1.0, examples=1, gradients=1)
    lengths = [e.end - e.start for e in events if isinstance(e, Phase) and e.what == "compute"]
    assert lengths[0] >= 3 * 0.002 + 0.01
    assert lengths[-1] >= 3 * (0.002 + 0.01)


@pytest.mark.parametrize(("fields", "words"), [({}, "step 2, loss"), ({"steps": 9}, "2 of 9")])
def test_a_board_knows_how_many_steps_a_loop_will_have_only_if_it_was_told(
    fields: dict[str, Any], words: str
) -> None:
    loop, events = watched(**fields)
    for _ in range(2):
        loop.begin()
        loop.updated("", 1.0, examples=500, gradients=1)
    spec = loop.task.spec
    running = {"state": "running", "pulse": lambda: None}
    digest = Digest(spec, Trace(events)).update(over=True)
    run: Any = SimpleNamespace(spec=spec, trace=Trace(events), digest=digest, **running)
    assert digest.steps_done == 2
    view = View({"mine": run})
    view.update()
    assert words in view.headline()
    assert ("% done" in view.sides[0].summary()) == bool(fields)


def test_a_model_of_neither_framework_is_refused() -> None:
    loop, _ = watched()
    with pytest.raises(SpecError, match=r"torch\.nn\.Module or a keras"):
        loop.task.watch([1])
