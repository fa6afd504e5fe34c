"""Beats: what a task has entered is read by others at any time."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from course_lib import RunSpec
from course_lib.cluster.task import Task
from course_lib.record.beats import KEPT, Beat, Beats
from course_lib.record.events import clock
from course_lib.record.rundir import RunDir

TASKS = ("ps:0", "worker:0", "worker:1")
CALL = Beat(3, "all_reduce", 7.5, 1, 2, 7, 7, 160, "0", "(10, 4) float32", "train.py:17")


def test_each_task_has_a_place_of_its_own(tmp_path: Path) -> None:
    mine, others = Beats(tmp_path / "beats", TASKS), Beats(tmp_path / "beats", TASKS)
    assert others.now("worker:0") == Beat()
    for n, task in enumerate(TASKS):
        mine.writer(task)(n, "compute", 1.5 + n)
    (tmp_path / "beats").unlink()
    assert [others.now(task) for task in TASKS] == [Beat(n, "compute", 1.5 + n) for n in range(3)]


def test_beats_that_are_closed_hold_no_descriptor_and_can_still_be_read(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    beats = Beats(tmp_path / "beats", TASKS)
    Beats(tmp_path / "beats", TASKS).writer("ps:0")(2, "apply", 1.0)
    beats.close()
    assert psutil.Process().num_fds() == before
    assert beats.now("ps:0") == Beat(2, "apply", 1.0)


def test_the_latest_calls_of_a_task_are_kept_and_nothing_of_an_attempt_before(
    tmp_path: Path,
) -> None:
    beats = Beats(tmp_path / "beats", TASKS)
    write = beats.writer("worker:1")
    for number in range(1, KEPT + 6):
        write(*CALL._replace(number=number))
        write(3, "", 8.0)
    assert sorted(call.number for call in beats.calls("worker:1")) == [*range(6, KEPT + 6)]
    assert CALL._replace(number=9) in beats.calls("worker:1")
    assert beats.calls("worker:0") == [] and beats.now("worker:1") == Beat(3, "", 8.0)
    beats.writer("worker:1")
    assert beats.calls("worker:1") == [] and beats.now("worker:1") == Beat()


def test_long_names_are_cut_and_as_many_ranks_as_there_are_bits_are_members(tmp_path: Path) -> None:
    beats = Beats(tmp_path / "beats", TASKS)
    beats.writer("ps:0")(*CALL._replace(what="x" * 99, where="ß" * 80, members=2**64 - 1))
    found = beats.now("ps:0")
    assert found.what == "x" * 40 and found.where == "ß" * 32 and found.members == 2**64 - 1


def test_what_is_read_while_it_is_written_is_never_half_of_it(tmp_path: Path) -> None:
    beats = Beats(tmp_path / "beats", TASKS)
    write, done = beats.writer("worker:0"), threading.Event()

    def keep_writing() -> None:
        while not done.is_set():
            for n in range(100):
                write(n, str(n) * 10, float(n))

    write(1, "1" * 10, 1.0)
    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        found = [beats.now("worker:0") for _ in range(2000)]
    finally:
        done.set()
        thread.join()
    assert all((b.what, b.since) == (str(b.step) * 10, b.step) for b in found)


@pytest.fixture
def task(tmp_path: Path) -> tuple[Task, list[Beat]]:
    said: list[Beat] = []
    recorder: Any = SimpleNamespace(add=lambda event: None)
    spec = RunSpec(workers=2)
    return Task(
        "worker:1",
        spec,
        {},
        RunDir(tmp_path),
        recorder,
        beat=lambda *beat: said.append(Beat(*beat)),
    ), said


def test_a_task_says_what_it_enters_and_when_it_has_left_it(task: tuple[Task, list[Beat]]) -> None:
    it, said = task
    before = clock()
    with it.phase("compute", 4):
        assert [(beat.step, beat.what) for beat in said] == [(4, "read"), (4, "compute")]
    assert said[-1][:2] == (4, "") and before <= said[0].since <= said[-1].since <= clock()


def test_a_task_that_fails_in_something_is_still_said_to_be_in_it(
    task: tuple[Task, list[Beat]],
) -> None:
    it, said = task
    with pytest.raises(ValueError), it.phase("reduce", 4):
        raise ValueError
    assert said[-1][:2] == (4, "reduce")
