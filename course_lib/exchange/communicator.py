"""Communicator: one rank of a group of processes that carry out schedules together.

Every rank has a buffer in shared memory. To send a piece to a rank of the same host, it only tells
that rank that the piece is ready there; the receiver reads it in place, and adds or copies it. To
another host the bytes go over TCP. A rank's operations and their order are computed beforehand
(`collectives.program`) and then carried out, one by one. There is no barrier.
"""

import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from course_lib.collectives.program import MINE, SHARED, SPARE, Offer, Part, Program, Take, program
from course_lib.collectives.schedule import Schedule
from course_lib.errors import LockstepError, SpecError
from course_lib.exchange.connection import Connection
from course_lib.exchange.group import Group, Meeting
from course_lib.exchange.memory import Segment
from course_lib.network.layout import Wires
from course_lib.record.events import Message, clock

PATIENCE = 30.0  # seconds
_KEPT = 64  # prepared calls that are kept for use again
_PAGE = 1 << 16
Spares = dict[int, np.ndarray]


class Call(NamedTuple):
    """A schedule with a length and a dtype, and this rank's program for it. `about` is the same
    as JSON; ranks send it to each other, since all must make the same call.
    """

    schedule: Schedule
    program: Program
    length: int
    dtype: np.dtype
    about: str


class Communicator:
    """Rank `rank` of a group that meets in `directory`; `place` is the host of each rank, and
    `address` where other hosts reach this one.

    `record` is called with a `Message` for each transfer that this rank receives. `patience`: how
    many seconds it waits for a rank that gives no sign of life. `wires`: the links between hosts,
    if this exchange imposes them itself; they are closed with the group. `entered` is called with
    each call that is made: what it does, its size in bytes and its array in words; what it returns
    is called when the call is over. Only one thread at a time may use it.
    """

    def __init__(
        self,
        rank: int,
        place: Sequence[int],
        directory: Path | str,
        record: Callable[[Message], None] | None = None,
        patience: float = PATIENCE,
        address: str = "127.0.0.1",
        wires: Wires | None = None,
        entered: Callable[[str, int, str], Callable[[], None]] | None = None,
    ) -> None:
        self.rank, self.place, self._entered = rank, tuple(place), entered
        self._group = Group(Meeting(Path(directory), rank, self.place, address), patience, wires)
        self.record = record
        self._calls: dict[tuple[int, int, np.dtype, bool], Call] = {}
        self._segment: Segment | None = None
        self._spares: Spares = {}
        self._broken: Exception | None = None
        self._closed = False

    def execute(self, schedule: Schedule, array: np.ndarray) -> None:
        """Carry out a schedule that `verify` accepts, in place: `array` holds this rank's
        contribution before, and its result after.

        All ranks call it with the same schedule and with an array of the same length and dtype: any
        shape, any length, 0 included, any dtype that has an addition. A server brings zeros. Raises
        `SpecError` for an array or a schedule that does not fit; `Mismatch` on all ranks if they do
        not agree on the call; `RankLost` if a rank dies or gives no sign of life. After `Mismatch`
        or `RankLost` the group cannot be used any more.
        """
        if not array.flags.writeable:
            allowed = "an array that can be written: it holds the result in the end"
            raise SpecError("array", "read-only", allowed)
        flat = np.ascontiguousarray(array).reshape(-1)
        self._carry_out(self._call(schedule, flat.size, flat.dtype, private=True), flat)
        if not np.may_share_memory(flat, array):
            array[...] = flat.reshape(array.shape)

    def buffer(self, schedule: Schedule, length: int, dtype: Any) -> np.ndarray:
        """The shared buffer itself, shape (length,), for `execute_buffer`."""
        call = self._call(schedule, length, np.dtype(dtype), private=False)
        return self._segment_for(call).array(call.length, call.dtype)

    def execute_buffer(self, schedule: Schedule, length: int, dtype: Any) -> None:
        """Like `execute`, but in place in `buffer`, without a copy. Read the result before the next
        call.
        """
        self._carry_out(self._call(schedule, length, np.dtype(dtype), private=False), None)

    @property
    def buffered(self) -> int:
        """Bytes of this rank's buffer."""
        return self._segment.size if self._segment else 0

    def close(self) -> None:
        """Leave the group, once the peers have read what they need from our buffer."""
        if self._closed:
            return
        self._closed = True
        if self._broken:
            self._group.close()
        else:
            # an error of another rank does not matter any more
            with contextlib.suppress(LockstepError):
                self._group.settle()
            self._group.close(self._group.patience)
        if self._segment:
            self._segment.close()
            self._segment = None
        self._calls.clear()
        self._spares.clear()

    def _call(self, schedule: Schedule, length: int, dtype: np.dtype, private: bool) -> Call:
        """The prepared call. It is kept, since training makes the same calls in every step."""
        if self._broken:
            raise self._broken
        key = (id(schedule), length, dtype, private)
        if key not in self._calls:
            if schedule.ranks != len(self.place):
                needs = f"is for {schedule.ranks} ranks, and this group has {len(self.place)}"
                raise SpecError("schedule", schedule.name, needs)
            check_dtype(dtype)
            mine = program(schedule, self.place, self.rank, length, dtype.itemsize, private)
            kind = dtype.name if dtype.kind == "V" else dtype.str
            about = {"algorithm": schedule.name, "schedule": schedule.digest, "length": length}
            about_it = json.dumps(about | {"dtype": kind})
            self._calls[key] = Call(schedule, mine, length, dtype, about_it)
            if len(self._calls) > _KEPT:
                self._calls.pop(next(iter(self._calls)))
        return self._calls[key]

    def _segment_for(self, call: Call) -> Segment:
        """The segment for a call; waits until no peer needs what the last call left there."""
        with self._blame():
            self._group.settle()
        size = call.length * call.dtype.itemsize
        if self._segment is None or self._segment.size < size:
            old, self._segment = self._segment, Segment(max(size, _PAGE))
            if old:
                old.close()
        return self._segment

    def _carry_out(self, call: Call, mine: np.ndarray | None) -> None:
        what = f"{call.schedule.kind} by {call.schedule.name}"
        size, about = call.length * call.dtype.itemsize, f"({call.length},) {call.dtype}"
        leave = self._entered(what, size, about) if self._entered else None
        execution = _Execution(self._group, call, mine, self._segment_for(call), self._spares)
        with self._blame():
            execution.run(self.record)
        if leave:
            leave()

    @contextlib.contextmanager
    def _blame(self) -> Iterator[None]:
        """Let an error inside the block end the group, and tell all ranks why."""
        try:
            yield
        except BaseException as error:
            self._group.accuse(self.rank, f"it failed: {type(error).__name__}: {error}"[:500])
            self._broken = LockstepError(f"this group has failed before: {error!r}")
            if isinstance(error, LockstepError):
                self._broken = copy.copy(error)
            raise


class _Execution:
    """Carries out `call` on `mine`, the caller's array, and on the `segment` that ranks of this
    host read. `mine` is None if the caller's numbers are in the segment.

    `spares`: spare arrays, kept from call to call because allocating them costs more time than
    using them.
    """

    def __init__(
        self, group: Group, call: Call, mine: np.ndarray | None, segment: Segment, spares: Spares
    ) -> None:
        self.group, self.call, self.segment = group, call, segment
        self.connections, self.spares = group.connections, spares
        shared = segment.array(call.length, call.dtype)
        self.buffers = (shared if mine is None else mine, shared)  # at index MINE and SHARED
        self.known: set[int] = set()  # peers whose call is the same
        self.begun: dict[int, float] = {}  # peer -> when its message of this round was offered
        self.before: dict[int, int] = {}  # peer -> pieces offered before this call

    def run(self, record: Callable[[Message], None] | None) -> None:
        """Return when this rank has its result, and the system has taken all bytes for other hosts.
        Ranks of this host may still read from the shared buffer. `record`: see `Communicator`.
        """
        program = self.call.program
        self.group.begin(self.call.about, program.peers)
        for peer in program.sent_to:
            self.connections[peer].say(self.call.about, self.segment)
            self.before[peer] = self.connections[peer].offered
        for op in program.operations:
            if isinstance(op, Offer):
                self._offer(op)
                continue
            if isinstance(op, Take):
                self._await(op)
            for peer, pieces in op.after:
                self.group.wait_until_clear(self.connections[peer], self.before[peer] + pieces)
            if isinstance(op, Take):
                self._take(op)
                if record:
                    self._note(op, record)
            else:
                self._store(op.part, self._at(op.source, op.part.span))
        for peer in program.sent_to:
            while self.connections[peer].sending:
                self.group.wait(self.connections[peer], room=True)

    def _offer(self, op: Offer) -> None:
        for place, enters, span in op.parts:
            if enters:
                np.copyto(self.buffers[place][span], self.buffers[MINE][span])
        connection = self.connections[op.peer]
        far = () if connection.near else op.parts
        connection.offer([_bytes(self.buffers[place][span]) for place, _, span in far])

    def _await(self, op: Take) -> None:
        """Wait for the next piece; before the first of a peer is read, compare its call with ours.
        Raises `Mismatch`.
        """
        connection = self.connections[op.peer]
        self.group.round = op.round
        while connection.left:
            self.group.wait(connection)
        if op.peer not in self.known:
            if connection.about != self.call.about:
                raise self.group.disagree(op.peer, connection.about)
            if connection.window:
                connection.theirs = connection.window.array(self.call.length, self.call.dtype)
            self.known.add(op.peer)
        stamp, _ = connection.stamps.popleft()
        if op.first:
            self.begun[op.peer] = stamp

    def _take(self, op: Take) -> None:
        connection = self.connections[op.peer]
        came = [connection.theirs[part.span] for part in op.parts] if connection.near else None
        for part, value in zip(op.parts, came or self._read(connection, op), strict=True):
            self._store(part, value)
        connection.confirm()

    def _note(self, op: Take, record: Callable[[Message], None]) -> None:
        task, itemsize, end = self.call.schedule.task, self.call.dtype.itemsize, clock()
        src, dst, start = task(op.peer), task(self.group.rank), self.begun[op.peer]
        for chunk, length in op.chunks:
            record(Message(dst, src, dst, length * itemsize, op.round, chunk, start, end))

    def _read(self, connection: Connection, op: Take) -> list[np.ndarray | None]:
        """Read a piece from the network: parts to be added go into a spare array, the others
        straight to their places (None).
        """
        came: list[np.ndarray | None] = []
        views = []
        room = self._spare(0, sum([p.span.stop - p.span.start for p in op.parts]))
        for part in op.parts:
            target = self._at(part.target, part.span)
            came.append(None)
            if part.source is not None:
                target, room = room[: len(target)], room[len(target) :]
                came[-1] = target
            views += [_bytes(target)] if target.size else []
        while not connection.take(views):
            self.group.wait(connection)
        return came

    def _store(self, part: Part, came: np.ndarray | None) -> None:
        """Add or copy what came to its place (None: it is there already)."""
        target = self._at(part.target, part.span)
        if came is not None and part.source is not None:
            np.add(self._at(part.source, part.span), came, out=target)
        elif came is not None:
            np.copyto(target, came)
        if part.leaves:
            np.copyto(self.buffers[MINE][part.span], target)

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


def _bytes(part: np.ndarray) -> memoryview:
    return part.view(np.uint8).data if part.size else memoryview(b"")


def check_dtype(dtype: np.dtype) -> None:
    """Raise `SpecError` for a dtype that has no addition."""
    try:
        if dtype.hasobject or dtype.kind in "SU":  # numpy adds texts, too
            raise TypeError
        np.add(np.empty(0, dtype), np.empty(0, dtype), out=np.empty(0, dtype))
    except TypeError:
        raise SpecError("dtype", str(dtype), "a dtype of numbers, which can be added") from None
