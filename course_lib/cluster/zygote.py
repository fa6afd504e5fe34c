"""The zygote: a process that has imported one framework and nothing more, and forks a supervisor
for every run that asks.

Importing TensorFlow takes seconds; a fork takes a millisecond and shares the memory. A fork is safe
only while there is one thread, so the zygote imports, runs no operation, starts no thread, and
counts before it forks.
"""

import gc
import os
import signal
import socket
import sys
from typing import NoReturn

import psutil

from course_lib.cluster import frameworks, process, supervisor
from course_lib.cluster.pipes import Channel
from course_lib.errors import shortage


def begin(lifeline: int | None, framework: str, fd: str) -> NoReturn:
    """Start as a fresh interpreter, the only way there is; our lifeline holds us to the kernel
    process. Import `framework`, say so, then fork a supervisor onto each socket that comes from the
    kernel process through the socket `fd`. Never returns.
    """
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
        if not fds:
            print("not forked: this process has too many open files", file=sys.stderr, flush=True)
            continue
        with socket.socket(fileno=fds[0]) as sock:
            if (count := psutil.Process().num_threads()) != 1:
                why = f"{count} threads here, and only a process with one can be forked safely"
                print(f"not forked: {why}", file=sys.stderr, flush=True)
            elif _fork(sock) == 0:
                kernel.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                supervisor.main(sock, process.fork, lifeline)


def _fork(sock: socket.socket) -> int:
    """Fork. If the system allows no more processes, say so at the other end of `sock`."""
    try:
        return os.fork()
    except OSError as error:
        Channel(sock).post(unavailable=shortage(error).parts)
        return -1
