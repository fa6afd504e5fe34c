"""Orders on their way between a run and its supervisor, and what becomes of those that fail."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path

import pytest

from course_lib import start
from course_lib.cluster import nursery
from course_lib.cluster.pipes import Channel, pair
from course_lib.cluster.run import Run
from course_lib.cluster.supervisor import Roster, Supervisor


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Run, Channel]:
    """A run of one worker, and the other end of its channel: the test acts the supervisor."""
    ours, theirs = pair()
    monkeypatch.setattr(nursery, "supervisor", lambda *_: ours)
    supervisor = Channel(theirs)
    run = start(lambda: None, workers=1, run_dir=tmp_path / "run")
    supervisor.send(task="worker:0", state="running")
    run.wait_running(30)
    return run, supervisor


def test_orders_are_answered_in_turn_and_a_refusal_is_warned_of_at_the_next_call(
    acted: tuple[Run, Channel],
) -> None:
    run, supervisor = acted
    run.slow("worker:0", 2)
    run.pause("worker:0")
    supervisor.send(answer=None)
    supervisor.send(answer="its process has ended")
    supervisor.send(over="stopped")
    with pytest.warns(
        UserWarning, match=r"pause\('worker:0'\) was not carried out: its process has ended"
    ):
        run.wait(30)
    assert run.refused == ["pause('worker:0') was not carried out: its process has ended"]


def test_an_order_that_a_supervisor_at_its_end_no_longer_reads_came_too_late(
    acted: tuple[Run, Channel],
) -> None:
    run, supervisor = acted
    run.kill("worker:0")
    supervisor.send(over="finished")
    with pytest.warns(UserWarning, match=r"kill\('worker:0'\) came too late: the run is finished"):
        run.wait(30)


def test_an_order_to_a_process_that_has_ended_is_refused_and_changes_nothing() -> None:
    it, kernel = Supervisor.__new__(Supervisor), pair()
    it.kernel, it.roster, it.lifecycle = kernel[0], Roster(["worker:0", "worker:1"]), io.BytesIO()
    it.roster.gone("worker:1", 0)
    it._obey(do="pause", task="worker:1")
    assert Channel(kernel[1]).receive() == [{"answer": "its process has ended"}]
    assert json.loads(it.lifecycle.getvalue())[1:3] == ["worker:1", "refused"]


def test_a_channel_tells_a_time_out_from_the_end() -> None:
    channel, other = pair()
    channel.sock.settimeout(0.01)
    with pytest.raises(TimeoutError):
        channel.receive()
    other.shutdown(socket.SHUT_RDWR)
    assert channel.receive() is None
