"""Lays out the network of a run without the kernel's help: addresses and ports of its tasks, and
links between hosts where the kernel cannot impose them.

Shared memory then says when each link will be free again. A sender reserves its host's uplink and
the receiver's downlink for as long as the bytes of its message take. That gives the time at which
the message is due, and the receiver does not read it before. So all ranks of a host share its link,
and nobody has to sleep in order to be slow. Only our own exchange keeps to it, not what a framework
sends.
"""

import contextlib
import fcntl
import itertools
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import psutil

from course_lib.spec.fields import Link

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo" if sys.platform == "linux" else "lo0"
INTERFACE = "eth0"
OPEN = "loopback", "nodes"  # networks that are not a run's own
PORT = 2222  # the same for all: each task has an address of its own
# Addresses set apart for tests of networks (RFC 2544). Not those of private networks: a name server
# often has one of them. It cannot be reached from here, and a program that asks it is told so at
# once only if there is no route to it; otherwise it waits for seconds.
_RANGE, PREFIX = (198, 18), 15  # bits that all addresses have in common


def addresses(places: Mapping[str, int]) -> dict[str, str]:
    """The address of each task, from the host of each: 198.18.3.1 is the first task of host 3. The
    second half of the range is for hosts from 256 on, or for tasks of a host from 250 on: no run
    has enough tasks for both.
    """
    taken: Counter[int] = Counter()
    addresses = {}
    for task, host in places.items():
        (high, low), (many, few) = divmod(host, 256), divmod(taken[host], 250)
        addresses[task] = f"{_RANGE[0]}.{_RANGE[1] + high + many}.{low}.{few + 1}"
        taken[host] += 1
    return addresses


def reserve_ports(tasks: Iterable[str], address: str = LOOPBACK) -> dict[str, socket.socket]:
    """For each task a socket that is bound to a free port of an address of this machine and does
    not listen.

    While it is open, the system gives the port to no process that asks for a free one. The
    framework in the task can still bind it, since both sides set SO_REUSEADDR (libuv, in torch) or
    SO_REUSEPORT (gRPC, in TensorFlow).
    """
    sockets = {task: socket.socket() for task in tasks}
    for sock in sockets.values():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address, 0))
    return sockets


def shut_out(ports: Iterable[int], but: str = LOOPBACK) -> list[socket.socket]:
    """Sockets that listen at these ports of all addresses of this machine but one, and answer
    nobody: as long as they are open, a server that listens on all interfaces is reached at that
    address only. The server must set SO_REUSEPORT, as TensorFlow's does if TF_GRPC_REUSE_PORT
    is set.

    An address that the machine gets later is not among them.
    """
    sockets = []
    families = (socket.AF_INET, socket.AF_INET6)
    known = [a for each in psutil.net_if_addrs().values() for a in each if a.family in families]
    for port, address in itertools.product(ports, {a.address for a in known} - {but, "::1"}):
        family, _, _, _, where = socket.getaddrinfo(address, port)[0]
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with contextlib.suppress(OSError):
            sock.bind(where)
            sock.listen(0)
        sockets.append(sock)
    return sockets


def by_job(addresses: Mapping[str, str]) -> dict[str, list[str]]:
    """Job -> `host:port` of its tasks in order, from that of each task: what TensorFlow calls a
    cluster.
    """
    jobs: dict[str, list[str]] = {}
    for task, address in addresses.items():
        jobs.setdefault(task.partition(":")[0], []).append(address)
    return jobs


def interface(address: str) -> str:
    """The interface of this machine that has an address."""
    if address == LOOPBACK:
        return LOOPBACK_INTERFACE
    known = psutil.net_if_addrs().items()
    return next((name for name, has in known if address in {a.address for a in has}), INTERFACE)


def host_name(host: int) -> str:
    """Return the name of a host in the trace."""
    return f"host:{host}"


# --- links that our own exchange imposes ---

PAYLOAD = 1448 / 1514
"""The share of a message in the bytes on a wire: a full Ethernet packet, less the headers of
Ethernet, IP and TCP.
"""

# payload bytes a second, seconds, when the uplink and the downlink will be free
_RATE, _DELAY, _UP, _DOWN = range(4)
_PATIENCE = 0.1  # seconds: a process that is paused while it reserves must not stop the others


def lay(path: Path, links: Mapping[int, Link]) -> None:
    """Make the file that tells all processes of a run the link of each host."""
    path.touch(mode=0o600)
    np.zeros((max(links) + 1, 4)).tofile(path)
    with contextlib.closing(Wires(path)) as wires:
        for host, link in links.items():
            wires.change(host, link)


class Wires:
    """The links of all hosts of a run, seen from one process, in the file that `lay` made."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        # a plain array on the shared memory: each access to a memmap itself takes longer
        self._hosts = np.asarray(np.memmap(self._file, np.float64)).reshape(-1, 4)

    def change(self, host: int, link: Link) -> None:
        """Give a host another link, from now on."""
        self._hosts[host, :_UP] = link.bytes_per_second * PAYLOAD, link.delay

    def due(self, src: int, dst: int, size: int) -> float:
        """Return when a message of `size` bytes, sent by `src` now, has arrived at host `dst`, on
        the clock of all processes.
        """
        here, there = self._hosts[src], self._hosts[dst]
        if here[_DELAY] == 0 and here[_RATE] == there[_RATE] == np.inf:
            return 0.0
        with self._reserving():
            begins = max(time.monotonic(), here[_UP])
            here[_UP] = begins + size / here[_RATE]
            there[_DOWN] = max(begins, there[_DOWN]) + size / there[_RATE]
            return float(max(here[_UP], there[_DOWN]) + here[_DELAY])

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _reserving(self) -> Iterator[None]:
        """Keep others from reserving during the block, unless one of them takes too long."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(50e-6)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
