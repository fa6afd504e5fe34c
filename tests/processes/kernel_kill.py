"""Kills a process that starts clusters, at a random moment of a given kind, and looks for what
survives it, and for how long.

Used by a test and by `make bench`.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from course_lib.record import checkpoints
from course_lib.record.events import STATES, Lifecycle
from course_lib.record.rundir import RunDir
from course_lib.record.trace import Trace
from tests.conftest import gone_within, processes_of

BEGIN = """
import os, subprocess, sys, time
from course_lib import race, start
from course_lib.record.events import Phase

def stubborn(task):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    if os.fork() == 0:  # a daemon
        if os.fork() == 0:
            os.setsid()
            os.execlp("sleep", "sleep", "600")
        os._exit(0)
    (task.run_dir / f"child-{task.index}").touch()
    while True:
        pass

def unlucky(task):
    time.sleep(0.05)
    if task.index:
        os._exit(1)
    time.sleep(600)

def reached():
    open(sys.argv[2], "w").close()

def train(run):
    while not run.trace.all(Phase, what="compute"):
        time.sleep(0.01)

fields = {"framework": sys.argv[1], "workers": 2, "steps": 100000}
"""
# All that a kernel may leave behind: a run of a framework that saves often, one of a learner's
# function that has children of its own, of which one has left its session and its parent, one whose
# task is frozen, one that restarts again and again, and a race.
EVERYTHING = """
first = start("multi_worker_mirrored", checkpoint_every=20, **fields)
second = start(stubborn, workers=2)
third = start(unlucky, workers=2, max_restarts=100)
second.wait_running(60)
while len(list(second.run_dir.glob("child-*"))) < 2:
    time.sleep(0.01)
second.pause("worker:0")
first.wait_running(60)
reached()
race("multi_worker_mirrored", "parameter_server", **fields)
"""
# what a kernel does at the moment -> the program that brings it there
MOMENTS = {
    "start-up": EVERYTHING,
    "training": """
train(start("multi_worker_mirrored", **fields))
reached()
""",
    "save": """
run = start("multi_worker_mirrored", checkpoint_every=1, **fields)
while not run.checkpoints():
    time.sleep(0.01)
reached()
""",
    "restart": """
faults = [f"kill worker:1 at step {n}" for n in range(1, 100)]
recover = {"checkpoint_every": 1, "max_restarts": 100, "faults": faults}
run = start("multi_worker_mirrored", **recover, **fields)
while "restarting" not in run.tasks.values():
    time.sleep(0.005)
reached()
""",
    "race": """
both = race("multi_worker_mirrored", "parameter_server", **fields)
for run in both.runs.values():
    train(run)
reached()
""",
}
LATEST = {"start-up": 3.0, "restart": 1.0}  # seconds after that until the kill, at most; of others:
USUAL = 0.3
SOON = 1.0  # second after which nothing may be left
PATIENCE = 10.0  # seconds after which what is left is a leak: no machine is as slow as that
ARRIVES = 120.0  # seconds in which a kernel must have come to its moment

Left = dict[str, float]
"""What was left when `SOON` was over -> the seconds for which it was seen; infinity for a leak."""


class Kill(NamedTuple):
    """What a kill found: how many processes there were, after how many `seconds` nothing was left
    of them, and what was left too long.
    """

    there: int
    seconds: float
    left: Left


def kill(
    framework: str,
    home: Path,
    program: str = EVERYTHING,
    seconds: float = 0.0,
    stop: bool = False,
) -> Kill:
    """Start a kernel process with runs and SIGKILL it so many `seconds` after its `program` has
    come to its moment; of "start-up", after its start. `stop`: all its processes are stopped
    (SIGSTOP) before. Raises AssertionError if it never comes there, or ends by itself.
    """
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    reached, before = home / "reached", shared_memory()
    places = {"LOCKSTEP_HOME": str(home), "TMPDIR": str(home / "tmp")}
    code = BEGIN + MOMENTS.get(program, program) + "time.sleep(600)"
    with tempfile.TemporaryFile() as log, alone(home):
        kernel = subprocess.Popen(
            [sys.executable, "-c", code, framework, str(reached)],
            env={**os.environ, **places},
            stdout=log,
            stderr=log,
        )
        deadline, late = time.monotonic() + ARRIVES, False
        while not (late or program == "start-up" or reached.exists() or kernel.poll() is not None):
            time.sleep(0.005)
            late = time.monotonic() > deadline
        time.sleep(seconds)
        done = killed(kernel, home, before, stop)
        if late or kernel.returncode != -signal.SIGKILL:
            what = f"was not as far after {ARRIVES:g} s" if late else "ended by itself"
            log.seek(0)
            raise AssertionError(f"the kernel process {what}: {log.read().decode()}")
    return done


def killed(
    parent: subprocess.Popen[bytes],
    home: Path,
    before: list[Path],
    stop: bool = False,
    patience: float = PATIENCE,
) -> Kill:
    """SIGKILL a process whose LOCKSTEP_HOME, and that of all that comes from it, is `home`, and
    whose TMPDIR is `home/tmp`; look for what is left of it until there is nothing, or for
    `patience` seconds: processes, the sockets and namespaces that they held a moment before, shared
    memory that was not there `before` they were, temporary files.
    """
    found = processes_of(str(home))
    ours = {name for _, name in held_by([psutil.Process()])}
    names = {name for _, name in held_by(found)} - ours
    holders = {each for each in held_by(psutil.process_iter()) if each[1] in names}
    for process in found if stop else ():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    parent.kill()
    parent.wait()
    begun, late = time.monotonic(), Left()
    while True:
        gone_within(str(home), SOON - (time.monotonic() - begun))  # the cheapest look comes first
        seconds = time.monotonic() - begun  # when this look began: it may take long
        left = [f"process {line}" for line in gone_within(str(home), 0)]
        # a process that is about to end may be nobody's already, and still hold something
        # (only by those that held it before: a namespace may get the number of one that has gone)
        left += sorted({name for _, name in holders & held_by(psutil.process_iter())})
        left += [f"mounted {name}" for name in sorted(names & mounted())]
        left += memory_left(before) + files_left(home)
        if seconds > SOON:
            late |= dict.fromkeys(left, seconds)
        if not left or seconds > patience:
            late |= dict.fromkeys(left, math.inf)
            return Kill(len(found), seconds, late)
        time.sleep(0.02)


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """At the end of this block kill what runs with `home` as its LOCKSTEP_HOME, whatever happened
    in it.
    """
    try:
        yield
    finally:
        for process in (left := processes_of(str(home))):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself
                process.kill()
        psutil.wait_procs(left, timeout=5.0)


def fell(home: Path) -> str:
    """What the runs of a kernel were doing at the end, as their records tell; the first that holds
    of: start-up, restart, save, race, training.
    """
    found = {"start-up"} if not [*home.glob("runs/*")] else set()
    for files in map(RunDir, home.glob("runs/*")):
        said = Trace.of_run(files).all(Lifecycle) if files.lifecycle.exists() else []
        last = {event.task: event for event in said if event.state in STATES}
        if not last or any(e.state == "starting" and not e.attempt for e in last.values()):
            found.add("start-up")
        elif any(e.state != "running" for e in last.values()):
            found.add("restart")
        elif any(checkpoint.problem for checkpoint in checkpoints.of_run(files)):
            found.add("save")  # one is unfinished
        else:
            found.add("race" if files.line.exists() else "training")
    return next(m for m in ("start-up", "restart", "save", "race", "training") if m in found)


def held_by(processes: Iterable[psutil.Process]) -> set[tuple[int, str]]:
    """The sockets and namespaces of processes, by pid, as Linux names them: "socket:[4711]"."""
    found = set[tuple[int, str]]()
    for process in processes:
        for folder in ("fd", "ns"):
            with contextlib.suppress(OSError):
                for entry in Path(f"/proc/{process.pid}/{folder}").iterdir():
                    with contextlib.suppress(OSError):
                        found.add((process.pid, str(entry.readlink())))
    return {each for each in found if re.fullmatch(r"(?!pipe)\w+:\[\d+\]", each[1])}


def mounted() -> set[str]:
    """What is mounted here, among it namespaces that a file keeps alive."""
    table = Path("/proc/self/mountinfo")
    return set(table.read_text().split()) if table.exists() else set()


def files_left(home: Path) -> list[str]:
    """What should be there only while a run goes on. A run that never had a supervisor has empty
    folders.
    """
    # every import of torch._dynamo makes a folder for the caches of its user, and leaves it empty
    found = [p for p in (home / "tmp").glob("*") if not p.name.startswith("torchinductor_")]
    for run in home.glob("runs/*"):
        begun = (run / "lifecycle.jsonl").exists()
        found += [run / "beats"] * (begun and (run / "beats").exists())
        for folder in (*run.glob("tasks/*/tmp"), run / "meetings", run / "workload"):
            found += [*folder.rglob("*"), *[folder] * (begun and folder.exists())]
    return [f"file {path}" for path in found]


def shared_memory() -> list[Path]:
    folder = Path("/dev/shm")
    return list(folder.iterdir()) if folder.is_dir() else []


def memory_left(before: list[Path]) -> list[str]:
    """Shared memory that has come since, and that no process has open."""
    fresh = [path for path in shared_memory() if path not in before]
    in_use: set[str] = set()
    for process in psutil.process_iter() if fresh else ():
        with contextlib.suppress(psutil.Error):
            in_use |= {m.path for m in process.memory_maps()}
    return [f"memory {path}" for path in fresh if path.exists() and str(path) not in in_use]


def at_random(kills: int, seed: int = 0) -> Iterator[tuple[str, str, float]]:
    """The first arguments of `kill` but the home: framework, moment and seconds, of kills of all
    kinds in turn, of TensorFlow's clusters every third time.
    """
    rng = random.Random(seed)
    for n in range(kills):
        moment, framework = [*MOMENTS][n % len(MOMENTS)], ("torch", "torch", "tensorflow")[n % 3]
        yield framework, moment, rng.uniform(0, LATEST.get(moment, USUAL))
