"""Faults that happen inside a task: an exception, an early exit, memory that runs out. The
supervisor has them in the record before it sends the order for one.

An order comes in on a thread of its own. A signal brings it to the main thread, which also wakes up
where that waits for something; only while it is inside of C++ does the exception have to wait.
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

PATIENCE = 10.0  # seconds for which a task waits until a fault that is due has happened
MORE = 256  # MB of memory beyond what it has, which is the limit of a task that is to run out
BLOCK = 16  # MB


class Faults:
    """What joins a task to the faults that its supervisor plans."""

    def __init__(self, task: Task, channel: Channel) -> None:
        self.task, self.channel = task, channel
        self.happened = threading.Event()
        self._due = ("", "")  # what, why
        task.at_fault = self._await
        signal.signal(signal.SIGUSR1, lambda *_: self._raise())

    def end(self) -> None:
        """The task's function has returned: nothing can happen in it any more."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def inject(self, what: str, why: str) -> None:
        """Let it happen; called by the thread that hears the supervisor."""
        if what == "exit":
            self.task.recorder.flush()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        self._due = what, why
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def _await(self, step: int) -> None:
        self.happened.clear()
        self.channel.send(step=step)
        self.happened.wait(PATIENCE)

    def _raise(self) -> NoReturn:
        what, why = self._due
        if what == "oom":
            run_out_of_memory(why)
        raise Injected(f"it was raised {why}")


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
