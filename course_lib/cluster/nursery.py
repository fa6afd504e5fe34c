"""Starts processes for the notebook kernel: keeps one warm zygote per framework, and gets a
supervisor for each run.

Nothing here imports a framework or blocks without a bound, and no child outlives the kernel
process: each is tied to a pipe that closes with it.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from pathlib import Path

from course_lib.cluster.frameworks import ENVIRONMENT
from course_lib.cluster.pipes import Channel, interpreter, pair, ready
from course_lib.errors import LockstepError, StartTimeout

_lock = threading.Lock()
_zygotes: dict[str, Zygote] = {}
# ends that must be closed in any fork of the kernel process
_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_lifeline = os.pipe()  # nothing is written to it; its writing end closes with this process


def warm(framework: str = "tensorflow") -> None:
    """Start the zygote of a framework in the background, so that the first run need not wait for
    its import. Returns at once.
    """
    with _lock:
        if not is_warm(framework):
            _zygotes[framework] = Zygote(framework)


def is_warm(framework: str) -> bool:
    """Return whether the zygote of a framework is there already."""
    return framework in _zygotes and _zygotes[framework].alive


def close() -> None:
    """End all zygotes. Runs that go on are not touched; a later run starts a zygote anew."""
    with _lock:
        for zygote in _zygotes.values():
            zygote.channel.close()
            zygote.process.wait(timeout=10)
        _zygotes.clear()


def supervisor(framework: str, start_method: str, timeout: float) -> Channel:
    """A channel to a new supervisor process that waits for its order to start.

    `start_method` is `fork` (from the zygote of `framework`) or `spawn` (a fresh interpreter).
    Raises `StartTimeout` when the zygote is not ready in `timeout` seconds, `LockstepError` when it
    cannot be had.
    """
    channel, theirs = pair()
    _ours.add(channel.sock)
    with theirs:
        if start_method == "spawn":
            popen(framework, "cluster.supervisor", theirs.fileno())
        else:
            warm(framework)
            _zygotes[framework].fork_onto(theirs, timeout)
    return channel


class Zygote:
    """A warm process, seen from the kernel process."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.channel, theirs = pair()
        _ours.add(self.channel.sock)
        with theirs:
            self.process = popen(framework, "cluster.zygote", framework, theirs.fileno())
        self.ready = False
        self._turn = threading.Lock()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def fork_onto(self, sock: socket.socket, timeout: float) -> None:
        """Have the zygote fork a supervisor that talks through `sock`, once it is ready."""
        deadline = time.monotonic() + timeout
        late = StartTimeout((), (), timeout, importing=self.framework)
        if not self._turn.acquire(timeout=timeout):
            raise late
        try:
            while not self.ready:
                if not ready(self.channel, deadline - time.monotonic()):
                    raise late
                if (messages := self.channel.receive()) is None:
                    raise self._broken("it ended")
                self.ready = bool(messages)
            socket.send_fds(self.channel.sock, [b"f"], [sock.fileno()])
        except (OSError, ValueError) as error:  # somebody has closed the channel
            raise self._broken(str(error)) from None
        finally:
            self._turn.release()

    def _broken(self, why: str) -> LockstepError:
        what = f"the process that imports {self.framework} failed: {why}"
        return LockstepError(f"{what}. {last_words(self.framework)}")


def last_words(framework: str) -> str:
    """Return the end of the log of a framework's zygote and the supervisors that it forked."""
    log = _log(framework)
    end = os.pread(log, 1500, max(0, os.fstat(log).st_size - 1500))
    tail = end.decode(errors="replace").strip()
    return f"The end of its log:\n{tail}" if tail else "Its log is empty."


@functools.cache
def _log(framework: str) -> int:
    """Return the descriptor of the log of a framework's zygote and supervisors: a file without a
    name, so that each kernel process has its own and leaves none behind.
    """
    with tempfile.TemporaryFile("ab+") as file:
        return os.dup(file.fileno())


def popen(framework: str, module: str, *arguments: str | int) -> subprocess.Popen[bytes]:
    """Start one of our modules as a fresh interpreter, on our lifeline, that inherits the
    descriptors among its arguments and writes into the framework's log.
    """
    log = _log(framework)
    places = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(filter(None, places))
    # An interrupt goes to the whole process group; the child has it blocked until it ignores it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            interpreter(module, _lifeline[0], *arguments),
            pass_fds=[_lifeline[0], *(a for a in arguments if isinstance(a, int))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _let_go() -> None:
    """In a fork of the kernel process (by multiprocessing, say), close our ends: otherwise clusters
    would live as long as the fork.
    """
    global _lifeline, _zygotes, _lock
    _log.cache_clear()
    for sock in list(_ours):
        sock.close()
    for end in _lifeline:
        os.close(end)
    _lifeline, _zygotes, _lock = os.pipe(), {}, threading.Lock()


os.register_at_fork(after_in_child=_let_go)
