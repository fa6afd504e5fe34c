"""Where a rank lets those on its host see how many of their pieces it has read: in memory that they
share, so that nobody has to be woken for it.
"""

from __future__ import annotations

import threading

import numpy as np

from course_lib.exchange.segment import Segment, Window

_INT64 = np.dtype(np.int64)


class Board:
    """A counter for each of `ranks` ranks. Only this rank writes there."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.segment = Segment(ranks * _INT64.itemsize)
        self._read = self.segment.array(ranks, _INT64)
        self._fence = threading.Lock()

    def close(self) -> None:
        """Give it up; the peers keep theirs."""
        self.segment.close()
        self._read = np.empty(0)

    def confirm(self, peer: int, pieces: int) -> None:
        """So many pieces of `peer` have been read."""
        # whatever was read before has been read by now, also on processors that change the order of
        # reads and writes
        with self._fence:
            pass
        self._read[peer] = pieces


class PeersBoard:
    """Another rank's board, as rank `rank` sees it; takes the descriptor."""

    def __init__(self, fd: int, ranks: int, rank: int) -> None:
        self._mine = Window(fd).array(ranks, _INT64)[rank:]
        self._fence = threading.Lock()

    @property
    def pieces(self) -> int:
        """How many of our pieces the peer has read."""
        found = int(self._mine[0])
        with self._fence:  # what is written from here on is written after that
            pass
        return found
