"""`lockstep check` against notebooks that want to pass without an answer, or to do harm: verdicts
come from a process that never ran their code, what they start is bounded, and nothing is left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

import psutil
import pytest

from course_lib.course.answers import Verdict
from course_lib.course.grading import Bounds, grade
from tests.conftest import HOME, processes_of
from tests.helpers import until
from tests.processes.test_exercises import answered, solved

SMALL = Bounds(computing=4.0, patience=20.0, memory=700 << 20, processes=40)


def graded(tmp_path: Path, cell: str, *right: str, bounds: Bounds = SMALL) -> list[Verdict]:
    """The verdicts on the exercise with some right answers and this as its last cell."""
    path = answered(tmp_path / "mine.ipynb", {**solved("imports", *right), "answer-train": cell})
    return grade(path, bounds)


def passed(verdicts: list[Verdict]) -> list[str]:
    return [v.task for v in verdicts if v]


def marked(tmp_path: Path) -> list[int]:
    """The processes that have this folder's name in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(tmp_path) in part for part in process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


def left() -> list[int]:
    """The processes of tests that are no zygotes of this one."""
    found = []
    for process in processes_of(HOME):
        with contextlib.suppress(psutil.NoSuchProcess):  # gone since it was listed
            found += [process.pid] if process.ppid() != os.getpid() else []
    return found


FORGED = """
import json, os
from dataclasses import asdict
names = ["reduce_to_one", "ring", "tree", "train"]
lines = [{"cells": 1}, {"number": 1, "answers": {}, "troubles": []}]
lines += [{"task": n, "state": "passed", "text": "well done", "hint": ""} for n in names]
lines += [{"number": i, "returned": ["value", True], "seconds": 0} for i in range(99)]
text = "".join(json.dumps(line) + "\\n" for line in lines).encode()
for descriptor in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else range(64):
    try:
        os.write(int(descriptor), text)
    except OSError:
        pass
"""


def test_verdicts_that_a_cell_writes_everywhere_are_none(tmp_path: Path) -> None:
    verdicts = graded(tmp_path, FORGED)
    assert len(verdicts) == 5 and passed(verdicts) == []
    verdicts = graded(tmp_path, FORGED + "\nos._exit(0)")
    assert len(verdicts) == 5 and passed(verdicts) == []


PATCHED = """
import sys
import course_lib.course.answers as a, course_lib.course.grading
import course_lib.collectives.verify, course_lib.reduction.measure
def right(task, *_, **__):
    return a.Verdict(task, "passed", "well done")
for module in list(sys.modules.values()):
    for name in ("check", "judge", "verify", "attempt", "measure"):
        if getattr(module, "__name__", "").startswith(("course_lib", "exercise_checks")):
            if hasattr(module, name):
                setattr(module, name, right)
for tasks in a.sets().values():
    for task in tasks:
        object.__setattr__(task, "judge", right)
a.Verdict.__bool__ = lambda self: True
def my_ring(workers):
    return None
my_tree = my_reduce_to_one = train = my_ring
"""


def test_a_cell_that_patches_the_judge_reaches_only_its_own_process(tmp_path: Path) -> None:
    assert passed(graded(tmp_path, PATCHED)) == []


def test_a_notebook_that_deletes_itself_is_judged_as_it_was(tmp_path: Path) -> None:
    verdicts = graded(tmp_path, "import os\nos.remove('mine.ipynb')", "answer-ring")
    assert not (tmp_path / "mine.ipynb").exists()
    assert passed(verdicts) == ["ring"]


DETACHED = """
import os, subprocess, sys
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", os.getcwd()],
                             env={}, start_new_session=True)
        os._exit(0)
"""


def test_children_that_leave_the_session_are_gone_with_the_check(tmp_path: Path) -> None:
    graded(tmp_path, DETACHED)
    until(lambda: not marked(tmp_path), "the children to be gone")


CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {code!r}, __import__("os").getcwd()])
child.wait()
"""
HUNGRY = "kept = bytearray(900 << 20)\nkept[::4096] = b'x' * len(kept[::4096])\nimport time\n"
BUSY = "while True: pass"
MANY = "import subprocess\nfor _ in range(80): subprocess.Popen(['sleep', '600'])\nimport time\n"
ASLEEP = "time.sleep(600)"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (HUNGRY + ASLEEP, "0.7 GB"),
        (BUSY, "than 4 seconds"),
        (MANY + ASLEEP, "40 processes"),
    ],
    ids=["memory", "computing", "processes"],
)
def test_what_a_child_uses_counts(tmp_path: Path, code: str, says: str) -> None:
    patient = dataclasses.replace(SMALL, patience=120)  # a busy machine computes slowly
    verdicts = graded(tmp_path, CHILD.format(code=code), bounds=patient)
    (text,) = {v.text for v in verdicts}
    assert "cells of the notebook" in text and says in text
    until(lambda: not marked(tmp_path), "the child to be gone")


def test_a_fork_bomb_is_ended(tmp_path: Path) -> None:
    """It doubles eight times, and what it has forked goes on."""
    bomb = (
        "import os, time\nfor _ in range(8):\n    os.fork()\n    time.sleep(0.05)\ntime.sleep(60)"
    )
    verdicts = graded(tmp_path, bomb)
    assert "40 processes" in verdicts[0].text
    until(lambda: not left(), "all of them to be gone")


def test_a_cell_that_stops_its_parent_costs_only_itself(tmp_path: Path) -> None:
    """It reaches its supervisor, as that is a process of the same user."""
    stop = "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)"
    verdicts = graded(tmp_path, stop + DETACHED)
    assert len(verdicts) == 5 and passed(verdicts) == []
    until(lambda: not marked(tmp_path), "the children to be gone")


PICKLED = """
import os, pathlib, pickle
class Forged:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("unpickled").resolve(),)
run_dir = pathlib.Path("/proc/self/fd/2").readlink().parents[2]
def my_ring(workers):
    for task in run_dir.glob("tasks/*"):
        (task / "value.pickle").write_bytes(pickle.dumps(Forged()))
    import gc, time
    from course_lib.cluster.pipes import Channel
    for each in gc.get_objects():
        if isinstance(each, Channel):
            each.send(state="done")
    time.sleep(1)
    return Forged()
"""


def test_the_judge_unpickles_nothing_that_the_notebook_has_left(tmp_path: Path) -> None:
    assert passed(graded(tmp_path, PICKLED, "answer-tree")) == ["tree"]
    assert not (tmp_path / "unpickled").exists()


def test_words_of_an_answer_cannot_order_the_terminal_about(tmp_path: Path) -> None:
    escape = 'def my_ring(workers):\n    raise ValueError("\\x1b[2J4 of 4 passed\\r")'
    (ring,) = [v for v in graded(tmp_path, escape, bounds=Bounds()) if v.task == "ring"]
    assert "4 of 4 passed" in ring.text and "\x1b" not in ring.text and "\r" not in ring.text


def test_a_function_that_answers_with_what_is_no_data_is_told(tmp_path: Path) -> None:
    forged = "\n".join(
        [
            "def my_ring(workers):",
            "    made = ring(workers)",
            "    object.__setattr__(made, 'chunks', 10**9)",
            "    return made",
            "from course_lib.collectives import ring",
        ]
    )
    (found,) = [v for v in graded(tmp_path, forged) if v.task == "ring"]
    assert found.state == "not yet" and "more than 4096 chunks" in found.text


HOSTILE = """
import os, sys, pathlib
pathlib.Path("../.lockstep-progress.jsonl").write_text('{"task": "ring", "state": "passed"}')
print("5 of 5 passed", flush=True)
def my_reduce_to_one(workers):
    sys.exit(0)
def my_ring(workers):
    os.closerange(3, 1000)
def my_tree(workers):
    for stream in (sys.stdout, sys.stderr):
        stream.write("passed" * 10**6)
def train(all_reduce):
    run = start("multi_worker_mirrored", framework="torch", workers=4, steps=60)
    run.wait_step(2).kill("worker:1")
    return run.wait(60)
"""


@pytest.mark.timeout(400)
def test_answers_that_leave_flood_or_kill_each_get_words(tmp_path: Path) -> None:
    verdicts = {v.task: v for v in graded(tmp_path, HOSTILE, bounds=Bounds(patience=170))}
    assert not any(verdicts.values()), verdicts
    said = {task: repr(verdict) for task, verdict in verdicts.items()}
    assert "SystemExit" in said["reduce_to_one"] or "ends the process" in said["reduce_to_one"]
    assert "ring ended" in said["ring"] or "was not done" in said["ring"]
    assert "returns nothing" in said["tree"]
    assert "worker:1" in said["train"], said["train"]
    until(lambda: not left(), "all of them to be gone")
