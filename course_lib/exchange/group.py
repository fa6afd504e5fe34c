"""The links of a rank to its peers, and the patience to wait for them: no wait here is without a
bound, and none ends without a name.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from course_lib.errors import LockstepError, Mismatch, RankLost
from course_lib.exchange.board import Board
from course_lib.exchange.connection import AWAKE, Connection, clock
from course_lib.exchange.meeting import Meeting
from course_lib.network.wires import Wires

TICK = 0.1  # seconds after which a rank that waits looks around
_FAREWELL = 1.0  # seconds in which peers should have read the last bytes


class Group:
    """All links of this rank. `about` is what it is doing just now, `round` how far it has got."""

    def __init__(self, meeting: Meeting, patience: float, wires: Wires | None = None) -> None:
        self.meeting, self.patience, self.wires = meeting, patience, wires
        self.rank = meeting.rank
        self.links: dict[int, Connection] = {}
        self.about: dict[str, Any] = {}
        self.calls = self.round = 0
        self._since = self._pulsed = clock()
        self._board = Board(len(meeting.place))

    def begin(self, about: dict[str, Any], peers: Sequence[int]) -> None:
        """Begin a call that says what it is `about`, and have a link to each of its peers."""
        self.about, self.round, self._since = about, 0, clock()
        self.calls += 1
        start, pause = clock(), 0.001
        while True:
            for peer in peers:  # the higher rank of a pair calls, the lower answers
                if (
                    peer < self.rank
                    and peer not in self.links
                    and (sock := self.meeting.call(peer))
                ):
                    self._link(peer, sock)
            missing = [peer for peer in peers if peer not in self.links]
            if not missing:
                return
            for door in select.select(self.meeting.doors, [], [], pause)[0]:
                if came := self.meeting.answer(door):
                    self._link(*came)
            waited = clock() - start
            pause = min(pause * 1.5, 0.05)
            if waited > TICK:
                self._look_around()
            if waited > self.patience:
                raise self.accuse(missing[0], f"it did not come within {self.patience:g} s")

    def wait(self, link: Connection, room: bool = False) -> None:
        """Wait until something has happened on a link, for a while at most; for `room`: until it
        needs less of our buffer. To be called in a loop.

        Raises `RankLost` or `Mismatch` if there is no hope.
        """
        busy = [other for other in self.links.values() if other.sending]
        if not room and link.early:
            if left := link.arrive():
                self._pass(min(left, TICK), busy)
            return
        for other in (link, *busy):
            if other.gone:
                raise self.accuse(other.peer, "its process is gone")
        listen = not room
        if not busy:
            ready = link.wait(TICK)
            idle = not ready
        else:
            poll = select.poll()
            for other in busy:
                poll.register(other.sock, select.POLLOUT)
            if listen:
                poll.register(link.sock, select.POLLIN | (select.POLLOUT if link.sending else 0))
            happened = dict(poll.poll(int(TICK * 1000)))
            for other in busy:
                if happened.get(other.sock.fileno(), 0) & ~select.POLLIN:
                    other.push()
            ready, idle = link.sock.fileno() in happened, not happened
        # also one that always has something to do shows that it lives
        if idle or clock() - self._pulsed > self.patience / 4:
            self._look_around(link)
        if ready:
            self._since = clock()
        if ready and listen:
            link.hear()

    def wait_until_clear(self, link: Connection, pieces: int) -> None:
        """Wait until so many of all pieces that went to a peer are no longer needed in our buffer.

        A peer on this host does not wake us when it has read one. So look: at first all the time,
        then every millisecond.
        """
        start = self._since = looked = clock()
        while link.cleared < pieces:
            if not link.near:
                self.wait(link, room=True)
            elif clock() - start < AWAKE:
                os.sched_yield()
            elif link.gone:
                raise self.accuse(link.peer, "its process is gone")
            else:
                for other in self.links.values():
                    other.push()
                if link.wait(0.001):
                    link.hear()
                if clock() - looked > TICK:
                    looked = clock()
                    self._look_around(link)

    def settle(self) -> None:
        """Wait until no peer needs anything in our buffer."""
        for link in self.links.values():
            self.wait_until_clear(link, link.offered)

    def accuse(self, rank: int, why: str) -> LockstepError:
        """The error for a rank that is lost: all others get the same, unless somebody has found
        another cause before.
        """
        return self._error(self.meeting.accuse({"rank": rank, "why": why, "round": self.round}))

    def disagree(self, peer: int, call: dict[str, Any]) -> LockstepError:
        """The error for a peer that is about something else."""
        ranks, calls = zip(
            *sorted([(self.rank, self.about), (peer, call)], key=lambda one: one[0]), strict=True
        )
        return self._error(self.meeting.accuse({"ranks": ranks, "calls": calls}))

    def close(self) -> None:
        deadline = clock() + _FAREWELL
        for link in self.links.values():
            link.leave()
        for link in self.links.values():
            link.close(deadline)
        self.links.clear()
        self._board.close()
        if self.wires:
            self.wires.close()
        self.meeting.close()

    def _link(self, peer: int, sock: socket.socket) -> None:
        near, place = self.meeting.near(peer), self.meeting.place
        due = (
            partial(self.wires.due, place[self.rank], place[peer])
            if self.wires and not near
            else None
        )
        self.links[peer] = Connection(self.rank, peer, sock, self._board if near else None, due)

    def _pass(self, seconds: float, busy: Sequence[Connection]) -> None:
        """Let time pass until what came is due, and go on sending meanwhile."""
        if clock() - self._pulsed > self.patience / 4:
            self._look_around()
        if not busy:
            time.sleep(seconds)
            return
        for sock in select.select([], [other.sock for other in busy], [], seconds)[1]:
            next(other for other in busy if other.sock is sock).push()

    def _look_around(self, link: Connection | None = None) -> None:
        """What a rank does while nothing comes: show that it lives, and see what the others do."""
        now = clock()
        if verdict := self.meeting.verdict():
            raise self._error(verdict)
        if now - self._pulsed > self.patience / 4:
            self._pulsed = now
            for other in self.links.values():
                other.pulse()
            self._compare()
        silent = now - max(link.heard, self._since) if link else 0
        if (
            link
            and silent > self.patience
            and now - (self.meeting.posted(link.peer) or {"at": 0})["at"] > self.patience
        ):
            raise self.accuse(
                link.peer,
                f"it has given no sign of life for {silent:.1f} s: stopped, or busy with something else",
            )

    def _compare(self) -> None:
        """Say what this call is about, and see whether any rank is about something else: it may
        wait for ranks that wait for others.
        """
        self.meeting.post({"calls": self.calls, "about": self.about, "at": clock()})
        for peer in range(len(self.meeting.place)):
            posted = self.meeting.posted(peer)
            if posted and posted["calls"] == self.calls and posted["about"] != self.about:
                raise self.disagree(peer, posted["about"])

    def _error(self, verdict: dict[str, Any]) -> LockstepError:
        if "ranks" in verdict:
            return Mismatch(verdict["ranks"], verdict["calls"])
        return RankLost(verdict["rank"], verdict["why"], verdict["round"])
