"""Orders on their way between a run and its supervisor, and what becomes of those that fail."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from course_lib import start
from course_lib.cluster import keeper, nursery, pipes
from course_lib.cluster.pipes import Channel, pair
from course_lib.cluster.process import spawn
from course_lib.cluster.roster import Roster
from course_lib.cluster.run import Run
from course_lib.cluster.supervisor import Supervisor, main
from course_lib.errors import Unavailable


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
    with pytest.warns(UserWarning, match=r"kill\('worker:0'\) .* late: .* finished"):
        run.wait(30)


def test_an_order_to_a_process_that_has_ended_is_refused_and_changes_nothing() -> None:
    it, kernel = Supervisor.__new__(Supervisor), pair()
    it.kernel, it.roster, it.lifecycle = kernel[0], Roster(["worker:0", "worker:1"]), io.BytesIO()
    it.roster.exited("worker:1", 0)
    it._obey({"do": "pause", "task": "worker:1", "by": "by run.pause()"})
    assert Channel(kernel[1]).receive() == [{"answer": "its process has ended"}]
    assert json.loads(it.lifecycle.getvalue())[1:3] == ["worker:1", "refused"]


def test_a_channel_tells_a_time_out_from_the_end() -> None:
    channel, other = pair()
    channel.sock.settimeout(0.01)
    with pytest.raises(TimeoutError):
        channel.receive()
    other.shutdown(socket.SHUT_RDWR)
    assert channel.receive() is None


def test_news_for_a_process_that_does_not_read_replace_each_other_and_never_block() -> None:
    channel, other = pair()
    for factor in range(5000):
        channel.tell(slow=factor, jitter="")
    channel.tell(leave=True)
    reader, heard = Channel(other), []
    while channel.unsent or not heard:
        channel.flush()
        heard += reader.receive() or []
    while "leave" not in heard[-1]:
        heard += reader.receive() or []
    assert heard[-1] == {"slow": 4999, "jitter": "", "leave": True}
    assert len(heard) < 2500  # the system keeps a few hundred


def test_a_notebook_may_give_any_number_of_orders_to_a_supervisor_that_does_not_read(
    acted: tuple[Run, Channel],
) -> None:
    run, supervisor = acted
    for _ in range(2000):
        run.slow("worker:0", 2)
    heard = []
    while len(heard) < 2001:  # with the order to start
        orders = supervisor.receive() or []
        heard += orders
        for _ in [order for order in orders if "do" in order]:
            supervisor.send(answer=None)
    last = {"do": "slow", "task": "worker:0", "factor": 2.0, "by": "by run.slow()"}
    assert heard[-1] == last
    supervisor.send(over="stopped")
    run.wait(30)


def test_a_message_that_nobody_reads_is_waited_with_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipes, "PATIENCE", 0.01)
    channel, _other = pair()
    while not channel.unsent:
        channel.post(answer=None)
    channel.send(answer=None)
    assert channel.unsent


def test_a_supervisor_that_may_start_no_process_says_so_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def left(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(keeper, "keep", refused)
    monkeypatch.setattr(os, "_exit", left)
    ours, theirs = pair()
    ours.send(start=str(tmp_path))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit, match="0"):
        main(theirs, spawn, None)
    signal.signal(signal.SIGINT, handler)
    [said] = ours.receive() or []
    problem = Unavailable(*said["unavailable"])
    assert "ulimit -u" in problem.cure
