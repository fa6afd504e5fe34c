"""What waits to be sent on a socket, which takes as much as it has room for."""

import contextlib
import socket
from collections import deque
from itertools import islice, takewhile
from typing import NamedTuple

_MOST_BUFFERS = 64  # passed to the system in one call
NO_DESCRIPTOR = -1


class _Waiting(NamedTuple):
    """Bytes, whether they end a piece, and a file descriptor to send with them."""

    view: memoryview
    ends_piece: bool = False
    fd: int = NO_DESCRIPTOR


class Outbox:
    """What waits, in its order; `pieces`: how many have left. No method waits."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: deque[_Waiting] = deque()
        self.pieces = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, *views: memoryview) -> None:
        """Add bytes, which must not change until they have left."""
        self._waiting += map(_Waiting, views)

    def add_piece(self, *views: memoryview) -> None:
        """Add the bytes of a piece."""
        self.add(*views)
        self._waiting[-1] = self._waiting[-1]._replace(ends_piece=True)

    def add_with(self, fd: int, view: memoryview) -> None:
        """Add bytes, and a file descriptor that goes with them (NO_DESCRIPTOR: none)."""
        self._waiting.append(_Waiting(view, fd=fd))

    def push(self) -> None:
        """Send as much as there is room for. Raises `OSError` if nothing can be sent any more."""
        with contextlib.suppress(BlockingIOError):
            while self._waiting:
                first = self._waiting[0]
                if first.fd != NO_DESCRIPTOR:
                    sent = socket.send_fds(self._sock, [first.view], [first.fd])
                    self._waiting[0] = first._replace(fd=NO_DESCRIPTOR)
                else:
                    plain = takewhile(lambda w: w.fd == NO_DESCRIPTOR, self._waiting)
                    sent = self._sock.sendmsg([w.view for w in islice(plain, _MOST_BUFFERS)])
                self._drop(sent)

    def clear(self) -> None:
        """Give up what still waits."""
        self._waiting.clear()

    def _drop(self, sent: int) -> None:
        """Drop the first `sent` bytes, which have left."""
        while self._waiting and sent >= len(self._waiting[0].view):
            done = self._waiting.popleft()
            sent -= len(done.view)
            self.pieces += done.ends_piece
        if sent:
            self._waiting[0] = self._waiting[0]._replace(view=self._waiting[0].view[sent:])
