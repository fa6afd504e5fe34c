"""Where a run's tasks are in its network: on which host, at which address. No system is asked; that
is for `hosts`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo" if sys.platform == "linux" else "lo0"
INTERFACE = "eth0"
PORT = 2222  # the same for all: each task has an address of its own
# Addresses set apart for tests of networks (RFC 2544). Never those of private networks: a name
# server is often among them, and is out of reach in here. Who asks it is told so at once where no
# line leads to it, and waits for seconds where one seems to.
_RANGE, PREFIX = (198, 18), 15  # bits that all addresses have in common


class Seat(NamedTuple):
    """The host of a task, and its address: 198.18.3.1 is the first task of host 3."""

    host: int
    address: str


def seats(places: Mapping[str, int]) -> dict[str, Seat]:
    """The seat of each task, from the host of each."""
    taken: Counter[int] = Counter()
    found = {}
    for task, host in places.items():
        found[task] = Seat(host, _address(host, taken[host]))
        taken[host] += 1
    return found


def by_job(addresses: Mapping[str, str]) -> dict[str, list[str]]:
    """Job -> `host:port` of its tasks in order, from that of each task: what TensorFlow calls a
    cluster.
    """
    jobs: dict[str, list[str]] = {}
    for task, address in addresses.items():
        jobs.setdefault(task.partition(":")[0], []).append(address)
    return jobs


def interface(address: str) -> str:
    """The interface that an address of ours belongs to."""
    return LOOPBACK_INTERFACE if address == LOOPBACK else INTERFACE


def host_name(host: int) -> str:
    """What the trace calls a host."""
    return f"host:{host}"


def _address(host: int, number: int) -> str:
    """The second half of the range is for the hosts from 256 on, and for who is too many on
    another: there are never enough tasks for both.
    """
    high, low = divmod(host, 256)
    many, few = divmod(number, 250)
    return f"{_RANGE[0]}.{_RANGE[1] + high + many}.{low}.{few + 1}"
