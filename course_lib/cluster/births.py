"""How a supervisor starts the process of a task: by a fork, or as a fresh interpreter."""

import os
import signal
import socket
import sys
from collections.abc import Callable

from course_lib.cluster import pipes, process
from course_lib.cluster.roster import Attempt
from course_lib.record.rundir import RunDir

Birth = tuple[RunDir, str, Attempt, socket.socket]
"""What `process.main` is given: run directory, task, its attempt, its socket."""
StartTask = Callable[[Birth, int, list[int]], int]
"""Start the process of a task and return its pid. Besides what it is given: the reading end of its
lifeline, and descriptors that it must not keep.
"""


def fork(birth: Birth, holder: int, private: list[int]) -> int:
    """Start a task as a copy of this process, which has the framework loaded already."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in private:
            os.close(fd)
        pipes.hold(holder)
        process.main(*birth)
    finally:
        os._exit(70)


def spawn(birth: Birth, holder: int, private: list[int]) -> int:
    """Start a task as a fresh interpreter, which imports the framework anew: slow, and the same
    everywhere.
    """
    files, name, attempt, sock = birth
    for fd in (sock.fileno(), holder):
        os.set_inheritable(fd, True)
    arguments = [holder, files.path, name, *attempt, sock.fileno()]
    module = ["-m", "course_lib.cluster.pipes", "process"]
    command = [sys.executable, *module, *map(str, arguments)]
    return os.posix_spawn(sys.executable, command, os.environ)
