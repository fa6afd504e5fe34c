"""Network namespaces of Linux, held by nothing but processes and file descriptors: they are gone
when those are, however those end.

A namespace has interfaces, addresses and ports of its own. Who is not in it can neither reach nor
see what listens there. Sources: network_namespaces(7), user_namespaces(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def make_private() -> None:
    """Move this process, and what it will fork, into a network namespace of its own, in which there
    is only loopback.

    Who may not simply do that gets a user namespace as well, in which it keeps its own user and
    group; that takes a process with one thread. Raises `OSError` where the system refuses.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        _call("unshare", _NEWNET)
    except PermissionError:
        _call("unshare", _NEWUSER | _NEWNET)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(text)
    bring_up("lo")


def another() -> int:
    """Move this process into a new namespace, in which there is only loopback, and return a
    descriptor of that.
    """
    _call("unshare", _NEWNET)
    bring_up("lo")
    return current()


def current() -> int:
    """A descriptor of the namespace that this process is in."""
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter(fd: int) -> None:
    """Move this process, and what it will fork, into the namespace that `fd` is a descriptor of."""
    _call("setns", fd, _NEWNET)


@contextlib.contextmanager
def inside(fd: int, back: int) -> Iterator[None]:
    """Be in the namespace `fd` for the block, and then in `back`.

    A process that is forked meanwhile stays there.
    """
    enter(fd)
    try:
        yield
    finally:
        enter(back)


def bring_up(interface: str) -> None:
    """Switch an interface of this namespace on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", interface.encode(), _IFF_UP))


def _call(name: str, *arguments: int) -> None:
    """A function of the C library that Python has from 3.12 on."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
