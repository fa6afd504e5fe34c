"""Shared memory without a name: a rank's buffer, which other processes of the same host read.

It is gone with the last process that has it.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # with all its pages at once


class Segment:
    """`size` bytes of shared memory behind the file descriptor `fd`; `array` makes an array on
    them.
    """

    def __init__(self, size: int) -> None:
        self.fd = _anonymous_file()
        os.ftruncate(self.fd, size)
        self.size = size
        self._memory: mmap.mmap | None = mmap.mmap(self.fd, size, _FLAGS)

    def array(self, length: int, dtype: np.dtype) -> np.ndarray:
        """Its first bytes as an array of shape (length,)."""
        assert self._memory, "closed"
        return np.frombuffer(self._memory, dtype, length)

    def close(self) -> None:
        """Give up the descriptors, ours and that of the mapping.

        The memory goes with the last array on it.
        """
        os.close(self.fd)
        self._memory = None


class Window:
    """Another rank's segment, to be read, from a descriptor that it sent; takes the descriptor."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size, _FLAGS, mmap.PROT_READ)
        os.close(fd)

    def array(self, length: int, dtype: np.dtype) -> np.ndarray:
        return np.frombuffer(self._memory, dtype, length)


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("lockstep")
    fd, path = tempfile.mkstemp(prefix="lockstep-")
    Path(path).unlink()
    return fd
