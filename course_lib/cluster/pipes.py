"""Joins our processes: by a lifeline, which ends a process when the holder of its other end is
gone, and by channels, which carry messages.

A lifeline is a pipe. Nothing is ever written to it. The operating system closes the holder's end
however the holder dies, SIGKILL included. On Linux it then sends SIGKILL to every process that
asked for it (`F_SETSIG` on a pipe in `O_ASYNC` mode): no thread is needed, so a zygote stays fit to
fork, and a task dies even when it is stopped, loops for ever or holds the interpreter lock.
Elsewhere a thread waits for the end of the pipe. Parent-death signals do not serve: they fire when
the spawning *thread* ends, and a notebook starts clusters from threads.

Every process of ours that is a fresh interpreter begins here, before the imports, which may take a
second on a busy machine:

    python -m course_lib.cluster.pipes MODULE FD ARGUMENTS...       (see `interpreter`)

holds the pipe FD and calls MODULE.begin(what `hold` returned, *ARGUMENTS).
"""

import contextlib
import fcntl
import importlib
import json
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

PATIENCE = 60.0  # seconds that the other side has to read what is sent to it
LONGEST = 16 << 20  # bytes of a message


def ready(fd: Any, seconds: float | None, event: int = select.POLLIN) -> bool:
    """Wait until a descriptor can be read, or written; False after `seconds` (None: no bound).

    `select.select` would do the same, but only for descriptors below 1024.
    """
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(None if seconds is None else max(0, math.ceil(1000 * seconds))))


def hold(fd: int, sent: signal.Signals = signal.SIGKILL) -> int | None:
    """Tie this process to the pipe whose reading end is `fd`: it dies within milliseconds when the
    last writing end is closed. On Linux another signal than SIGKILL can be `sent`.

    Returns what `release` takes.
    """
    if sys.platform == "linux":
        # The owner that gets the signal belongs to the open file, which forks share; opening it
        # anew makes one of our own.
        mine = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(mine, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(mine, fcntl.F_SETSIG, sent)
        fcntl.fcntl(mine, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        if ready(mine, 0):  # closed before we asked
            os._exit(1)
        return mine

    def watch() -> None:
        os.read(fd, 1)
        os._exit(1)

    threading.Thread(target=watch, name="lockstep-lifeline", daemon=True).start()
    return None


def release(pipe: int | None) -> None:
    """Untie this process again, where that can be done (on Linux)."""
    if pipe is not None:
        os.close(pipe)


def interpreter(module: str, holder: int, *arguments: object) -> list[str]:
    """The command that begins one of our modules as a fresh interpreter, which holds a pipe."""
    command = [sys.executable, "-m", "course_lib.cluster.pipes", module]
    return [*command, *map(str, (holder, *arguments))]


class Channel:
    """One end of a socket pair, which has no address. Messages are JSON objects, one per line: what
    comes through is never code, as a pickle would be.

    `post` and `tell` never wait: what the socket has no room for is `unsent` until `flush`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = self._out = b""
        self._state: dict[str, Any] = {}

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def gone(self) -> bool:
        """Return whether the other side has closed its end; its last messages may be unread."""
        return ready(self, 0, 0)  # a hang-up is told whatever is asked for

    def send(self, **message: Any) -> None:
        """Send one message, and wait until it is sent."""
        self.post(**message)
        self.settle()

    def post(self, **message: Any) -> None:
        """Send one message as soon as there is room for it."""
        self._out += _line(message)
        self.flush()

    def tell(self, **state: Any) -> None:
        """Tell the other side how something is now, as soon as there is room. News of the same name
        replace those that are still unsent, so they never pile up.
        """
        self._state |= state
        self.flush()

    @property
    def unsent(self) -> bool:
        return bool(self._out or self._state)

    def flush(self) -> None:
        """Send what there is room for. If the other side is gone, nothing is kept for it."""
        try:
            while self.unsent:
                if not self._out:
                    self._out, self._state = _line(self._state), {}
                self._out = self._out[self.sock.send(self._out, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            pass
        except OSError:
            self._out, self._state = b"", {}

    def settle(self) -> None:
        """Wait until all is sent, for `PATIENCE` seconds at most."""
        deadline = time.monotonic() + PATIENCE
        while self.unsent and ready(self.sock, deadline - time.monotonic(), select.POLLOUT):
            self.flush()

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait for data and return the whole messages in it (maybe none yet), or None when the
        other side is gone. What is no message, or longer than `LONGEST`, is left out. Raises
        `TimeoutError` if the socket has a time-out and nothing came.
        """
        try:
            data = self.sock.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST:
            self._rest = b""
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):  # a learner's code wrote it
                messages.append(json.loads(line))
        return [message for message in messages if isinstance(message, dict)]

    def close(self) -> None:
        self.sock.close()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def pair() -> tuple[Channel, socket.socket]:
    """A channel for this process and the bare socket for the other one."""
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs


if __name__ == "__main__":
    # an interrupted cell stops waiting; this process, and all that it forks, go on
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    module, reading_end, *arguments = sys.argv[1:]
    lifeline = hold(int(reading_end))
    importlib.import_module(f"course_lib.{module}").begin(lifeline, *arguments)
