"""Hosts on one machine: each task is in a network namespace of its own, each host is a switch, and
a link leads from each host to one switch in the middle.

    task 0  eth0 ---- t0 |                                          | t2 ---- eth0  task 2
                         | host 0  up0 ---- dn0 | core | dn1 ---- up1  host 1 |
    task 1  eth0 ---- t1 |                                          | t3 ---- eth0  task 3

A line is a pair of `veth` interfaces: what goes in at one end comes out at the other. Switches are
`bridge`s. `tbf`, the token bucket filter, holds back what leaves at `up` and at `dn`, so that each
host has one uplink and one downlink of its link's rate, which its tasks share. `nftables` drops
packets that a link is to lose as they come in at `dn` and at `up`. Frameworks know nothing of all
this: they see addresses and an interface `eth0`.

Nothing here can be seen from outside, or outlives the processes in it. Sources: veth(4),
tc-tbf(8), tc-netem(8).
"""

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

from course_lib.errors import Unavailable
from course_lib.network import namespaces
from course_lib.network.layout import INTERFACE, OPEN, PREFIX, addresses, host_name
from course_lib.record.events import Traffic
from course_lib.record.rundir import RunFacts
from course_lib.spec.fields import Link
from course_lib.spec.run_spec import RunSpec

# The token bucket: so many seconds' worth of bytes may pass at once. With less, a busy machine
# wakes too late to fill a fast link; with more, short messages would pass as if there were no
# limit.
_BUCKET = 0.5e-3
_LEAST = 2 * 1514  # bytes in the bucket: two whole packets
_OURS = 1000  # the first index that we give to an interface; those below are the kernel's
_ROOT = 0xFFFFFFFF  # where on an interface all that leaves it passes
_QUEUE = 4 << 20  # bytes that may wait at a link before some are lost
# Bytes a second. tbf's figures have 32 bits: the rate, and the time in which a bucket of _LEAST
# bytes fills, in ticks of 64 ns. The slowest passes a packet in a minute and a half.
_SLOWEST, _UNLIMITED = 16, 1 << 32
_MANY = 65535  # packets that Linux may pass on as one, as it does where nothing is lost


class Hosts:
    """The hosts of a run, made in the namespace of this process, which must be the run's own.

    `places`: the host of each task; `links`: the link of each host. `rate` and `delay` say whether
    the kernel can impose these. Raises what pyroute2 does where the system refuses.
    """

    def __init__(
        self, places: Mapping[str, int], links: Mapping[int, Link], rate: bool, delay: bool
    ) -> None:
        self.places, self.addresses = places, addresses(places)
        self.rate, self.delay = rate, delay
        self.core = namespaces.current()
        self.namespaces: dict[str, int] = {}
        self._queues: dict[str, list[str]] = {}  # interface -> its queueing disciplines
        self._lost: dict[int, float] = {}  # host -> the share of packets that its link loses
        self._index: dict[str, int] = {}
        # task or host -> the end of its line that is at a switch
        self._ends = {task: f"t{i}" for i, task in enumerate(places)}
        self._ends |= {host_name(host): f"dn{host}" for host in links}
        with _routes() as routes:
            self._add(routes, "core", kind="bridge")
            for host, link in links.items():
                self._add_host(routes, host, link)
            for task in places:
                self._add_task(routes, task)

    @contextlib.contextmanager
    def inside(self, task: str) -> Iterator[None]:
        """Be in a task's namespace for the block: a process that is started there stays in it."""
        namespaces.enter(self.namespaces[task])
        try:
            yield
        finally:
            namespaces.enter(self.core)

    def change(self, host: int, link: Link) -> None:
        """Give a host another link, from now on."""
        with _routes() as routes:
            self._shape(routes, host, link)

    def join(self, host: int, joined: bool) -> None:
        """Join a host to all others again, or cut it off: its own tasks still reach each other."""
        with _routes() as routes:
            state = "up" if joined else "down"
            routes.link("set", index=self._index[f"dn{host}"], state=state)

    def traffic(self, at: float) -> list[Traffic]:
        """Return the kernel's counts of what each task and each host has sent and received."""
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        return [  # what the switch's end of a line has received was sent
            Traffic(who, c.bytes_recv, c.bytes_sent, c.packets_recv, c.packets_sent, at)
            for who, c in ((who, counters[end]) for who, end in self._ends.items())
        ]

    @property
    def descriptors(self) -> list[int]:
        """Namespaces that are open here, and must be closed in a task."""
        return [self.core, *self.namespaces.values()]

    def _add(self, routes: Any, name: str, **properties: Any) -> None:
        """Add an interface, switched on, with an index of our own, which need not be looked up."""
        self._index[name] = _OURS + len(self._index)
        routes.link("add", ifname=name, index=self._index[name], state="up", **properties)

    def _add_host(self, routes: Any, host: int, link: Link) -> None:
        up, down = f"up{host}", f"dn{host}"
        self._add(routes, f"host{host}", kind="bridge")
        self._add(routes, up, kind="veth", master=self._index[f"host{host}"], peer={"ifname": down})
        self._index[down] = socket.if_nametoindex(down)
        routes.link("set", index=self._index[down], master=self._index["core"], state="up")
        self._shape(routes, host, link)

    def _add_task(self, routes: Any, task: str) -> None:
        self.namespaces[task] = there = namespaces.another()
        switch, end = f"host{self.places[task]}", {"ifname": INTERFACE, "net_ns_fd": there}
        # `routes` stays with the namespace that it was opened in
        self._add(routes, self._ends[task], kind="veth", master=self._index[switch], peer=end)
        with _routes() as inner:
            index = socket.if_nametoindex(INTERFACE)
            inner.addr("add", index=index, address=self.addresses[task], prefixlen=PREFIX)
            inner.link("set", index=index, state="up")
        namespaces.enter(self.core)

    def _shape(self, routes: Any, host: int, link: Link) -> None:
        """Hold both ends of a host's line to its link's rate, delay what leaves the host, and drop
        what the link is to lose: packets one by one, so none may be passed on together.
        """
        rate = max(round(link.bytes_per_second), _SLOWEST) if link.mbit else _UNLIMITED
        bucket = {}
        if self.rate and rate < _UNLIMITED:
            burst = max(_LEAST, round(rate * _BUCKET))
            bucket = {"tbf": {"rate": rate, "burst": burst, "limit": _QUEUE}}
        delay = {"netem": {"delay": round(link.delay * 1e6)}} if self.delay and link.delay else {}
        ends = f"up{host}", f"dn{host}"
        for end, wanted in zip(ends, (delay | bucket, bucket), strict=True):
            self._queue(routes, end, wanted)
        if link.loss != self._lost.get(host, 0.0):
            namespaces.lose(f"host{host}", ends, link.loss)
            for end in ends:
                together = 1 if link.loss else _MANY
                routes.link("set", index=self._index[end], gso_max_segs=together)
            self._lost[host] = link.loss

    def _queue(self, routes: Any, name: str, wanted: dict[str, dict[str, int]]) -> None:
        """Give an interface the `wanted` queueing disciplines (kind -> settings), outermost first.

        Those of the same kinds only get new settings, so that no packet in them is lost. What is
        there is noted step by step: where one is refused, the next call still knows the state.
        """
        index, there = self._index[name], self._queues.setdefault(name, [])
        if there and there != list(wanted):
            routes.tc("del", index=index, parent=_ROOT)
            there.clear()
        parent = _ROOT
        for number, (kind, settings) in enumerate(wanted.items(), 1):
            handle = number << 16
            routes.tc("replace", kind, index, handle=handle, parent=parent, **settings)
            parent = handle + 1  # the one class of this discipline
            there[:] = [*wanted][:number]


def build(spec: RunSpec, facts: RunFacts) -> Hosts | None:
    """Move this process into the network that was planned for a run; the hosts, if it has some.

    Raises `Unavailable` where the system refuses now what it allowed before.
    """
    if facts.network in OPEN:
        return None
    try:
        namespaces.make_private()
        links = {host: spec.link_of(host) for host in spec.all_hosts}
        by_kernel = facts.rate == "kernel", facts.delay == "kernel"
        return Hosts(spec.places, links, *by_kernel) if facts.network == "hosts" else None
    except Exception as error:  # pyroute2 has errors of its own besides OSError
        cure = "Set LOCKSTEP_NETWORK=loopback to do without, or run fewer clusters at a time."
        why = f"the system refuses it now ({error})"
        raise Unavailable("a network of the run's own", why, cure) from error


def _routes() -> Any:
    """Sets up interfaces of the namespace that this process is in now, wherever it goes later. To
    be used in a `with`, which closes it.
    """
    from pyroute2 import IPRoute  # it is for Linux only

    return IPRoute()
