"""A connection to one peer: between hosts it carries the bytes of a piece, between ranks of one
host only the message that the piece is ready in shared memory.

A connection carries records: each is a header, followed for some kinds by a payload. A piece for a
peer on this host ("near") has no payload.
"""

import contextlib
import errno
import fcntl
import math
import os
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from course_lib.errors import LIMITS
from course_lib.exchange.memory import Counters, Segment
from course_lib.exchange.messages import Outbox
from course_lib.record.events import clock

# kind, 1 if a descriptor is attached, number, when it was sent, and when it is due at the other end
# (0: as soon as it comes)
HEADER = struct.Struct("<BxxxIqdd")
# what a rank's call is about; a piece of a message; the rank's counters
CALL, DATA, COUNTERS = range(3)
_ROOM = 1 << 16
AWAKE = 200e-6  # seconds for which a waiting rank polls before it sleeps
_INTERVAL = 0.02  # seconds between two checks of what is on its way when a connection is closed


class Connection:
    """Our end of the connection to `peer`. A peer on this host is `near`; we then count the pieces
    that we have read from it in `counters`.

    `offered`: how many pieces were offered to the peer; `cleared`: how many of these are no longer
    needed in our buffer, because a near peer has read them or the system has taken them for a far
    peer. `stamps` holds, for each piece that has come, when the peer offered it and when it is due.
    No method waits for long.

    `due(size)` is the time at which a far piece of that many bytes, offered now, has arrived; given
    if this exchange imposes the links itself.
    """

    def __init__(
        self,
        rank: int,
        peer: int,
        sock: socket.socket,
        counters: Counters | None,
        due: Callable[[int], float] | None = None,
    ) -> None:
        sock.setblocking(False)
        self.rank, self.peer, self.sock, self.near = rank, peer, sock, counters is not None
        self.offered = self._taken = 0
        self._counters = counters
        self._peers_counters: Counters | None = None
        self.stamps: deque[tuple[float, float]] = deque()
        self._due = due
        self.about = ""  # what the peer's last call is about
        self.window: Segment | None = None  # the shared buffer of a near peer
        self.theirs = np.empty(0)  # the same as an array, for this call
        self.heard = clock()
        self.gone = False
        # what the peer knows of our call, and the segment in which our pieces lie
        self._announced: tuple[str, Segment | None] = ("", None)
        self._out = Outbox(sock)
        self._in = bytearray()
        self._descriptors: deque[int] = deque()
        # how many bytes of a far piece are still to come, which must be taken before more is read
        self._payload: int | None = None
        self._ready = select.poll()
        self._ready.register(sock, select.POLLIN)
        if counters:
            self._send(COUNTERS, counters.ranks, fd=counters.segment.fd)

    def fileno(self) -> int:
        return self.sock.fileno()

    # --- to the peer ---

    @property
    def cleared(self) -> int:
        if not self.near:
            return self._out.pieces
        return self._peers_counters[self.rank] if self._peers_counters else 0

    @property
    def sending(self) -> bool:
        return bool(self._out)

    def offer(self, parts: Sequence[memoryview]) -> None:
        """Offer a piece of a message. To a far peer its `parts` are sent as soon as there is room;
        a near peer is only told that the piece is ready (`parts` is empty).
        """
        self.offered += 1
        size = sum(map(len, parts))
        self._send(DATA, size, *parts, due=self._due(size) if self._due else 0.0)

    def confirm(self) -> None:
        """Count a piece of the peer as read, and show that to a near peer."""
        self._taken += 1
        if self._counters:
            self._counters[self.peer] = self._taken

    def say(self, about: str, segment: Segment) -> None:
        """Tell the peer to which call the next pieces belong, and pass it the segment that holds
        them, if either has changed.
        """
        if self._announced == (about, segment):
            return
        attach = self.near and segment is not self._announced[1]
        self._announced, text = (about, segment), about.encode()
        self._send(CALL, len(text), memoryview(text), fd=segment.fd if attach else None)

    def push(self) -> None:
        """Send as much as there is room for. Sets `gone` if the peer is gone."""
        with self._in_touch():
            self._out.push()

    def _send(
        self, kind: int, number: int, *parts: memoryview, due: float = 0.0, fd: int | None = None
    ) -> None:
        header = HEADER.pack(kind, fd is not None, number, clock(), due)
        with self._in_touch():
            if fd is not None:  # nothing waits before it: the peer has read all of the last call
                socket.send_fds(self.sock, [header, *parts], [fd])
            else:
                self._out.add(memoryview(header), *parts, piece=kind == DATA)
                self._out.push()

    @contextlib.contextmanager
    def _in_touch(self) -> Iterator[None]:
        """Leave the block when nothing more can be sent or read now. Any other error says that the
        peer is gone, unless this process is short of something itself.
        """
        try:
            yield
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in LIMITS:
                raise
            self.gone = True

    # --- from the peer ---

    @property
    def left(self) -> float:
        """In how many seconds the next piece can be taken: 0 if now, infinity if none has come."""
        if not self.stamps:
            return math.inf
        due = self.stamps[0][1]
        return max(0.0, due - clock()) if due else 0.0

    def wait(self, seconds: float) -> bool:
        """Wait until there is something to read; return whether there is.

        It polls for a while and yields the core in between, because waking up takes longer than
        most waits.
        """
        awake = clock() + min(AWAKE, seconds)
        while not self._ready.poll(0):
            if clock() > awake:
                return bool(self._ready.poll(int(seconds * 1000)))
            os.sched_yield()
        return True

    def hear(self) -> None:
        """Read the records that have come, up to the payload of a far piece. Sets `gone` at the end
        of the stream.
        """
        with self._in_touch():
            while self._payload is None:
                wanted = _ROOM if self.near else self._lacking()
                data, descriptors, flags, _ = socket.recv_fds(self.sock, wanted, 1)
                if flags & socket.MSG_CTRUNC:  # no room for a descriptor
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                self._descriptors += descriptors
                if not data:
                    raise ConnectionResetError
                self.heard = clock()
                self._in += data
                self._read_records()
                if self.near and len(data) < wanted:
                    return

    def take(self, views: list[memoryview]) -> bool:
        """Read what has come of the payload of a far piece into `views`; return whether it is
        complete.

        Full views are removed from the list.
        """
        with self._in_touch():
            while self._payload:
                got = self.sock.recvmsg_into(views)[0]
                if not got:
                    raise ConnectionResetError
                self.heard = clock()
                self._payload -= got
                while views and got >= len(views[0]):
                    got -= len(views.pop(0))
                if got:
                    views[0] = views[0][got:]
            self._payload = None
            return True
        return False

    def leave(self) -> None:
        """Tell the peer that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self, deadline: float, latest: float) -> None:
        """Close, once the peer has left as well or `deadline` has passed; `latest`, while bytes are
        on their way: if a far connection is closed and the peer says something, these are lost.
        """
        with contextlib.suppress(OSError):
            while not self.near:
                # bytes that the peer's system has still to confirm: see tcp(7), SIOCOUTQ
                on_their_way = any(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))
                if clock() >= (latest if on_their_way else deadline):
                    break
                if self.wait(_INTERVAL) and not self.sock.recv(_ROOM):
                    break
        self.sock.close()
        self.window, self.theirs = None, np.empty(0)  # each mapping holds a descriptor
        self._announced, self._peers_counters = ("", None), None

    def _lacking(self) -> int:
        """Return how many bytes of the next record are missing. Reading more would take bytes of
        its payload.
        """
        if len(self._in) < HEADER.size:
            return HEADER.size - len(self._in)
        # of the records read here, only a CALL is longer than its header
        return HEADER.size + int(HEADER.unpack_from(self._in)[2]) - len(self._in)

    def _read_records(self) -> None:
        at = 0
        while len(self._in) - at >= HEADER.size:
            kind, attached, number, stamp, due = HEADER.unpack_from(self._in, at)
            if kind == CALL and len(self._in) - at < HEADER.size + number:
                break
            at += HEADER.size
            if kind == DATA:
                self._payload = None if self.near else number
                self.stamps.append((stamp, due))
            elif kind == COUNTERS:
                self._peers_counters = Counters(number, self._descriptors.popleft())
            elif kind == CALL:
                self.about = self._in[at : at + number].decode()
                at += number
                if attached:
                    self.window = Segment(fd=self._descriptors.popleft())
        del self._in[:at]
