"""Lays out where the tasks of a run are reached: at an address of their own on a host, or at a port
of the loopback interface.
"""

import contextlib
import itertools
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import psutil

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
    """The address of each task, from the host of each: 198.18.3.1 is the first task of host 3."""
    taken: Counter[int] = Counter()
    found = {}
    for task, host in places.items():
        found[task] = _address(host, taken[host])
        taken[host] += 1
    return found


def _address(host: int, number: int) -> str:
    """The address of a host's task. The second half of the range is for hosts from 256 on, or for
    tasks from 250 on: no run has enough tasks for both.
    """
    high, low = divmod(host, 256)
    many, few = divmod(number, 250)
    return f"{_RANGE[0]}.{_RANGE[1] + high + many}.{low}.{few + 1}"


def reserve_ports(tasks: Iterable[str], address: str = LOOPBACK) -> dict[str, socket.socket]:
    """For each task a socket that is bound to a free port of an address of this machine and does
    not listen.

    While it is open, the system gives the port to no process that asks for a free one. The
    framework in the task can still bind it, since both sides set SO_REUSEADDR (libuv, in torch) or
    SO_REUSEPORT (gRPC, in TensorFlow).
    """
    held = {}
    with ExitStack() as undo:
        for task in tasks:
            held[task] = sock = undo.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((address, 0))
        undo.pop_all()
    return held


def shut_out(ports: Iterable[int], but: str = LOOPBACK) -> list[socket.socket]:
    """Sockets that listen at these ports of all addresses of this machine but one, and answer
    nobody: as long as they are open, a server that listens on all interfaces is reached at that
    address only. The server must set SO_REUSEPORT, as TensorFlow's does if TF_GRPC_REUSE_PORT
    is set.

    An address that the machine gets later is not among them.
    """
    held = []
    families = (socket.AF_INET, socket.AF_INET6)
    found = [a for each in psutil.net_if_addrs().values() for a in each if a.family in families]
    for port, address in itertools.product(ports, {a.address for a in found} - {but, "::1"}):
        family, _, _, _, where = socket.getaddrinfo(address, port)[0]
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with contextlib.suppress(OSError):
            sock.bind(where)
            sock.listen(0)
        held.append(sock)
    return held


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
    found = psutil.net_if_addrs().items()
    return next((name for name, has in found if address in {a.address for a in has}), INTERFACE)


def host_name(host: int) -> str:
    """Return the name of a host in the trace."""
    return f"host:{host}"
