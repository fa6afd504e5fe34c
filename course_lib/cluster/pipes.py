"""What joins our processes: a lifeline, which ends a process when the holder of its other end is
gone, and channels, which carry messages.

A lifeline is a pipe. Nothing is ever written to it. The operating system closes the holder's end
however the holder dies, SIGKILL included. On Linux it then sends SIGKILL to every process that
asked for it (`F_SETSIG` on a pipe in `O_ASYNC` mode): no thread is needed, so a zygote stays fit to
fork, and a task dies even when it is stopped, loops for ever or holds the interpreter lock.
Elsewhere a thread waits for the end of the pipe. Parent-death signals do not serve: they fire when
the spawning *thread* ends, and a notebook starts clusters from threads.

Every process of ours that is a fresh interpreter begins here, before the imports, which may take a
second on a busy machine:

    python -m course_lib.cluster.pipes MODULE FD ARGUMENTS...

holds the pipe FD and calls MODULE.begin(what `hold` returned, *ARGUMENTS).
"""

import fcntl
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
from typing import Any


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


class Channel:
    """One end of a socket pair, which has no address. Messages are JSON objects, one per line: what
    comes through is never code, as a pickle would be.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, **message: Any) -> bool:
        """Send one message; False when the other side is gone."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
            return True
        except OSError:
            return False

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait for data and return the whole messages in it (maybe none yet), or None when the
        other side is gone. Raises `TimeoutError` if the socket has a time-out and nothing came.
        """
        try:
            data = self.sock.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.sock.close()


def pair() -> tuple[Channel, socket.socket]:
    """A channel for this process and the bare socket for the other one."""
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell stops waiting; we go on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    module, reading_end, *arguments = sys.argv[1:]
    held = hold(int(reading_end))
    importlib.import_module(f"course_lib.cluster.{module}").begin(held, *arguments)
