"""Messages between two processes of ours: JSON objects, one per line, over an inherited socket that
has no address.
"""

import json
import socket
from typing import Any


class Channel:
    """One end of a socket pair. What comes through it is never code: JSON, no pickles."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, **message: Any) -> bool:
        """Send one message; False when the other side is gone."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
            return True
        except OSError:
            return False

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait for data and return the whole messages in it (maybe none yet), or None when the
        other side is gone. Raises `TimeoutError` if the socket has a time-out and nothing came.
        """
        try:
            data = self.sock.recv(65536)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.sock.close()


def pair() -> tuple[Channel, socket.socket]:
    """A channel for this process and the bare socket for the other one."""
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs
