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


class Counts(NamedTuple):
    """Bytes of payload, and segments."""

    sent: int = 0
    received: int = 0
    segments_sent: int = 0
    segments_received: int = 0


class Sockets:
    """The meter of this node's tasks. Where the kernel has none (other than Linux), it reads
    nothing.
    """

    def __init__(self) -> None:
        self._carried: defaultdict[str, dict[int, Counts]] = defaultdict(dict)  # by inode

    def traffic(self, pids: Mapping[str, int], at: float) -> list[Traffic]:
        """Return what each task has exchanged with other nodes so far; `pids`: its process."""
        if sys.platform != "linux":
            return []
        owners = {inode: task for task, pid in pids.items() for inode in _inodes(pid)}
        ours = [found for found in _connections() if found.inode in owners]
        ends = {each.ends for each in ours}
        for inode, (near, far), counts in ours:
            if (far, near) not in ends:
                self._carried[owners[inode]][inode] = counts
        return [self._sum(task, at) for task in pids]

    def _sum(self, task: str, at: float) -> Traffic:
        counts = [*self._carried[task].values(), Counts()]
        sent, received, out, into = map(sum, zip(*counts, strict=True))
        return Traffic(task, sent + HEADERS * out, received + HEADERS * into, out, into, at)


class Connection(NamedTuple):
    """A connection as the kernel knows it: the number of its socket, and address and port of both
    its ends, as bytes.
    """

    inode: int
    ends: tuple[bytes, bytes]
    counts: Counts


def _connections() -> Iterator[Connection]:
    """All TCP connections. It is asked often, so only what matters is looked at."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
        asked.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):  # gRPC's are of the second
            request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, _INFO, _ESTABLISHED)
            asked.send(_HEAD.pack(_HEAD.size + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
            yield from filter(None, map(_connection, _answers(asked)))


def _answers(asked: socket.socket) -> Iterator[bytes]:
    while True:
        answers = asked.recv(1 << 18)
        while answers:
            size, kind, *_ = _HEAD.unpack_from(answers)
            if kind != _BY_FAMILY:  # the end, or an error
                return
            yield answers[_HEAD.size : size]
            answers = answers[size:]


def _connection(said: bytes) -> Connection | None:
    """Read a `struct inet_diag_msg` and the `struct tcp_info` after it."""
    near, far = (said[p : p + 2] + _address(said[a : a + 16]) for p, a in ((4, 8), (6, 24)))
    (inode,) = struct.unpack_from("=I", said, 68)
    at = 72
    while at < len(said):
        size, kind = struct.unpack_from("=HH", said, at)
        if kind == _INFO and size >= 4 + 208:
            (sent,) = struct.unpack_from("=Q", said, at + 4 + 200)
            received, out, into = struct.unpack_from("=QII", said, at + 4 + 128)
            return Connection(inode, (near, far), Counts(sent, received, out, into))
        at += (size + 3) & ~3
    return None


def _address(given: bytes) -> bytes:
    """One end may call an address of IPv4 one of IPv6."""
    mapped = b"\0" * 10 + b"\xff\xff"
    return given[12:] + bytes(12) if given.startswith(mapped) else given


def _inodes(pid: int) -> set[int]:
    """The sockets that a process has open."""
    found = set()
    with contextlib.suppress(OSError):  # it has ended
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if named := re.fullmatch(r"socket:\[(\d+)\]", str(fd.readlink())):
                    found.add(int(named[1]))
    return found
