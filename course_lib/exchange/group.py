"""A group: the directory in which its ranks meet, the connections of a rank to its peers, and all
waits for them. Every wait has a bound, after which it raises an error that names a rank.
"""

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from course_lib.errors import LockstepError, Mismatch, RankLost, Unavailable
from course_lib.exchange.connection import AWAKE, Connection
from course_lib.exchange.memory import Counters
from course_lib.network.layout import Wires
from course_lib.record.events import clock

TICK = 0.1  # seconds after which a waiting rank looks at the others
_FAREWELL = 1.0  # seconds for which peers may read the last bytes
_SECRET = 16  # bytes


class Meeting:
    """One rank's view of the directory in which ranks meet: each leaves its addresses there, and
    the first that finds an error reports it there to all others. No data passes through it. Ranks
    look there when they connect, and when a wait is longer than usual.

    `place` is the host of each rank; `address` is where other hosts reach this one. Ranks of one
    host connect by AF_UNIX sockets, over which shared memory can be passed; ranks of different
    hosts by TCP.
    """

    def __init__(
        self, directory: Path, rank: int, place: tuple[int, ...], address: str = "127.0.0.1"
    ) -> None:
        self.directory, self.rank, self.place = directory, rank, place
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory_fd = os.open(directory, os.O_RDONLY)
        self._secret = secrets.token_bytes(_SECRET)
        self.doors: list[socket.socket] = []
        left: dict[str, Any] = {"secret": self._secret.hex()}
        if len(set(place)) > 1:
            left["tcp"] = self._open(socket.AF_INET, (address, 0)).getsockname()
        near = place.count(place[rank]) > 1
        if near:  # nobody may come in with the secret of a rank that was here before
            Path(self._path(rank)).unlink(missing_ok=True)
        self.leave(f"{rank}.door", left)
        if near:
            self._open(socket.AF_UNIX, self._path(rank))

    def near(self, peer: int) -> bool:
        """Return whether a peer is on this host."""
        return self.place[peer] == self.place[self.rank]

    def call(self, peer: int) -> socket.socket | None:
        """A connection to a peer, or None if it is not there yet."""
        if (door := self.read(f"{peer}.door")) is None:
            return None
        near = self.near(peer)
        sock = _socket(socket.AF_UNIX if near else socket.AF_INET)
        sock.settimeout(5)
        try:
            sock.connect(self._path(peer) if near else tuple(door["tcp"]))
            sock.sendall(bytes.fromhex(door["secret"]) + self.rank.to_bytes(4, "little"))
        except (FileNotFoundError, ConnectionError, TimeoutError):
            sock.close()
            return None
        return sock

    def answer(self, door: socket.socket) -> tuple[int, socket.socket] | None:
        """Accept a caller: its rank and the socket; None if it does not know the secret."""
        sock, _ = door.accept()
        sock.settimeout(5)
        with contextlib.suppress(OSError):
            greeting = sock.recv(_SECRET + 4, socket.MSG_WAITALL)
            known = hmac.compare_digest(greeting[:_SECRET], self._secret)
            if known and len(greeting) == _SECRET + 4:
                return int.from_bytes(greeting[_SECRET:], "little"), sock
        sock.close()
        return None

    def read(self, name: str) -> Any:
        """Read what a rank has left; None if there is nothing."""
        with contextlib.suppress(FileNotFoundError):
            return json.loads((self.directory / name).read_text())

    def close(self) -> None:
        for door in self.doors:
            door.close()
        os.close(self._directory_fd)

    def leave(self, name: str, content: dict[str, Any], first: bool = False) -> None:
        """Write a file so that it appears whole; with `first`, only if it does not exist yet."""
        draft = self.directory / f".{name}.{self.rank}"
        draft.write_text(json.dumps(content))
        if first:
            with contextlib.suppress(FileExistsError):
                os.link(draft, self.directory / name)
            draft.unlink()
        else:
            draft.rename(self.directory / name)

    def _open(self, family: socket.AddressFamily, where: Any) -> socket.socket:
        door = _socket(family)
        door.bind(where)
        door.listen(len(self.place))
        self.doors.append(door)
        return door

    def _path(self, rank: int) -> str:
        """The address of a rank's AF_UNIX socket.

        An address may have at most about 100 characters, so on Linux a short path stands for the
        directory.
        """
        if sys.platform == "linux":
            return f"/proc/self/fd/{self._directory_fd}/{rank}"
        path = str(self.directory / str(rank))
        if len(path.encode()) > 100:
            why, cure = f"the path {path} is too long for one", "Set LOCKSTEP_HOME to a short path."
            raise Unavailable("a local socket", why, cure)
        return path


def _socket(family: socket.AddressFamily) -> socket.socket:
    """A socket that sends at once; those that it accepts inherit that."""
    sock = socket.socket(family)
    if family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


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
        return self._error({"rank": rank, "why": why, "round": self.round})

    def disagree(self, peer: int, about: str) -> LockstepError:
        """The error for a peer whose call, which is `about` this, is not ours."""
        calls = {self.rank: self.about, peer: about}
        about_them = [json.loads(calls[rank]) for rank in sorted(calls)]
        return self._error({"ranks": sorted(calls), "calls": about_them})

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
        if self.meeting.read("verdict"):
            raise self._error({})
        if now - self._posted > self.patience / 4:
            self._posted = now
            self._compare()  # which is the sign of life
        silent = now - max(connection.heard, self._since) if connection else 0
        if connection and silent > self.patience:
            posted = self.meeting.read(f"{connection.peer}.call")
            if not posted or now - posted["at"] > self.patience:
                why = f"it has given no sign of life for {silent:.1f} s: "
                raise self.accuse(connection.peer, why + "stopped, or busy with something else")

    def _compare(self) -> None:
        """Post what our call is about, and compare it with the calls of all ranks, not only of our
        peers: two ranks with different calls may wait for each other through a third.
        """
        call = {"calls": self.calls, "about": self.about, "at": clock()}
        self.meeting.leave(f"{self.rank}.call", call)
        for peer in range(len(self.meeting.place)):
            posted = self.meeting.read(f"{peer}.call")
            if posted and posted["calls"] == self.calls and posted["about"] != self.about:
                raise self.disagree(peer, posted["about"])

    def _error(self, verdict: dict[str, Any]) -> LockstepError:
        """The error that was reported to all ranks first: this one, if there was none."""
        if verdict:
            self.meeting.leave("verdict", verdict, first=True)
        verdict = self.meeting.read("verdict") or verdict
        return Mismatch(**verdict) if "ranks" in verdict else RankLost(**verdict)
