"""Sends over a socket without waiting: bytes that leave as there is room for them, and messages,
each a text, such as JSON, and a block of bytes, such as those of a tensor.

What comes is never code, as a pickle would be.
"""

import contextlib
import select
import socket
import struct
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

HEADER = struct.Struct("<IQ")  # bytes of the text, and of the block
Message = tuple[str, np.ndarray]
_MOST_BUFFERS = 64  # passed to the system in one call


class Outbox:
    """Keeps what waits, in order; `pieces`: how many have left. No method waits."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: deque[tuple[memoryview, bool]] = deque()  # and whether it ends a piece
        self.pieces = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, *views: memoryview, piece: bool = False) -> None:
        """Add bytes, which must not change until they have left; they may be a piece."""
        self._waiting += ((view, False) for view in views[:-1])
        self._waiting.append((views[-1], piece))

    def push(self) -> None:
        """Send as much as there is room for. Raises `OSError` if nothing can be sent any more."""
        with contextlib.suppress(BlockingIOError):
            while self._waiting:
                views = [view for view, _ in islice(self._waiting, _MOST_BUFFERS)]
                sent = self._sock.sendmsg(views)
                while self._waiting and sent >= len(self._waiting[0][0]):
                    view, ends_piece = self._waiting.popleft()
                    sent -= len(view)
                    self.pieces += ends_piece
                if sent:
                    view, ends_piece = self._waiting[0]
                    self._waiting[0] = view[sent:], ends_piece

    def clear(self) -> None:
        """Give up what still waits."""
        self._waiting.clear()


class Peer:
    """Our end of a connection to `name`. No method waits: `ready` sends what there was no room for,
    and `receive` takes up a message where the last call has left off.
    """

    def __init__(self, name: str, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.name, self.sock = name, sock
        self._out = Outbox(sock)
        self._messages = self._received()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def sending(self) -> bool:
        return bool(self._out)

    def send(self, text: str, blocks: Sequence[memoryview] = ()) -> None:
        """Send a message. The blocks must not change until it has left."""
        line = text.encode()
        header = HEADER.pack(len(line), sum(map(len, blocks)))
        self._out.add(memoryview(header + line), *blocks)
        self.push()

    def push(self) -> None:
        """Send as much as there is room for. That the peer is gone is found by `receive`."""
        try:
            self._out.push()
        except OSError:
            self._out.clear()

    def receive(self) -> Message | None:
        """The next message, its block as an array of bytes; None if it has not come whole. Raises
        `ConnectionError` once the peer is gone.
        """
        return next(self._messages)

    def _received(self) -> Generator[Message | None, None, None]:
        while True:
            sizes = HEADER.unpack((yield from self._filled(bytearray(HEADER.size))))
            text = yield from self._filled(bytearray(sizes[0]))
            block = yield from self._filled(np.empty(sizes[1], np.uint8))
            yield text.decode(), block

    def _filled(self, buffer: Any) -> Generator[None, None, Any]:
        """A buffer, once it is full; None each time that nothing more has come."""
        missing = memoryview(buffer)
        while len(missing):
            try:
                got = self.sock.recv_into(missing)
            except BlockingIOError:
                yield None
                continue
            if not got:
                raise ConnectionResetError(f"{self.name} is gone")
            missing = missing[got:]
        return buffer


def ready(peers: Iterable[Peer | socket.socket], seconds: float | None = None) -> list[Any]:
    """Those of the peers and doors at which something has come, after at most `seconds`. What waits
    to be sent is sent meanwhile.
    """
    poll, known = select.poll(), {each.fileno(): each for each in peers}
    for each in known.values():
        sending = isinstance(each, Peer) and each.sending
        poll.register(each, select.POLLIN | (select.POLLOUT if sending else 0))
    events = poll.poll(None if seconds is None else max(0, int(seconds * 1000)))
    for fd, event in events:
        if event & select.POLLOUT and isinstance(peer := known[fd], Peer):
            peer.push()
    return [known[fd] for fd, event in events if event & ~select.POLLOUT]
