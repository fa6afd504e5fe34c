"""Starts processes for the notebook kernel: keeps one warm zygote per framework, and gets a
supervisor for each run.

A zygote is a process that has imported one framework and nothing more, and forks a supervisor for
every run that asks. Importing TensorFlow takes seconds; a fork takes a millisecond and shares the
memory. A fork is safe only while there is one thread, so the zygote imports, runs no operation,
starts no thread, and counts before it forks.

In the kernel process nothing here imports a framework or blocks without a bound, and no child
outlives it: each is tied to a pipe that closes with it.
"""

import functools
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any, NoReturn

import psutil

from course_lib.cluster import frameworks
from course_lib.cluster.pipes import Channel, interpreter, pair, ready
from course_lib.errors import LockstepError, StartTimeout, shortage


class Zygote:
    """A warm process, seen from the kernel process."""

    def __init__(self, framework: str) -> None:
        self.framework, self.ready = framework, False
        self.process, self.channel = popen(framework, "cluster.nursery", framework)
        self._turn = threading.Lock()

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
                    raise EOFError("it ended")
                self.ready = bool(messages)
            socket.send_fds(self.channel.sock, [b"f"], [sock.fileno()])
        except (OSError, ValueError, EOFError) as error:  # or somebody has closed the channel
            what = f"the process that imports {self.framework} failed: {error}"
            raise LockstepError(f"{what}. {last_words(self.framework)}") from None
        finally:
            self._turn.release()


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
    return framework in _zygotes and _zygotes[framework].process.poll() is None


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
    if start_method == "spawn":
        return popen(framework, "cluster.supervisor")[1]
    warm(framework)
    channel, theirs = _pair()
    with theirs:
        _zygotes[framework].fork_onto(theirs, timeout)
    return channel


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


def _pair() -> tuple[Channel, socket.socket]:
    """A channel that no fork of the kernel process keeps, and the socket at its other end."""
    channel, theirs = pair()
    _ours.add(channel.sock)
    return channel, theirs


def popen(framework: str, module: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start one of our modules as a fresh interpreter, on our lifeline, that writes into the
    framework's log; the process, and a channel to it, whose other end is its first argument.
    """
    log, (channel, theirs) = _log(framework), _pair()
    path = f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    # An interrupt goes to the whole process group; the child has it blocked until it ignores it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        descriptors = _lifeline[0], theirs.fileno()
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        environment = {**os.environ, **frameworks.ENVIRONMENT, "PYTHONPATH": path}
        command = interpreter(module, *descriptors, *arguments)
        process = subprocess.Popen(command, pass_fds=descriptors, env=environment, **streams)
        return process, channel
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()


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


# --- the process of a zygote ---


def begin(lifeline: int | None, fd: str, framework: str) -> NoReturn:
    """Start as a fresh interpreter, the only way there is; our lifeline holds us to the kernel
    process. Import `framework`, say so, then fork a supervisor onto each socket that comes from the
    kernel process through the socket `fd`. Never returns.
    """
    from course_lib.cluster import process, supervisor  # which the kernel process does not need

    kernel = socket.socket(fileno=int(fd))
    # nobody waits for supervisors: let them be buried at once
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    frameworks.preload(framework)
    gc.collect()
    gc.freeze()  # keep the collector from touching, and so copying, the pages that all tasks share
    channel = Channel(kernel)
    channel.send(ready=framework)
    while True:
        data, fds, _, _ = socket.recv_fds(kernel, 1, 1)
        if not data:
            os._exit(0)
        threads = psutil.Process().num_threads()
        if not fds or threads != 1:
            why = f"{threads} threads and {len(fds)} descriptors; there must be one of each"
            print(f"not forked: {why}", file=sys.stderr, flush=True)
            for descriptor in fds:  # so that the kernel process is not kept waiting
                os.close(descriptor)
            continue
        with socket.socket(fileno=fds[0]) as sock:
            try:
                pid = os.fork()
            except OSError as error:  # the system allows no more processes
                Channel(sock).post(unavailable=shortage(error).parts)
                continue
            if not pid:
                kernel.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                supervisor.main(sock, process.fork, lifeline)
