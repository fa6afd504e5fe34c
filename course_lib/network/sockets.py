"""Meters what tasks send to other nodes, where no network is of the run's own: the kernel counts
the bytes of each TCP connection, and shows those of our own processes to anybody who asks.

A connection between two tasks of this node is left out. What one has carried is known up to the
last reading before it was closed. Source: sock_diag(7), tcp_info.
"""

import contextlib
import re
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from course_lib.record.events import Traffic

HEADERS = 66  # bytes of a segment besides its payload: Ethernet 14, IP 20, TCP 32
_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301  # of netlink
_HEAD = struct.Struct("=IHHII")  # of its messages
_ESTABLISHED = 1 << 1
_INFO = 2  # the attribute with tcp_info, and the bit that asks for it


class Connection(NamedTuple):
    """A connection as the kernel knows it: the number of its socket; address and port of both its
    ends, as bytes; and bytes sent and received, and segments sent and received.
    """

    inode: int
    ends: tuple[bytes, bytes]
    counts: tuple[int, int, int, int]


class Sockets:
    """The meter of this node's tasks; `pids`: the process of each. Where the kernel has none (other
    than Linux), it reads nothing.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.pids = pids
        self._carried: defaultdict[str, dict[int, tuple[int, ...]]] = defaultdict(dict)  # by inode

    def traffic(self, at: float) -> list[Traffic]:
        """Return what each task has exchanged with other nodes so far."""
        if sys.platform != "linux":
            return []
        owners = {inode: task for task, pid in self.pids.items() for inode in _inodes(pid)}
        ours = [each for each in _connections() if each.inode in owners]
        ends = {each.ends for each in ours}
        for inode, (near, far), counts in ours:
            if (far, near) not in ends:
                self._carried[owners[inode]][inode] = counts
        traffic = []
        for task in self.pids:
            counted = [*self._carried[task].values(), (0, 0, 0, 0)]
            sent, received, out, into = map(sum, zip(*counted, strict=True))
            sent, received = sent + HEADERS * out, received + HEADERS * into
            traffic.append(Traffic(task, sent, received, out, into, at))
        return traffic


def _connections() -> Iterator[Connection]:
    """All TCP connections. It is asked often, so only what matters is looked at."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):  # gRPC's are of the second
            request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, _INFO, _ESTABLISHED)
            kernel.send(_HEAD.pack(_HEAD.size + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
            answers = b""
            while True:
                answers = answers or kernel.recv(1 << 18)
                size, kind, *_ = _HEAD.unpack_from(answers)
                if kind != _BY_FAMILY:  # the end, or an error
                    break
                if connection := _connection(answers[_HEAD.size : size]):
                    yield connection
                answers = answers[size:]


def _connection(answer: bytes) -> Connection | None:
    """Read a `struct inet_diag_msg` and the `struct tcp_info` after it."""
    near, far = (answer[p : p + 2] + _address(answer[a : a + 16]) for p, a in ((4, 8), (6, 24)))
    (inode,) = struct.unpack_from("=I", answer, 68)
    at = 72
    while at < len(answer):
        size, kind = struct.unpack_from("=HH", answer, at)
        if kind == _INFO and size >= 4 + 208:
            (sent,) = struct.unpack_from("=Q", answer, at + 4 + 200)
            received, out, into = struct.unpack_from("=QII", answer, at + 4 + 128)
            return Connection(inode, (near, far), (sent, received, out, into))
        at += (size + 3) & ~3
    return None


def _address(given: bytes) -> bytes:
    """One end may call an address of IPv4 one of IPv6."""
    mapped = b"\0" * 10 + b"\xff\xff"
    return given[12:] + bytes(12) if given.startswith(mapped) else given


def _inodes(pid: int) -> set[int]:
    """The sockets that a process has open."""
    inodes = set()
    with contextlib.suppress(OSError):  # it has ended
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if named := re.fullmatch(r"socket:\[(\d+)\]", str(fd.readlink())):
                    inodes.add(int(named[1]))
    return inodes
