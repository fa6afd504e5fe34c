"""`grade`: check all answers of a learner's notebook, in a process of their own with bounds on time
and memory.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import course_lib
from course_lib.course.notebook import read
from course_lib.course.verdict import Verdict
from course_lib.hardware.limits import gigabytes

# For all cells together, and for each check; the bounds inside the process are tighter, but can be
# blocked or swallowed.
COMPUTING = 60.0  # seconds of the processor
PATIENCE = 300.0  # seconds of the clock: for whatever waits and does not compute
MEMORY = 2 << 30  # bytes that the process may hold
_CLEANING = 5.0  # seconds that its descendants have to clean up when it is gone


@dataclass(frozen=True)
class Bounds:
    """What the process may use for one thing: `computing` and `patience` in seconds, `memory` in
    bytes.
    """

    computing: float = COMPUTING
    patience: float = PATIENCE
    memory: int = MEMORY


def grade(path: Path, bounds: Bounds = Bounds()) -> list[Verdict]:
    """A verdict for each task of the exercise at `path`, in their order. Raises SpecError where it
    is none.

    A check that goes beyond the bounds is ended, and the others are made in a new process.
    """
    left = [task.name for task in read(path).tasks]
    verdicts: list[Verdict] = []
    while left:
        examiner = Examiner(path, left, bounds)
        try:
            examiner.report("Running the cells of the notebook")
        except Ended as problem:
            return verdicts + [Verdict(task, "not yet", str(problem)) for task in left]
        else:
            judged = _judged(examiner, left)
            verdicts, left = verdicts + judged, left[len(judged) :]
        finally:
            examiner.close()
    return verdicts


class Ended(Exception):
    """The process has ended, or was ended, before it had said all."""


class Examiner:
    """The process that runs the notebook and judges the answers to `tasks`, one after the other."""

    def __init__(self, path: Path, tasks: Sequence[str], bounds: Bounds) -> None:
        self.bounds = bounds
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process is
        held, self._lifeline = os.pipe()  # it dies when we do, or close this
        self._reports, theirs = os.pipe()
        self._read = b""
        library = str(Path(course_lib.__file__).parents[1])
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "course_lib.course.entry",
                str(held),
                str(theirs),
                str(path.resolve()),
                *tasks,
            ],
            cwd=path.resolve().parent,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [library, os.environ.get("PYTHONPATH")])
                ),
            },
            pass_fds=(held, theirs),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )
        os.close(held)
        os.close(theirs)

    def report(self, doing: str) -> dict[str, Any]:
        """The next thing that it says; `doing` is what it does meanwhile.

        Raises Ended, with the reason.
        """
        begun, computed = time.monotonic(), self._usage()[0]
        while b"\n" not in self._read:
            computing, memory = self._usage()
            if computing - computed > self.bounds.computing:
                raise Ended(
                    f"{doing} computed for more than {self.bounds.computing:g} seconds, and was stopped. Does a loop never end?"
                )
            if time.monotonic() - begun > self.bounds.patience:
                raise Ended(
                    f"{doing} was not done after {self.bounds.patience:g} seconds, and was stopped. What does it wait for?"
                )
            if memory > self.bounds.memory:
                raise Ended(
                    f"{doing} took more than {gigabytes(self.bounds.memory)} of memory, and was stopped. Does a loop never end?"
                )
            if select.select([self._reports], [], [], 0.1)[0]:
                came = os.read(self._reports, 1 << 16)
                if not came:
                    raise Ended(f"{doing} ended its process. {self._last_words()}".rstrip())
                self._read += came
        line, _, self._read = self._read.partition(b"\n")
        return dict(json.loads(line))

    def _usage(self) -> tuple[float, int]:
        """Seconds of the processor and bytes of memory that it has used; zeros when it is gone."""
        try:
            process = psutil.Process(self._process.pid)
            times = process.cpu_times()
            return times.user + times.system, process.memory_info().rss
        except psutil.Error:
            return 0.0, 0

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]

    def close(self) -> None:
        """End it and all that it has started; returns when they are gone."""
        self._process.kill()
        os.close(self._lifeline)
        os.close(self._reports)
        self._process.wait(_CLEANING)
        deadline = time.monotonic() + _CLEANING
        # clusters end themselves when their kernel is gone
        while (left := _session(self._process.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._errors.close()


def _judged(examiner: Examiner, tasks: Sequence[str]) -> list[Verdict]:
    """The verdicts on the first of the tasks: on all, if the process comes to no early end."""
    verdicts: list[Verdict] = []
    for task in tasks:
        try:
            verdicts.append(Verdict(**examiner.report(f"Checking {task}")))
        except Ended as problem:
            return [*verdicts, Verdict(task, "not yet", str(problem))]
    return verdicts


def _session(leader: int) -> list[int]:
    """The processes of a session that are still there."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
