"""The network side of a run, in its supervisor: where the tasks are, what they send, and links that
change while the run goes on.
"""

import contextlib
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from course_lib.network.hosts import build
from course_lib.network.layout import LOOPBACK, OPEN, PORT, host_name, reserve_ports, shut_out
from course_lib.network.sockets import Sockets
from course_lib.network.wires import Wires, lay
from course_lib.record.clock import clock
from course_lib.record.rundir import RunDir
from course_lib.spec.fields import Link

if TYPE_CHECKING:
    from course_lib.cluster.node import Listener

PERIOD = 0.1  # seconds between two readings of the kernel's counters


class Wiring:
    """Joins this process to the network that was planned for the run, and finds an address for each
    of these tasks.

    `listener` has recorded what is done to a host, and what was sent. `due`: when to `look` at the
    counters again; infinity if there are none, or no longer. Raises `Unavailable` where the network
    cannot be had.
    """

    def __init__(self, files: RunDir, tasks: Iterable[str], listener: "Listener") -> None:
        spec, self.facts = files.spec, files.facts
        self._listener, self._wires = listener, files.wires
        self.hosts = build(spec, self.facts)
        if "exchange" in (self.facts.rate, self.facts.delay):
            self._wires.parent.mkdir(mode=0o700)
            lay(self._wires, {host: self._imposed(spec.link_of(host)) for host in spec.all_hosts})
        if self.hosts:
            own = self.hosts.addresses
            self.addresses = {task: f"{own[task]}:{PORT}" for task in tasks}
        else:
            where = self.facts.address or LOOPBACK
            self._reserved = reserve_ports(tasks, where)  # for as long as the run
            ports = {task: sock.getsockname()[1] for task, sock in self._reserved.items()}
            self.addresses = {task: f"{where}:{port}" for task, port in ports.items()}
            if self.facts.network in OPEN and spec.framework == "tensorflow":
                self._shut = shut_out(ports.values(), where)
        self._sockets = Sockets() if self.facts.network == "nodes" else None
        counted = (self.hosts or self._sockets) and spec.trace
        self.due = clock() if counted else math.inf
        self._counted: dict[str, tuple[float, ...]] = {}  # task or host -> its last counts

    def inside(self, task: str) -> AbstractContextManager[None]:
        """Be in a task's namespace for the block: a process that is started there stays in it."""
        return self.hosts.inside(task) if self.hosts else contextlib.nullcontext()

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that are open here, and must be closed in a task."""
        return self.hosts.descriptors if self.hosts else []

    def look(self, pids: Mapping[str, int], last: bool = False) -> None:
        """Read the kernel's counters if that is due, or for the `last` time, and tell those that
        have changed. `pids`: the process of each task.
        """
        if math.isinf(self.due) or (clock() < self.due and not last):
            return
        read = [
            *(self.hosts.traffic(clock()) if self.hosts else ()),
            *(self._sockets.traffic(pids, clock()) if self._sockets else ()),
        ]
        changed = [now for now in read if self._counted.get(now.task) != now[1:5]]
        self._counted |= {now.task: now[1:5] for now in changed}
        self._listener.counted(changed)
        self.due = math.inf if last else clock() + PERIOD

    def link(self, host: int, link: Link, **told: str) -> None:
        """Give a host another link, whether the kernel imposes it or our exchange. `told`: why, for
        the record.
        """
        if self.hosts:
            self.hosts.change(host, link)
        if self._wires.exists():
            with contextlib.closing(Wires(self._wires)) as imposed:
                imposed.change(host, self._imposed(link))
        self._listener.note(host_name(host), "linked", **told, **link.model_dump())

    def join(self, host: int, joined: bool, **told: str) -> None:
        """Join a host to the others again, or cut it off from them."""
        if self.hosts:
            self.hosts.join(host, joined)
            self._listener.note(host_name(host), "healed" if joined else "cut", **told)

    def _imposed(self, link: Link) -> Link:
        """The part of a link that our exchange keeps to: all of it if the kernel does not make its
        delay, since messages queue up for the rate before they are delayed; nothing if it does.
        """
        by_kernel = self.facts.rate == "kernel" and (self.facts.delay == "kernel" or not link.delay)
        return Link() if by_kernel else link
