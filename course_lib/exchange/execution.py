"""One call of one rank: its rounds, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from course_lib.collectives.schedule import Schedule
from course_lib.exchange.group import Group
from course_lib.exchange.link import Link, clock
from course_lib.exchange.program import Incoming, Outgoing, Program, Received, Step
from course_lib.trace import Message

PIECE = 1 << 20  # bytes: small enough to be in a core's cache still when the next rank reads it, large enough to be worth waking up for


@dataclass(frozen=True)
class Call:
    """A schedule with a length and a dtype, as one rank carries it out. A message goes in pieces: piece k has the k-th part of all its chunks."""

    schedule: Schedule
    program: Program
    length: int
    dtype: np.dtype
    about: dict[str, Any]
    text: bytes
    ends: list[int]  # of the chunks, in elements
    piece: int  # in elements
    pieces: list[int]  # of each chunk; one that is empty has one too

    @classmethod
    def of(cls, schedule: Schedule, program: Program, length: int, dtype: np.dtype) -> Call:
        about = {"algorithm": schedule.name, "schedule": schedule.digest, "length": length, "dtype": dtype.str}
        ends = schedule.bounds(length).tolist()
        piece = max(1, PIECE // dtype.itemsize)
        pieces = [max(1, -(-(b - a) // piece)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
        return cls(schedule, program, length, dtype, about, json.dumps(about).encode(), ends, piece, pieces)

    def span(self, chunk: int, k: int) -> slice:
        """Where piece k of a chunk is, in elements; nowhere if the chunk has no such piece."""
        end = self.ends[chunk + 1]
        start = min(self.ends[chunk] + k * self.piece, end)
        return slice(start, min(start + self.piece, end))

    def count(self, message: Outgoing | Incoming) -> int:
        """How many pieces a message has."""
        return max([self.pieces[part.chunk] for part in message.parts])

    def most(self, messages: Sequence[Outgoing | Incoming]) -> int:
        return max([self.count(m) for m in messages], default=0)


Spot = tuple[bool, int, int]  # shared or not, chunk, piece


@dataclass
class Execution:
    """Carries out `call` on `mine`, the caller's array, with the help of `shared`, the buffer that ranks of this host read (it may be the same).

    `record` takes a `Message` for each transfer that was received; `scratch(n)` gives an array of n elements to receive into.
    """

    call: Call
    mine: np.ndarray
    shared: np.ndarray
    group: Group
    record: Callable[[Message], None] | None
    scratch: Callable[[int], np.ndarray]
    unread: dict[Spot, list[tuple[Link, int]]] = field(default_factory=dict)  # by whom, and its how manieth piece it is
    known: set[int] = field(default_factory=set)  # peers that are about the same
    begun: dict[int, float] = field(default_factory=dict)  # peer -> when its message of this round was handed over

    def run(self) -> None:
        """Returns when this rank has its result, and the system has all that goes to other hosts. Ranks of this host may still read."""
        steps = self.call.program.steps
        for k in range(self.call.most(steps[0].sends) if steps else 0):
            self._offer(steps[0], k)
        for number, step in enumerate(steps):
            self.group.round = number
            following = steps[number + 1] if number + 1 < len(steps) else Step((), ())
            received = self.call.most(step.receives)
            for k in range(max(received, self.call.most(following.sends))):
                if k < received:
                    self._receive(step, k)
                self._offer(following, k)  # it is as it should be at the start of the next round
        for peer in self.call.program.sent_to:
            link = self.group.links[peer]
            while link.sending:
                self.group.wait(link, room=True)

    def _offer(self, step: Step, k: int) -> None:
        """Hand over piece k of all messages of a round."""
        for message in step.sends:
            if k >= self.call.count(message):
                continue
            link, views = self.group.links[message.peer], []
            for chunk, enters, shared, _ in message.parts:
                span = self.call.span(chunk, k)
                if enters:
                    np.copyto(self.shared[span], self.mine[span])
                if not link.near:
                    views.append(_bytes((self.shared if shared else self.mine)[span]))
            link.offer(views)
            for chunk, _, shared, guarded in message.parts:
                if guarded:
                    self.unread.setdefault((shared, chunk, k), []).append((link, link.offered))

    def _receive(self, step: Step, k: int) -> None:
        """Take piece k of all messages of a round. What is staged is written when all have been read, so that ranks never wait in a circle."""
        staged: dict[int, tuple[Received, np.ndarray]] = {}
        for message in step.receives:
            pieces = self.call.count(message)
            if k >= pieces:
                continue
            link = self.group.links[message.peer]
            while not link.stamps:
                self.group.wait(link)
            if message.peer not in self.known:
                self._check(link)
            stamp = link.stamps.popleft()
            if k == 0:
                self.begun[message.peer] = stamp
            if link.near:
                for part in message.parts:
                    self._apply(part, k, link.theirs[self.call.span(part.chunk, k)], staged)
            else:
                self._read(link, message, k, staged)
            link.taken += 1
            if link.near and message.confirm:
                link.confirm()
            if self.record and k == pieces - 1:
                self._note(message)
        for part, value in staged.values():
            self._until_read(part, k)
            self._write(part, k, value)

    def _check(self, link: Link) -> None:
        """Before anything of a peer is read: is it about the same?"""
        if link.text != self.call.text:
            raise self.group.disagree(link.peer, link.about)
        if link.window:
            link.theirs = link.window.array(self.call.length, self.call.dtype)
        self.known.add(link.peer)

    def _read(self, link: Link, message: Incoming, k: int, staged: dict[int, tuple[Received, np.ndarray]]) -> None:
        """Read what comes over the network. What takes the place of something goes straight there."""
        spans = [self.call.span(part.chunk, k) for part in message.parts]
        room = self.scratch(sum([span.stop - span.start for span, part in zip(spans, message.parts, strict=True) if part.reduce]))
        came = []
        for part, span in zip(message.parts, spans, strict=True):
            if part.reduce:
                came.append(room[: span.stop - span.start])
                room = room[span.stop - span.start :]
            else:
                self._until_read(part, k)
                came.append((self.shared if part.target else self.mine)[span])
        views = [_bytes(target) for target in came if target.size]
        while not link.take(views):
            self.group.wait(link)
        for part, value in zip(message.parts, came, strict=True):
            self._apply(part, k, value, staged)

    def _apply(self, part: Received, k: int, came: np.ndarray, staged: dict[int, tuple[Received, np.ndarray]]) -> None:
        """Do with a piece that came what its transfer says."""
        if not part.reduce:
            self._until_read(part, k)
            self._write(part, k, came)
            return
        span = self.call.span(part.chunk, k)
        there = (self.shared if part.source else self.mine)[span]
        if part.staged:
            value = staged[part.chunk][1] if part.chunk in staged else there
            staged[part.chunk] = part, np.add(value, came)
            return
        self._until_read(part, k)
        self._write(part, k, np.add(there, came, out=(self.shared if part.target else self.mine)[span]))

    def _write(self, part: Received, k: int, value: np.ndarray) -> None:
        """Put the result of a transfer where it belongs, if it is not there already."""
        span = self.call.span(part.chunk, k)
        target = (self.shared if part.target else self.mine)[span]
        if value.ctypes.data != target.ctypes.data:
            np.copyto(target, value)
        if part.leaves:
            np.copyto(self.mine[span], target)

    def _until_read(self, part: Received, k: int) -> None:
        """Wait until nobody needs what was where the result of a transfer goes."""
        for link, number in self.unread.pop((part.target, part.chunk, k), ()):
            while link.cleared < number:
                self.group.wait(link, room=True)

    def _note(self, message: Incoming) -> None:
        assert self.record
        schedule, ends = self.call.schedule, self.call.ends
        src, dst = schedule.task(message.peer), schedule.task(self.group.rank)
        start, end = self.begun[message.peer], clock()
        for part in message.parts:
            size = (ends[part.chunk + 1] - ends[part.chunk]) * self.call.dtype.itemsize
            self.record(Message(dst, src, dst, size, self.group.round, part.chunk, start, end))


def _bytes(part: np.ndarray) -> memoryview:
    return memoryview(part.view(np.uint8)) if part.size else memoryview(b"")
