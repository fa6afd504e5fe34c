"""Shared memory without a name, which is gone with the last process that has it: buffers that ranks
of one host read, and the counters by which they see that they have been read.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # with all its pages at once
_COUNTER = np.dtype(np.int64)


class Segment:
    """`size` bytes of shared memory of our own behind the file descriptor `fd`; or, from an `fd`
    that another rank sent, that rank's segment, to be read only (the descriptor is closed).
    """

    def __init__(self, size: int = 0, fd: int | None = None) -> None:
        self.fd = _anonymous_file() if fd is None else fd
        access = mmap.PROT_READ
        if fd is None:
            os.ftruncate(self.fd, size)
            access |= mmap.PROT_WRITE
        self.size = os.fstat(self.fd).st_size
        self._memory: mmap.mmap | None = mmap.mmap(self.fd, self.size, _FLAGS, access)
        if fd is not None:
            os.close(fd)

    def array(self, length: int, dtype: np.dtype) -> np.ndarray:
        """Its first bytes as an array of shape (length,)."""
        assert self._memory, "closed"
        return np.frombuffer(self._memory, dtype, length)

    def close(self) -> None:
        """Close our own segment; its memory goes with the last array on it."""
        os.close(self.fd)
        self._memory = None


class Counters:
    """A counter for each of `ranks` ranks in a segment: how many pieces of that rank the owner has
    read.

    In shared memory, so that nobody has to be woken to see it. Only the owner writes; `fd` is that
    of another rank's.
    """

    def __init__(self, ranks: int, fd: int | None = None) -> None:
        self.ranks = ranks
        self.segment = Segment(ranks * _COUNTER.itemsize, fd)
        self._counts = self.segment.array(ranks, _COUNTER)
        self._fence = threading.Lock()

    def close(self) -> None:
        """Close our own counters; the peers keep theirs."""
        self._counts = np.empty(0)
        self.segment.close()

    def __setitem__(self, rank: int, pieces: int) -> None:
        with self._fence:  # a barrier: all that was read before this line has been read
            pass
        self._counts[rank] = pieces

    def __getitem__(self, rank: int) -> int:
        found = int(self._counts[rank])
        with self._fence:  # a barrier: what is written after this line is written after that
            pass
        return found


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("lockstep")
    fd, path = tempfile.mkstemp(prefix="lockstep-")
    Path(path).unlink()
    return fd
