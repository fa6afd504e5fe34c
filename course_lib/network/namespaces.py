"""Network namespaces of Linux. A namespace has interfaces, addresses and ports of its own; a
process outside can neither reach nor see what listens there. Only processes and file descriptors
keep a namespace alive: when they are gone, however they ended, it is gone too.

Run as a program, this file tries what the system allows, which only a process of its own can do, as
it cannot be undone. It prints "ok" and the parts of the kernel that are there, or why there is no
private network. It imports nothing of this library, so that it takes no longer than Python's start.
Sources: network_namespaces(7), user_namespaces(7).
"""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

LINKS, QDISCS = ("veth", "bridge"), ("tbf", "netem")
# a request that wants an answer and makes something that is not there yet
_NEWLINK, _NEWQDISC, _NEW = 16, 36, 0x605
_LINKINFO, _KIND, _ROOT = 18, 1, 0xFFFFFFFF
_LOOPBACK = 1


def make_private() -> None:
    """Move this process, and what it will fork, into a network namespace of its own, in which there
    is only loopback.

    A user who may not do that gets a user namespace as well, and keeps user and group in it; that
    takes a process with one thread. Raises `OSError` where the system refuses.
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


def bring_up(interface: str) -> None:
    """Switch an interface of this namespace on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", interface.encode(), _IFF_UP))


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library; Python has these two from 3.12 on."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def parts() -> list[str]:
    """The kinds of interface and of queueing discipline that the kernel has, found by making them
    in the namespace that this process is in.
    """
    found = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        for kind in LINKS:
            info = struct.pack("BxHiII", 0, 0, 0, 0, 0) + _attribute(
                _LINKINFO, _attribute(_KIND, kind.encode())
            )
            found += [kind] if _ask(kernel, _NEWLINK, info) == 0 else []
        # without its settings the kernel makes none; its error tells whether it knows the kind
        for kind in QDISCS:
            info = struct.pack("BxxxiIII", 0, _LOOPBACK, 0, _ROOT, 0) + _attribute(
                _KIND, kind.encode() + b"\0"
            )
            found += [kind] if _ask(kernel, _NEWQDISC, info) != -2 else []
    return found


def _ask(kernel: socket.socket, what: int, body: bytes) -> int:
    """The kernel's answer: 0, or the negative of an errno."""
    kernel.sendall(struct.pack("IHHII", 16 + len(body), what, _NEW, 1, 0) + body)
    return int(struct.unpack_from("i", kernel.recv(65536), 16)[0])


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


if __name__ == "__main__":
    try:
        make_private()
        print("ok")
        print(*parts())
    except OSError as error:
        print(os.strerror(error.errno or 0))
