"""A lifeline: a pipe that ties this process to the holder of its other end. When the holder is
gone, so are we.

Nothing is ever written to the pipe. The operating system closes the holder's end however the holder
dies, SIGKILL included. On Linux it then sends SIGKILL to every process that asked for it
(`F_SETSIG` on a pipe in `O_ASYNC` mode): no thread is needed, so a zygote stays fit to fork, and a
task dies even when it is stopped, loops for ever or holds the interpreter lock. Elsewhere a thread
waits for the end of the pipe. Parent-death signals do not serve: they fire when the spawning
*thread* ends, and a notebook starts clusters from threads.

Every process of ours that is a fresh interpreter begins here, before the imports, which may take a
second on a busy machine:

    python -m course_lib.cluster.lifeline MODULE FD ARGUMENTS...

holds the pipe FD and calls MODULE.begin(what `hold` returned, *ARGUMENTS).
"""

import fcntl
import importlib
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


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell stops waiting; we go on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    module, reading_end, *arguments = sys.argv[1:]
    held = hold(int(reading_end))
    importlib.import_module(f"course_lib.cluster.{module}").begin(held, *arguments)
