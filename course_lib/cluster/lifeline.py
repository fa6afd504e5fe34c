"""A lifeline: a pipe whose other end is held by the process we live for. When that process is gone,
so are we.

Nothing is ever written to the pipe. The operating system closes the holder's end however the holder
dies, SIGKILL included. On Linux it then sends SIGKILL to every process that asked for it
(`F_SETSIG` on a pipe in `O_ASYNC` mode): no thread is needed, so a zygote stays fit to fork, and a
task dies even when it is stopped, loops for ever or holds the interpreter lock. Elsewhere a thread
waits for the end of the pipe. Parent-death signals do not serve: they fire when the spawning
*thread* ends, and a notebook starts clusters from threads.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading


def hold(fd: int) -> int | None:
    """Tie this process to the pipe whose reading end is `fd`: it dies within milliseconds when the
    last writing end is closed.

    Returns what `release` takes.
    """
    if sys.platform == "linux":
        # The owner that gets the signal belongs to the open file, which forks share; opening it
        # anew makes one of our own.
        mine = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(mine, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(mine, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(mine, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        if select.select([mine], [], [], 0)[0]:  # closed before we asked
            os._exit(1)
        return mine
    threading.Thread(target=_watch, args=(fd,), name="lockstep-lifeline", daemon=True).start()
    return None


def release(held: int | None) -> None:
    """Untie this process again, where that can be done (on Linux)."""
    if held is not None:
        os.close(held)


def _watch(fd: int) -> None:
    os.read(fd, 1)
    os._exit(1)
