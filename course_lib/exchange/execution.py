"""One call of one rank: its rounds, piece by piece."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.exchange.call import Call, Coming, Moves
from course_lib.exchange.connection import Connection, clock
from course_lib.exchange.group import Group
from course_lib.exchange.program import Received
from course_lib.record.events import Message

Staged = dict[int, tuple[Received, slice, np.ndarray]]


class Execution:
    """Carries out `call` on `mine`, the caller's array, with the help of `shared`, the buffer that
    ranks of this host read (it may be the same).

    `record` takes a `Message` for each transfer that came; `spare(i, n)` gives the i-th of some
    arrays of n elements, for numbers that have to wait.
    """

    def __init__(
        self,
        call: Call,
        mine: np.ndarray,
        shared: np.ndarray,
        group: Group,
        record: Callable[[Message], None] | None,
        spare: Callable[[int, int], np.ndarray],
    ) -> None:
        self.call, self.group, self.links, self.record, self.spare = (
            call,
            group,
            group.links,
            record,
            spare,
        )
        self.buffers = (mine, shared)  # at index False and True of `shared`, `source` and `target`
        # shared or not, chunk, piece -> when each reader has it
        self.unread: dict[tuple[bool, int, int], list[tuple[Connection, int]]] = {}
        self.known: set[int] = set()  # peers that are about the same
        self.begun: dict[int, float] = {}  # peer -> when its message of this round was handed over

    def run(self) -> None:
        """Returns when this rank has its result, and the system has all that goes to other hosts.

        Ranks of this host may still read.
        """
        rounds = self.call.rounds
        for k in range(len(rounds[0].sends) if rounds else 0):
            self._offer(rounds[0], k)
        for number, moves in enumerate(rounds):
            self.group.round = number
            following = rounds[number + 1] if number + 1 < len(rounds) else Moves([], [])
            received, sent = len(moves.receives), len(following.sends)
            for k in range(max(received, sent)):
                if k < received:
                    self._receive(moves, k)
                if k < sent:  # this piece is as it should be at the start of the next round
                    self._offer(following, k)
        for peer in self.call.program.sent_to:
            link = self.links[peer]
            while link.sending:
                self.group.wait(link, room=True)

    def _offer(self, moves: Moves, k: int) -> None:
        """Hand over piece k of all messages of a round."""
        mine, shared = self.buffers
        for peer, parts, guards in moves.sends[k]:
            link = self.links[peer]
            for part, span in parts:
                if part.enters:
                    np.copyto(shared[span], mine[span])
            link.offer(
                []
                if link.near
                else [_bytes(self.buffers[part.shared][span]) for part, span in parts]
            )
            for where, chunk in guards:
                self.unread.setdefault((where, chunk, k), []).append((link, link.offered))

    def _receive(self, moves: Moves, k: int) -> None:
        """Take piece k of all messages of a round.

        What is staged is written when all have been read, so that ranks never wait in a circle.
        """
        staged: Staged = {}
        for coming in moves.receives[k]:
            link = self.links[coming.peer]
            while not link.stamps:
                self.group.wait(link)
            if coming.peer not in self.known:
                self._check(link)
            stamp = link.stamps.popleft()
            if coming.first:
                self.begun[coming.peer] = stamp
            if link.near:
                theirs = link.theirs
                for part, span, chunks in coming.parts:
                    self._apply(part, span, chunks, k, theirs[span], staged)
            else:
                self._read(link, coming, k, staged)
            link.taken += 1
            if link.near and coming.confirm:
                link.confirm()
            if self.record and coming.last:
                self._note(coming)
        for part, span, value in staged.values():
            self._until_read(part, (part.chunk,), k)
            self._write(part, span, value)

    def _check(self, link: Connection) -> None:
        """Before anything of a peer is read: is it about the same?"""
        if link.text != self.call.text:
            raise self.group.disagree(link.peer, link.about)
        if link.window:
            link.theirs = link.window.array(self.call.length, self.call.dtype)
        self.known.add(link.peer)

    def _read(self, link: Connection, coming: Coming, k: int, staged: Staged) -> None:
        """Read what comes over the network: what is to be added into a spare array, the rest
        straight to its place.
        """
        room = self.spare(
            0, sum([span.stop - span.start for part, span, _ in coming.parts if part.reduce])
        )
        came = []
        for part, span, chunks in coming.parts:
            if part.reduce:
                came.append(room[: span.stop - span.start])
                room = room[span.stop - span.start :]
            else:
                self._until_read(part, chunks, k)
                came.append(self.buffers[part.target][span])
        views = [_bytes(target) for target in came if target.size]
        while not link.take(views):
            self.group.wait(link)
        for (part, span, chunks), value in zip(coming.parts, came, strict=True):
            if part.reduce:
                self._apply(part, span, chunks, k, value, staged)
            elif part.leaves:
                np.copyto(self.buffers[False][span], value)

    def _apply(
        self,
        part: Received,
        span: slice,
        chunks: tuple[int, ...],
        k: int,
        came: np.ndarray,
        staged: Staged,
    ) -> None:
        """Do with a piece that came what its transfer says."""
        if part.staged:
            if part.chunk in staged:
                there = value = staged[part.chunk][2]
            else:
                there, value = (
                    self.buffers[part.source][span],
                    self.spare(1 + len(staged), span.stop - span.start),
                )
            staged[part.chunk] = part, span, np.add(there, came, out=value)
            return
        if self.unread:
            self._until_read(part, chunks, k)
        if not part.reduce:
            self._write(part, span, came)
            return
        target = self.buffers[part.target][span]
        np.add(self.buffers[part.source][span], came, out=target)
        if part.leaves:
            np.copyto(self.buffers[False][span], target)

    def _write(self, part: Received, span: slice, value: np.ndarray) -> None:
        """Put a piece where it belongs."""
        np.copyto(self.buffers[part.target][span], value)
        if part.leaves:
            np.copyto(self.buffers[False][span], value)

    def _until_read(self, part: Received, chunks: tuple[int, ...], k: int) -> None:
        """Wait until nobody needs what was where the result of a transfer goes."""
        for shared in {part.target, part.target and not part.leaves}:
            for chunk in chunks:
                for link, number in self.unread.pop((shared, chunk, k), ()):
                    self.group.wait_until_clear(link, number)

    def _note(self, coming: Coming) -> None:
        assert self.record
        task = self.call.schedule.task
        src, dst, start, end = (
            task(coming.peer),
            task(self.group.rank),
            self.begun[coming.peer],
            clock(),
        )
        for chunk, size in coming.transfers:
            self.record(Message(dst, src, dst, size, self.group.round, chunk, start, end))


def _bytes(part: np.ndarray) -> memoryview:
    return part.view(np.uint8).data if part.size else memoryview(b"")
