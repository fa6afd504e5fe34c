"""What waits do besides waiting: they let a run be seen at work, say how far it is, and can be
interrupted.
"""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from course_lib import start
from course_lib.errors import Stalled, TaskFailed
from course_lib.record.events import Phase
from tests.helpers import until

TWO: dict[str, Any] = {"framework": "torch", "workers": 2}


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_wait_step_lets_every_worker_do_that_step(strategy: str) -> None:
    with start(strategy, steps=100_000, **TWO) as run:
        run.wait_step(12)
        last = {task: max(p.step for p in run.trace.all(Phase, task)) for task in run.trace.tasks}
    assert {last["worker:0"] > 12, last["worker:1"] > 12} == {True}
    assert run.wait_step(200_000) is run  # over: there is nothing to wait for


def test_wait_step_has_an_end_and_raises_what_ended_the_run() -> None:
    with start("multi_worker_mirrored", steps=100_000, **TWO) as run:
        with pytest.raises(Stalled):
            run.wait_step(99_999, timeout=0.5)
        run.kill("worker:1")
        with pytest.raises(TaskFailed, match="worker:1 failed"):
            run.wait_step(99_999)


def ran(client: Any, cell: str) -> list[tuple[str, str]]:
    """What came out of a cell: the kind of each message, and its text."""
    asked = client.execute(cell)
    found: list[tuple[str, str]] = []
    while True:
        message = client.get_iopub_msg(timeout=90)
        if message["parent_header"].get("msg_id") != asked:
            continue
        content, kind = message["content"], message["msg_type"]
        if kind == "status" and content["execution_state"] == "idle":
            return found
        if kind in ("display_data", "update_display_data"):
            found.append((kind, content["data"]["text/plain"]))
        if kind == "error":
            found.append((kind, f"{content['ename']}: {content['evalue']}"))


@pytest.fixture
def kernel(home: Path) -> Iterator[Any]:
    manager, client = start_new_kernel(env={**os.environ, "LOCKSTEP_HOME": str(home)})
    try:
        ran(client, "import time\nfrom course_lib import Run, compare, race, start")
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_wait_of_more_than_two_seconds_says_in_one_line_how_far_the_run_is(kernel: Any) -> None:
    _, client = kernel
    ran(client, "start(lambda: None, workers=2).wait()")  # so that there is a zygote
    quick = "start(lambda: None, workers=2).wait()"
    until(lambda: ran(client, quick) == [], "a run that ends before a word is due")
    first, *others = ran(client, "_ = start(lambda: time.sleep(5), workers=2).wait()")
    assert first[0] == "display_data"
    assert re.match(r"your function is running after \d+ s", first[1])
    assert {kind for kind, _ in others} == {"update_display_data"}
    assert re.match(r"your function is finished after \d+\.\d s", others[-1][1])


def test_while_a_model_is_tried_out_the_line_says_so_and_speaks_of_no_run(kernel: Any) -> None:
    _, client = kernel
    model = "lambda: (time.sleep(2), own_models.torch_mlp())[1]"
    workload = f"Workload('points', **own_models.LARGEST, torch={model})"
    ran(client, "from course_lib import Workload\nfrom tests import own_models")
    said = ran(client, f"start('one_device', framework='torch', workload={workload}).stop()")
    tries = r"trying out points on one worker, \d+ s"
    assert said and all(re.fullmatch(tries, text) for _, text in said)


def test_a_race_says_how_far_each_entrant_is(kernel: Any) -> None:
    _, client = kernel
    entrants = "'one_device', ('slow', 'one_device', {'device_ms': 120})"
    ran(client, f"both = race({entrants}, framework='torch', steps=40, device_ms=100)")
    said = ran(client, "_ = both.wait()")
    both = r"one_device is running after \d+ s: step \d+ of 40, loss .*; slow is running"
    assert any(re.search(both, text) for _, text in said)
    ended = re.findall(r"is finished after (\S+) s", said[-1][1])
    seconds = "[f'{f.seconds:.1f}' for f in both.comparison.entrants.values()]"
    assert len(ended) == 2 and ran(client, f"assert {seconds} == {ended}, {seconds}") == []


def test_an_all_reduce_that_is_interrupted_ends_its_processes_and_says_so(kernel: Any) -> None:
    manager, client = kernel
    threading.Timer(6, manager.interrupt_kernel).start()
    said = ran(client, "compare('64MiB', ['ring', 'tree'] * 20, workers=4, repeats=100)")
    assert "real processes for " in said[0][1]
    word = "Interrupted: The all-reduce was cancelled, and its processes have ended."
    assert said[-1] == ("error", word)
    assert ran(client, "assert Run.going() == []") == []
