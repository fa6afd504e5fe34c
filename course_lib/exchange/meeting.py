"""The directory in which ranks meet: each leaves its addresses there, and the first that finds an
error reports it there to all others.

No data passes through it. Ranks look there when they connect, and when a wait is longer than usual.
"""

import contextlib
import hmac
import json
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

from course_lib.errors import Unavailable

_SECRET = 16  # bytes


class Meeting:
    """One rank's view of the directory. `place` is the host of each rank; `address` is where other
    hosts reach this one.

    Ranks of one host connect by AF_UNIX sockets, over which shared memory can be passed; ranks of
    different hosts by TCP.
    """

    def __init__(
        self, directory: Path, rank: int, place: tuple[int, ...], address: str = "127.0.0.1"
    ) -> None:
        self.directory, self.rank, self.place = directory, rank, place
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory_fd = os.open(directory, os.O_RDONLY)
        self._secret = secrets.token_bytes(_SECRET)
        self.doors: list[socket.socket] = []
        if place.count(place[rank]) > 1:
            self._open(socket.AF_UNIX, self._path(rank))
        if len(set(place)) > 1:
            door = self._open(socket.AF_INET, (address, 0))
            host, port = door.getsockname()
            self._leave(f"{rank}.tcp", {"host": host, "port": port, "secret": self._secret.hex()})

    def near(self, peer: int) -> bool:
        """Return whether a peer is on this host."""
        return self.place[peer] == self.place[self.rank]

    def call(self, peer: int) -> socket.socket | None:
        """A connection to a peer, or None if it is not there yet."""
        secret = b"\0" * _SECRET
        where: str | tuple[str, int]
        if self.near(peer):
            sock, where = socket.socket(socket.AF_UNIX), self._path(peer)
        else:
            known = self.read(f"{peer}.tcp")
            if known is None:
                return None
            sock, where = socket.socket(socket.AF_INET), (known["host"], known["port"])
            secret = bytes.fromhex(known["secret"])
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(5)
        try:
            sock.connect(where)
            sock.sendall(secret + self.rank.to_bytes(4, "little"))
        except (FileNotFoundError, ConnectionError, TimeoutError):
            sock.close()
            return None
        return sock

    def answer(self, door: socket.socket) -> tuple[int, socket.socket] | None:
        """Accept a caller: its rank and the socket; None if it does not know the secret."""
        sock, _ = door.accept()
        sock.settimeout(5)
        with contextlib.suppress(OSError):
            said = sock.recv(_SECRET + 4, socket.MSG_WAITALL)
            # AF_UNIX sockets are guarded by the directory's mode
            expected = self._secret if sock.family == socket.AF_INET else b"\0" * _SECRET
            if len(said) == _SECRET + 4 and hmac.compare_digest(said[:_SECRET], expected):
                if sock.family == socket.AF_INET:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return int.from_bytes(said[_SECRET:], "little"), sock
        sock.close()
        return None

    def accuse(self, verdict: dict[str, Any]) -> dict[str, Any]:
        """Report an error to all ranks. The first report counts, and is returned."""
        self._leave("verdict", verdict, first=True)
        return self.verdict() or verdict

    def verdict(self) -> dict[str, Any] | None:
        """The error that a rank has reported; None if none has."""
        return self.read("verdict")

    def post(self, said: dict[str, Any]) -> None:
        """Show the other ranks what this rank's call is about."""
        self._leave(f"{self.rank}.call", said)

    def posted(self, peer: int) -> dict[str, Any] | None:
        return self.read(f"{peer}.call")

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.directory / name).read_text())
            return found
        except FileNotFoundError:
            return None

    def close(self) -> None:
        for door in self.doors:
            door.close()
        os.close(self._directory_fd)

    def _leave(self, name: str, content: dict[str, Any], first: bool = False) -> None:
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
        door = socket.socket(family)
        if family == socket.AF_UNIX:
            Path(where).unlink(missing_ok=True)
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
