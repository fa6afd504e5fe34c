"""Shared memory without a name, which is freed with the last process that holds it: buffers that
ranks of one host read, and counters of the pieces that have been read.
"""

import mmap
import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # maps all pages at once
_COUNTER = np.dtype(np.int64)


class Segment:
    """Our own shared memory of `size` bytes, with its file descriptor `fd`; or, given the `fd` that
    another rank sent, that rank's segment, read-only (the descriptor is then closed).
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
        """Close our own segment; its memory is freed with the last array on it."""
        os.close(self.fd)
        self._memory = None


class Counters:
    """A segment with a counter for each of `ranks` ranks: how many pieces of that rank the owner of
    the counters has read.

    They are in shared memory, so that a rank can read them without waking the owner. Only the owner
    writes. `fd`: the descriptor of another rank's counters, to read those.
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
        with self._fence:  # a barrier: the reads before this line are done
            pass
        self._counts[rank] = pieces

    def __getitem__(self, rank: int) -> int:
        count = int(self._counts[rank])
        with self._fence:  # a barrier: the writes after this line come after the read
            pass
        return count


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("lockstep")
    fd, path = tempfile.mkstemp(prefix="lockstep-")
    Path(path).unlink()
    return fd
