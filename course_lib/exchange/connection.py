"""A connection to one peer: between hosts it carries the bytes of a piece, between ranks of one
host only the message that the piece is ready in shared memory.

A connection carries records: each is a header, followed for some kinds by a payload. A piece for a
peer on this host ("near") has no payload.
"""

import array
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
from collections.abc import Callable, Sequence

import numpy as np

from course_lib.errors import LIMITS
from course_lib.exchange.memory import Counters, Segment
from course_lib.exchange.messages import NO_DESCRIPTOR, Outbox
from course_lib.record.events import clock

# kind, 1 if a descriptor is attached, number, when it was sent, and when it is due at the other end
# (0: as soon as it comes)
HEADER = struct.Struct("<BxxxIqdd")
# what a rank's call is about; a piece of a message; the rank's counters
CALL, DATA, COUNTERS = range(3)
_ROOM = 1 << 16
_ONE_DESCRIPTOR = socket.CMSG_SPACE(4)
AWAKE = 200e-6  # seconds for which a waiting rank polls before it sleeps

_LOOK = 0.02  # seconds between two looks at what is on its way when a connection is closed


def _header(kind: int, number: int = 0, attached: bool = False, due: float = 0.0) -> bytes:
    return HEADER.pack(kind, attached, number, clock(), due)


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
        self._said: tuple[str, Segment | None] = ("", None)
        self._out = Outbox(sock)
        self._in = bytearray()
        self._descriptors: deque[int] = deque()
        # how many bytes of a far piece are still to come, which must be taken before more is read
        self._payload: int | None = None
        self._ready = select.poll()
        self._ready.register(sock, select.POLLIN)
        if counters:
            self._send(_header(COUNTERS, counters.ranks, attached=True), counters.segment.fd)

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
        header = _header(DATA, size, due=self._due(size) if self._due else 0.0)
        if self.near:
            self._send(header)
            return
        self._out.add_piece(memoryview(header), *parts)
        self.push()

    def confirm(self) -> None:
        """Count a piece of the peer as read, and show that to a near peer."""
        self._taken += 1
        if self._counters:
            self._counters[self.peer] = self._taken

    def say(self, about: str, segment: Segment) -> None:
        """Tell the peer to which call the next pieces belong, and pass it the segment that holds
        them, if either has changed.
        """
        if self._said == (about, segment):
            return
        attach = self.near and segment is not self._said[1]
        self._said, text = (about, segment), about.encode()
        record = _header(CALL, len(text), attach) + text
        self._send(record, segment.fd if attach else NO_DESCRIPTOR)

    def push(self) -> None:
        """Send as much as there is room for. Sets `gone` if the peer is gone."""
        try:
            self._out.push()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        """The connection cannot be used any more: the peer is gone, unless this process is short of
        something itself.
        """
        if error.errno in LIMITS:
            raise error
        self.gone = True

    def _send(self, record: bytes, fd: int = NO_DESCRIPTOR) -> None:
        if fd == NO_DESCRIPTOR and not self._out:  # most often nothing waits, and there is room
            try:
                sent = self.sock.send(record)
            except OSError:  # push() finds out what it is
                sent = 0
            record = record[sent:]
        if record:
            self._out.add_with(fd, memoryview(record))
            self.push()

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
        try:
            while self._payload is None:
                wanted = _ROOM
                if self.near:
                    data, ancillary, flags, _ = self.sock.recvmsg(wanted, _ONE_DESCRIPTOR)
                    if flags & socket.MSG_CTRUNC:  # no room for a descriptor
                        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                    for _, _, content in ancillary:
                        self._descriptors.extend(array.array("i", content))
                else:
                    wanted = self._lacking()
                    data = self.sock.recv(wanted)
                if not data:
                    self.gone = True
                    return
                self.heard = clock()
                self._in += data
                self._read_records()
                if self.near and len(data) < wanted:
                    return
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(error)

    def take(self, views: list[memoryview]) -> bool:
        """Read what has come of the payload of a far piece into `views`; return whether it is
        complete.

        Full views are removed from the list.
        """
        try:
            while self._payload:
                got = self.sock.recvmsg_into(views)[0]
                if not got:
                    self.gone = True
                    return False
                self.heard = clock()
                self._payload -= got
                while views and got >= len(views[0]):
                    got -= len(views.pop(0))
                if got:
                    views[0] = views[0][got:]
        except BlockingIOError:
            return False
        except OSError:
            self.gone = True
            return False
        self._payload = None
        return True

    def leave(self) -> None:
        """Tell the peer that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self, deadline: float, latest: float) -> None:
        """Close, once the peer has left as well or `deadline` has passed; `latest`, while bytes are
        on their way: if a far connection is closed and the peer says something, these are lost.
        """
        with contextlib.suppress(OSError):
            while not self.near and clock() < (latest if self._on_their_way() else deadline):
                if self.wait(_LOOK) and not self.sock.recv(_ROOM):
                    break
        self.sock.close()
        self.window, self.theirs = None, np.empty(0)  # each mapping holds a descriptor
        self._said, self._peers_counters = ("", None), None

    def _on_their_way(self) -> bool:
        """Return whether the peer's system has still to confirm bytes: see tcp(7), SIOCOUTQ."""
        return any(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))

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
