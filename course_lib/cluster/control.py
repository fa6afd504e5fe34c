"""Lets a supervisor control a task while the task's function runs: change its pace, end it, or give
it a fault: an exception, an early exit, memory that runs out. The supervisor has a fault in the
record before it sends the order for it.

An order comes in on a thread of its own, so that a busy or endless function can be slowed and
stopped. A signal brings an exception to the main thread, which also wakes up where that waits for
something; only while it is inside of C++ does the exception have to wait.
"""

import contextlib
import os
import resource
import signal
import sys
import threading
from typing import NoReturn

import psutil

from course_lib.cluster.pipes import Channel
from course_lib.cluster.task import Task
from course_lib.errors import Injected
from course_lib.record.events import keep_to
from course_lib.spec.jitter import Jitter

PATIENCE = 10.0  # seconds for which a task waits until a fault that is due has happened
MORE = 256  # MB of memory beyond what it has, which is the limit of a task that is to run out
BLOCK = 16  # MB


class Control:
    """The supervisor's control of a task, until `end`."""

    def __init__(self, task: Task, channel: Channel) -> None:
        self._task, self._channel = task, channel
        self._happened, self._done = threading.Event(), threading.Event()
        self._due = ("", "")  # what, why
        task.at_fault = self._await
        signal.signal(signal.SIGUSR1, lambda *_: self._raise())
        threading.Thread(target=self._obey, daemon=True).start()

    def end(self) -> None:
        """The task's function has returned: nothing can happen in it any more."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def done(self) -> None:
        """Let the task leave: the value of its function has been kept."""
        self._done.set()

    def _obey(self) -> None:
        while (messages := self._channel.receive()) is not None:
            for message in messages:
                if "factor" in message:
                    self._task.slow_factor = message["factor"]
                if "clock" in message:
                    keep_to(message["clock"])
                if "jitter" in message:
                    self._task.jitter = Jitter.of(message["jitter"])
                if "leave" in message or message.get("inject") == "exit":
                    self._done.wait(message.get("leave", 0.0))
                    self._task.recorder.flush()
                    leave(0)
                if "inject" in message:
                    self._due = message["inject"], message["why"]
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                if "go" in message:
                    self._happened.set()
        os._exit(1)

    def _await(self, step: int) -> None:
        """A step begins at which a fault is due: wait until that has happened."""
        self._happened.clear()
        self._channel.send(step=step)
        self._happened.wait(PATIENCE)

    def _raise(self) -> NoReturn:
        what, why = self._due
        if what == "oom":
            run_out_of_memory(why)
        raise Injected(f"it was raised {why}")


def leave(code: int) -> NoReturn:
    """End this process at once: the frameworks' own teardown may wait for peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_out_of_memory(why: str) -> NoReturn:
    """Allocate memory until a limit of this process is reached, and raise MemoryError."""
    held, process = list[bytearray](), psutil.Process()
    usual = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        most = process.memory_info().vms + MORE * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, usual[1]))
    with contextlib.suppress(MemoryError):
        while len(held) * BLOCK < MORE:
            held.append(bytearray(BLOCK * 2**20))
    got = len(held) * BLOCK
    held.clear()
    resource.setrlimit(resource.RLIMIT_AS, usual)
    has = process.memory_info().rss / 2**20
    raise MemoryError(f"with {has:.0f} MB it got {got} MB more and then none, {why}")
