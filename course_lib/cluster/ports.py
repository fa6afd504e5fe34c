"""TCP ports that nobody else will be given while a run goes on.

A port is reserved by binding a socket to it without listening. The system then hands it to no other
process that asks for a free port, while the framework in our own task can still bind it, since both
sides set SO_REUSEADDR (libuv, in torch) or SO_REUSEPORT (gRPC, in TensorFlow).
"""

from __future__ import annotations

import contextlib
import socket

LOOPBACK = "127.0.0.1"


def reserve(count: int) -> list[socket.socket]:
    """`count` sockets, each bound to a free port on the loopback address; the reservation lasts
    while a socket is open.
    """
    held = []
    with contextlib.ExitStack() as undo:
        for _ in range(count):
            sock = undo.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((LOOPBACK, 0))
            held.append(sock)
        undo.pop_all()
    return held


def address(sock: socket.socket) -> str:
    """`host:port` of a reserved socket."""
    host, port = sock.getsockname()
    return f"{host}:{port}"
