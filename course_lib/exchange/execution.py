"""Carries out the program of one rank on real bytes, operation by operation."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from course_lib.collectives.program import MINE, SHARED, SPARE, Offer, Part, Program, Reads, Take
from course_lib.collectives.schedule import Schedule
from course_lib.exchange.connection import Connection
from course_lib.exchange.group import Group
from course_lib.exchange.memory import Segment
from course_lib.record.events import Message, clock


class Call(NamedTuple):
    """A schedule with a length and a dtype, and this rank's program for it. `about` is the same
    as JSON; ranks send it to each other, since all must make the same call.
    """

    schedule: Schedule
    program: Program
    length: int
    dtype: np.dtype
    about: str


class Execution:
    """Carries out `call` on `mine`, the caller's array, and on the `segment` that ranks of this
    host read. `mine` is None if the caller's numbers are in the segment.

    `record` is called with a `Message` for each transfer that was received. `spares`: spare arrays,
    kept from call to call because allocating them costs more time than using them.
    """

    def __init__(
        self,
        call: Call,
        mine: np.ndarray | None,
        segment: Segment,
        group: Group,
        record: Callable[[Message], None] | None,
        spares: dict[int, np.ndarray],
    ) -> None:
        self.call, self.segment, self.group, self.record = call, segment, group, record
        self.connections, self.spares = group.connections, spares
        shared = segment.array(call.length, call.dtype)
        self.buffers = (shared if mine is None else mine, shared)  # at index MINE and SHARED
        self.known: set[int] = set()  # peers whose call is the same
        self.begun: dict[int, float] = {}  # peer -> when its message of this round was offered
        self.before: dict[int, int] = {}  # peer -> pieces offered before this call

    def run(self) -> None:
        """Return when this rank has its result, and the system has taken all bytes for other hosts.
        Ranks of this host may still read from the shared buffer.
        """
        program = self.call.program
        self.group.begin(self.call.about, program.peers)
        for peer in program.sent_to:
            self.connections[peer].say(self.call.about, self.segment)
            self.before[peer] = self.connections[peer].offered
        for op in program.operations:
            if isinstance(op, Offer):
                self._offer(op)
            elif isinstance(op, Take):
                self._take(op)
            else:
                self._until_read(op.after)
                came = self._at(op.source, op.span)
                self._apply(Part(None, op.target, op.leaves, op.span), came)
        for peer in program.sent_to:
            while self.connections[peer].sending:
                self.group.wait(self.connections[peer], room=True)

    def _offer(self, op: Offer) -> None:
        mine, shared = self.buffers
        for span in op.enters:
            np.copyto(shared[span], mine[span])
        connection = self.connections[op.peer]
        far = () if connection.near else op.parts
        connection.offer([_bytes(self.buffers[place][span]) for place, span in far])

    def _take(self, op: Take) -> None:
        connection = self.connections[op.peer]
        self._await(op, connection)
        self._until_read(op.after)
        if connection.near:
            for part in op.parts:
                self._apply(part, connection.theirs[part.span])
        else:
            self._read(connection, op)
        connection.confirm()
        if self.record and op.chunks:
            self._note(op, self.record)

    def _await(self, op: Take, connection: Connection) -> None:
        self.group.round = op.round
        while connection.left:
            self.group.wait(connection)
        if op.peer not in self.known:
            self._check(connection)
        stamp, _ = connection.stamps.popleft()
        if op.first:
            self.begun[op.peer] = stamp

    def _check(self, connection: Connection) -> None:
        """Raise `Mismatch` if a peer's call is not ours; called before anything of the peer is
        read.
        """
        if connection.about != self.call.about:
            raise self.group.disagree(connection.peer, connection.about)
        if connection.window:
            connection.theirs = connection.window.array(self.call.length, self.call.dtype)
        self.known.add(connection.peer)

    def _until_read(self, reads: Reads) -> None:
        for peer, pieces in reads:
            self.group.wait_until_clear(self.connections[peer], self.before[peer] + pieces)

    def _apply(self, part: Part, came: np.ndarray) -> None:
        target = self._at(part.target, part.span)
        if part.source is None:
            np.copyto(target, came)
        else:
            np.add(self._at(part.source, part.span), came, out=target)
        if part.leaves:
            np.copyto(self.buffers[MINE][part.span], target)

    def _read(self, connection: Connection, op: Take) -> None:
        """Read a piece from the network: parts to be added go into a spare array, the others
        straight to their places.
        """
        added = sum([p.span.stop - p.span.start for p in op.parts if p.source is not None])
        room = self._spare(0, added)
        came = []
        for part in op.parts:
            if part.source is None:
                came.append(self._at(part.target, part.span))
            else:
                length = part.span.stop - part.span.start
                came.append(room[:length])
                room = room[length:]
        views = [_bytes(target) for target in came if target.size]
        while not connection.take(views):
            self.group.wait(connection)
        for part, value in zip(op.parts, came, strict=True):
            if part.source is not None:
                self._apply(part, value)
            elif part.leaves:
                np.copyto(self.buffers[MINE][part.span], value)

    def _at(self, place: int, span: slice) -> np.ndarray:
        if place <= SHARED:
            return self.buffers[place][span]
        return self._spare(1 + place - SPARE, span.stop - span.start)

    def _spare(self, number: int, length: int) -> np.ndarray:
        """The `number`-th spare array, shape (length,)."""
        size = length * self.call.dtype.itemsize
        if number not in self.spares or len(self.spares[number]) < size:
            self.spares[number] = np.empty(size, np.uint8)
        return self.spares[number][:size].view(self.call.dtype)

    def _note(self, op: Take, record: Callable[[Message], None]) -> None:
        task, itemsize, end = self.call.schedule.task, self.call.dtype.itemsize, clock()
        src, dst, start = task(op.peer), task(self.group.rank), self.begun[op.peer]
        for chunk, length in op.chunks:
            record(Message(dst, src, dst, length * itemsize, op.round, chunk, start, end))


def _bytes(part: np.ndarray) -> memoryview:
    return part.view(np.uint8).data if part.size else memoryview(b"")
