"""The connections of a rank to its peers, and all waits for them. Every wait has a bound, after
which it raises an error that names a rank.
"""

import json
import os
import select
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from course_lib.errors import LockstepError, Mismatch, RankLost
from course_lib.exchange.connection import AWAKE, Connection
from course_lib.exchange.meeting import Meeting
from course_lib.exchange.memory import Counters
from course_lib.network.wires import Wires
from course_lib.record.events import clock

TICK = 0.1  # seconds after which a waiting rank looks at the others
_FAREWELL = 1.0  # seconds for which peers may read the last bytes


class Group:
    """All connections of this rank. `about` describes its present call, `round` is the round it is
    in.
    """

    def __init__(self, meeting: Meeting, patience: float, wires: Wires | None = None) -> None:
        self.meeting, self.patience, self.wires = meeting, patience, wires
        self.rank = meeting.rank
        self.connections: dict[int, Connection] = {}
        self.about = ""
        self.calls = self.round = 0
        self._since = self._posted = clock()
        self._counters = Counters(len(meeting.place))

    def begin(self, about: str, peers: Sequence[int]) -> None:
        """Begin a call, and make the missing connections to its peers.

        Raises `RankLost` for a peer that does not come in time.
        """
        self.about, self.round, self._since = about, 0, clock()
        self.calls += 1
        pause = 0.001
        while True:
            for peer in peers:  # the higher rank of a pair calls, the lower answers
                absent = peer < self.rank and peer not in self.connections
                if absent and (sock := self.meeting.call(peer)):
                    self._connect(peer, sock)
            missing = [peer for peer in peers if peer not in self.connections]
            if not missing:
                return
            for door in select.select(self.meeting.doors, [], [], pause)[0]:
                if came := self.meeting.answer(door):
                    self._connect(*came)
            waited = clock() - self._since
            pause = min(pause * 1.5, 0.05)
            if waited > TICK:
                self._look_around()
            if waited > self.patience:
                raise self.accuse(missing[0], f"it did not come within {self.patience:g} s")

    def wait(self, connection: Connection, room: bool = False) -> None:
        """Wait a while until there is something to read on a connection or, with `room`, until
        something has been sent. To be called in a loop; meanwhile all other connections go on
        sending.

        Raises `RankLost` or `Mismatch` if waiting is useless.
        """
        busy = [other for other in self.connections.values() if other.sending]
        early = not room and bool(connection.stamps)  # a piece is here, but it is not due yet
        for other in () if early else (connection, *busy):
            if other.gone:
                raise self.accuse(other.peer, "its process is gone")
        listen = not room and not early
        if listen and not busy:
            moved = [connection] if connection.wait(TICK) else []
        else:
            seconds = min(connection.left, TICK) if early else TICK
            heard = [connection] if listen else []
            readable, writable, _ = select.select(heard, busy, [], seconds)
            for other in writable:
                other.push()
            moved = readable + writable
        # a rank that is always busy must give signs of life, too
        if not (moved or early) or clock() - self._posted > self.patience / 4:
            self._look_around(None if early else connection)
        if connection in moved:
            self._since = clock()
            if listen:
                connection.hear()

    def wait_until_clear(self, connection: Connection, pieces: int) -> None:
        """Wait until the first `pieces` pieces sent to a peer are no longer needed in our buffer.

        A near peer does not wake us when it has read one, so we poll: at first all the time, then
        every millisecond.
        """
        start = self._since = looked = clock()
        while connection.cleared < pieces:
            if not connection.near:
                self.wait(connection, room=True)
            elif clock() - start < AWAKE:
                os.sched_yield()
            elif connection.gone:
                raise self.accuse(connection.peer, "its process is gone")
            else:
                for other in self.connections.values():
                    other.push()
                if connection.wait(0.001):
                    connection.hear()
                if clock() - looked > TICK:
                    looked = clock()
                    self._look_around(connection)

    def settle(self) -> None:
        """Wait until no peer needs anything in our buffer."""
        for connection in self.connections.values():
            self.wait_until_clear(connection, connection.offered)

    def accuse(self, rank: int, why: str) -> LockstepError:
        """The error for a lost rank. All ranks get the same one: the first reported by any rank."""
        return self._error(self.meeting.accuse({"rank": rank, "why": why, "round": self.round}))

    def disagree(self, peer: int, about: str) -> LockstepError:
        """The error for a peer whose call, which is `about` this, is not ours."""
        calls = {self.rank: self.about, peer: about}
        told = [json.loads(calls[rank]) for rank in sorted(calls)]
        return self._error(self.meeting.accuse({"ranks": sorted(calls), "calls": told}))

    def close(self, patience: float = _FAREWELL) -> None:
        """Leave; `patience`: how many seconds bytes may still be on their way, as where packets are
        lost and sent again.
        """
        now = clock()
        for connection in self.connections.values():
            connection.leave()
        for connection in self.connections.values():
            connection.close(now + _FAREWELL, now + patience)
        self.connections.clear()
        self._counters.close()
        if self.wires:
            self.wires.close()
        self.meeting.close()

    def _connect(self, peer: int, sock: socket.socket) -> None:
        place, counters, due = self.meeting.place, None, None
        if self.meeting.near(peer):
            counters = self._counters
        elif self.wires:
            due = partial(self.wires.due, place[self.rank], place[peer])
        self.connections[peer] = Connection(self.rank, peer, sock, counters, due)

    def _look_around(self, connection: Connection | None = None) -> None:
        """Give a sign of life, and raise an error if another rank has reported one or is silent."""
        now = clock()
        if verdict := self.meeting.verdict():
            raise self._error(verdict)
        if now - self._posted > self.patience / 4:
            self._posted = now
            self._compare()  # which is the sign of life
        silent = now - max(connection.heard, self._since) if connection else 0
        if connection and silent > self.patience:
            posted = self.meeting.posted(connection.peer)
            if not posted or now - posted["at"] > self.patience:
                why = f"it has given no sign of life for {silent:.1f} s: "
                raise self.accuse(connection.peer, why + "stopped, or busy with something else")

    def _compare(self) -> None:
        """Post what our call is about, and compare it with the calls of all ranks, not only of our
        peers: two ranks with different calls may wait for each other through a third.
        """
        self.meeting.post({"calls": self.calls, "about": self.about, "at": clock()})
        for peer in range(len(self.meeting.place)):
            posted = self.meeting.posted(peer)
            if posted and posted["calls"] == self.calls and posted["about"] != self.about:
                raise self.disagree(peer, posted["about"])

    def _error(self, verdict: dict[str, Any]) -> LockstepError:
        return Mismatch(**verdict) if "ranks" in verdict else RankLost(**verdict)
