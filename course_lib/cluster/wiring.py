"""The network side of a run, in its supervisor: where the tasks are, what they send, and links that
change while the run goes on.
"""

import contextlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager

from course_lib.cluster.task import clock
from course_lib.fields import Link
from course_lib.network.hosts import build
from course_lib.network.layout import LOOPBACK, PORT, by_job, host_name, reserve_ports, shut_out
from course_lib.network.wires import Wires, lay
from course_lib.record.events import to_line
from course_lib.record.rundir import RunDir

PERIOD = 0.1  # seconds between two readings of the kernel's counters


class Wiring:
    """Joins this process to the network that was planned for the run, and finds an address for each
    task.

    `note(host, state, why, **facts)` records what is done to a host. `due`: when to `look` at the
    counters again; infinity if there are none, or no longer. Raises `Unavailable` where the network
    cannot be had.
    """

    def __init__(self, files: RunDir, note: Callable[..., None]) -> None:
        spec, self.facts = files.spec, files.facts
        self._note, self._wires = note, files.wires
        self.hosts = build(spec, self.facts)
        if "exchange" in (self.facts.rate, self.facts.delay):
            self._wires.parent.mkdir(mode=0o700)
            lay(self._wires, {host: self._imposed(spec.link_of(host)) for host in spec.all_hosts})
        if self.hosts:
            found = {task: f"{where}:{PORT}" for task, where in self.hosts.addresses.items()}
        else:
            self._reserved = reserve_ports(spec.tasks)  # for as long as the run
            ports = {task: sock.getsockname()[1] for task, sock in self._reserved.items()}
            found = {task: f"{LOOPBACK}:{port}" for task, port in ports.items()}
            if self.facts.network == "loopback" and spec.framework == "tensorflow":
                self._shut = shut_out(ports.values())
        files.addresses = by_job(found)
        self.due = clock() if self.hosts and spec.trace else math.inf
        self._traffic = files.traffic
        self._counted: dict[str, tuple[float, ...]] = {}  # task or host -> its last counts

    def inside(self, task: str) -> AbstractContextManager[None]:
        """Be in a task's namespace for the block: a process that is started there stays in it."""
        return self.hosts.inside(task) if self.hosts else contextlib.nullcontext()

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that are open here, and must be closed in a task."""
        return self.hosts.descriptors if self.hosts else []

    def look(self, last: bool = False) -> None:
        """Read the kernel's counters if that is due, or for the `last` time, and write down those
        that have changed.
        """
        if not self.hosts or math.isinf(self.due) or (clock() < self.due and not last):
            return
        read = self.hosts.traffic(clock())
        changed = [now for now in read if self._counted.get(now.task) != now[1:5]]
        self._counted |= {now.task: now[1:5] for now in changed}
        with self._traffic.open("ab") as file:
            file.write(b"".join(map(to_line, changed)))
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
        self._note(host_name(host), "linked", **told, **link.model_dump())

    def join(self, host: int, joined: bool, **told: str) -> None:
        """Join a host to the others again, or cut it off from them."""
        if self.hosts:
            self.hosts.join(host, joined)
            self._note(host_name(host), "healed" if joined else "cut", **told)

    def _imposed(self, link: Link) -> Link:
        """The part of a link that our exchange keeps to: all of it if the kernel does not make its
        delay, since messages queue up for the rate before they are delayed; nothing if it does.
        """
        by_kernel = self.facts.rate == "kernel" and (self.facts.delay == "kernel" or not link.delay)
        return Link() if by_kernel else link
