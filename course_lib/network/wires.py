"""Links where the kernel cannot impose them: shared memory says when each link between hosts will
be free again.

A sender reserves its host's uplink and the receiver's downlink for as long as the bytes of its
message take. That gives the time at which the message is due, and the receiver does not look at it
before. So all ranks of a host share its link, and nobody has to sleep in order to be slow. Only our
own exchange keeps to it, not what a framework sends.
"""

import contextlib
import fcntl
import mmap
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from course_lib.spec.fields import Link

PAYLOAD = 1448 / 1514
"""The share of a message in the bytes on a wire: a full Ethernet packet, less the headers of
Ethernet, IP and TCP.
"""

# payload bytes a second, seconds, when the uplink and the downlink will be free
_RATE, _DELAY, _UP, _DOWN = range(4)
_PATIENCE = 0.1  # seconds: a process that is paused while it reserves must not stop the others


def lay(path: Path, links: Mapping[int, Link]) -> None:
    """Make the file that tells all processes of a run the link of each host."""
    path.touch(mode=0o600)
    os.truncate(path, 4 * np.dtype(np.float64).itemsize * (max(links) + 1))
    with contextlib.closing(Wires(path)) as wires:
        for host, link in links.items():
            wires.change(host, link)


class Wires:
    """The links of all hosts of a run, seen from one process, in the file that `lay` made."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._fd = os.dup(file.fileno())
        self._hosts = np.frombuffer(mmap.mmap(self._fd, 0), np.float64).reshape(-1, 4)

    def change(self, host: int, link: Link) -> None:
        """Give a host another link, from now on."""
        self._hosts[host, :_UP] = link.bytes_per_second * PAYLOAD, link.delay

    def due(self, src: int, dst: int, size: int) -> float:
        """Return when a message of `size` bytes, sent by `src` now, has arrived at host `dst`, on
        the clock of all processes.
        """
        here, there = self._hosts[src], self._hosts[dst]
        if here[_DELAY] == 0 and here[_RATE] == there[_RATE] == np.inf:
            return 0.0
        with self._reserving():
            begins = max(time.monotonic(), here[_UP])
            here[_UP] = begins + size / here[_RATE]
            there[_DOWN] = max(begins, there[_DOWN]) + size / there[_RATE]
            return float(max(here[_UP], there[_DOWN]) + here[_DELAY])

    def close(self) -> None:
        os.close(self._fd)

    @contextlib.contextmanager
    def _reserving(self) -> Iterator[None]:
        """Keep others from reserving during the block, unless one of them takes too long."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    break
                time.sleep(50e-6)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
