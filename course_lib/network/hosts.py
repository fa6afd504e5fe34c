"""Hosts on one machine: each task in a network namespace of its own, each host a switch, and a link
from each host to one switch in the middle.

    task 0  eth0 ---- t0 |                                          | t2 ---- eth0  task 2
                         | host 0  up0 ---- dn0 | core | dn1 ---- up1  host 1 |
    task 1  eth0 ---- t1 |                                          | t3 ---- eth0  task 3

A line is a pair of `veth` interfaces: what goes in at one end comes out at the other. Switches are
`bridge`s. `tbf`, the token bucket filter, holds back what leaves at `up` and at `dn`, so that each
host has one uplink and one downlink of its link's rate, which its tasks share. Frameworks know
nothing of all this: they see addresses and an interface `eth0`.

Nothing here has a name outside, or outlives the processes in it. Sources: veth(4), tc-tbf(8),
tc-netem(8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psutil

from course_lib.network import namespaces
from course_lib.network.layout import INTERFACE, PREFIX, host_name, seats
from course_lib.record.events import Traffic
from course_lib.spec import Link

# The token bucket: so many seconds' worth of bytes may pass at once. With less, a busy machine
# wakes too late to fill a fast link; with more, short messages would pass as if there were no
# limit.
_BUCKET = 0.5e-3
_LEAST = 2 * 1514  # bytes in the bucket: two whole packets
_OURS = 1000  # the first index that we give to an interface; those below are the kernel's
_ROOT = 0xFFFFFFFF  # where on an interface all that leaves it passes
_QUEUE = 4 << 20  # bytes that may wait at a link before some are lost


class Hosts:
    """The hosts of a run, made in the namespace that this process is in, which must be the run's
    own.

    `places`: the host of each task; `links`: the link of each host. `rate` and `delay` say whether
    the kernel can impose these. Raises what pyroute2 does where the system refuses.
    """

    def __init__(
        self, places: Mapping[str, int], links: Mapping[int, Link], rate: bool, delay: bool
    ) -> None:
        self.seats = seats(places)
        self.rate, self.delay = rate, delay
        self.core = namespaces.current()
        self.namespaces: dict[str, int] = {}
        self._shaped: dict[int, list[str]] = {}  # host -> what is in force on its line
        self._hosts = sorted({seat.host for seat in self.seats.values()})
        self._index: dict[str, int] = {}
        self._port = {task: f"t{i}" for i, task in enumerate(self.seats)}
        with _routes() as routes:
            self._add(routes, "core", kind="bridge")
            for host in self._hosts:
                self._add_host(routes, host, links[host])
            for task in self.seats:
                self._add_task(routes, task)

    def inside(self, task: str) -> AbstractContextManager[None]:
        """Be in a task's namespace for the block: the process that is started there stays in it."""
        return namespaces.inside(self.namespaces[task], self.core)

    def change(self, host: int, link: Link) -> None:
        """Give a host another link, from now on."""
        with _routes() as routes:
            self._shape(routes, host, link)

    def cut(self, host: int) -> None:
        """Cut a host off from all others; its own tasks still reach each other."""
        with _routes() as routes:
            routes.link("set", index=self._index[f"dn{host}"], state="down")

    def heal(self, host: int) -> None:
        """Undo `cut`."""
        with _routes() as routes:
            routes.link("set", index=self._index[f"dn{host}"], state="up")

    def traffic(self, at: float) -> list[Traffic]:
        """What each task and each host has sent and received so far, as the kernel counts it."""
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        found = []
        for task, port in self._port.items():
            c = counters[port]  # the switch's end of the line, so what it receives was sent
            found.append(
                Traffic(task, c.bytes_recv, c.bytes_sent, c.packets_recv, c.packets_sent, at)
            )
        for host in self._hosts:
            c = counters[f"up{host}"]
            found.append(
                Traffic(
                    host_name(host), c.bytes_sent, c.bytes_recv, c.packets_sent, c.packets_recv, at
                )
            )
        return found

    @property
    def descriptors(self) -> list[int]:
        """What a task must not keep."""
        return [self.core, *self.namespaces.values()]

    def _add(self, routes: Any, name: str, **properties: Any) -> None:
        """Add an interface, switched on, at an index of our choice: so the kernel need not be asked
        for it.
        """
        self._index[name] = _OURS + len(self._index)
        routes.link("add", ifname=name, index=self._index[name], state="up", **properties)

    def _add_host(self, routes: Any, host: int, link: Link) -> None:
        up, down = f"up{host}", f"dn{host}"
        self._add(routes, f"host{host}", kind="bridge")
        self._add(routes, up, kind="veth", master=self._index[f"host{host}"], peer={"ifname": down})
        self._index[down] = _index(routes, down)
        routes.link("set", index=self._index[down], master=self._index["core"], state="up")
        self._shape(routes, host, link)

    def _add_task(self, routes: Any, task: str) -> None:
        seat = self.seats[task]
        self.namespaces[task] = there = namespaces.another()
        with _routes() as inner:
            namespaces.enter(self.core)
            end = {"ifname": INTERFACE, "net_ns_fd": there}
            self._add(
                routes,
                self._port[task],
                kind="veth",
                master=self._index[f"host{seat.host}"],
                peer=end,
            )
            index = _index(inner, INTERFACE)
            inner.addr("add", index=index, address=seat.address, prefixlen=PREFIX)
            inner.link("set", index=index, state="up")

    def _shape(self, routes: Any, host: int, link: Link) -> None:
        """Both ends of a host's line keep to its rate; what leaves the host is delayed as well.

        What waits there now is not lost.
        """
        up, down = self._index[f"up{host}"], self._index[f"dn{host}"]
        kinds = [
            kind
            for kind, wanted in (
                ("netem", self.delay and link.delay),
                ("tbf", self.rate and link.mbit),
            )
            if wanted
        ]
        if kinds != self._shaped.get(host, []):
            for end in (
                (up, down)
                if "tbf" in self._shaped.get(host, [])
                else (up,)
                if host in self._shaped
                else ()
            ):
                routes.tc("del", index=end, parent=_ROOT)
        self._shaped[host] = kinds
        if "netem" in kinds:
            routes.tc("replace", "netem", up, handle="1:", delay=round(link.delay * 1e6))
        if "tbf" in kinds:
            rate = round(link.bytes_per_second)
            bucket = {
                "handle": "2:",
                "rate": rate,
                "burst": max(_LEAST, round(rate * _BUCKET)),
                "limit": _QUEUE,
            }
            routes.tc("replace", "tbf", up, parent="1:1" if "netem" in kinds else _ROOT, **bucket)
            routes.tc("replace", "tbf", down, **bucket)


@contextmanager
def _routes() -> Iterator[Any]:
    """A way to set up interfaces: those of the namespace that this process is in now, wherever it
    goes meanwhile.
    """
    from pyroute2 import IPRoute  # there is nothing for it to do on other systems than Linux

    routes = IPRoute()
    try:
        yield routes
    finally:
        routes.close()


def _index(routes: Any, name: str) -> int:
    return int(routes.link_lookup(ifname=name)[0])
