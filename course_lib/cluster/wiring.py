"""The network side of a run, as its supervisor has it: where the tasks are, what they send, and
links that change while it goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

from course_lib.cluster import ports
from course_lib.cluster.meter import Meter
from course_lib.cluster.task import clock
from course_lib.network.build import build
from course_lib.network.layout import PORT, by_job, host_name
from course_lib.network.wires import Wires, lay
from course_lib.record.events import Lifecycle
from course_lib.record.rundir import RunDir
from course_lib.spec import Link


class Wiring:
    """Joins this process to the network that was planned for the run, and finds an address for each
    task.

    `note` takes what happens to hosts. Raises `Unavailable` where the network cannot be had.
    """

    def __init__(self, files: RunDir, note: Callable[[Lifecycle], None]) -> None:
        spec, self.facts = files.spec, files.facts
        self._note, self._wires = note, files.wires
        self.hosts = build(spec, self.facts)
        if "exchange" in (self.facts.rate, self.facts.delay):
            self._wires.parent.mkdir(mode=0o700)
            lay(self._wires, {host: self._imposed(spec.link_of(host)) for host in spec.all_hosts})
        if self.hosts:
            found = {task: f"{seat.address}:{PORT}" for task, seat in self.hosts.seats.items()}
        else:
            self._reserved = ports.reserve(len(spec.tasks))  # for as long as the run
            found = dict(zip(spec.tasks, map(ports.address, self._reserved), strict=True))
        files.addresses = by_job(found)
        self.meter = Meter(self.hosts.traffic, files.traffic) if self.hosts and spec.trace else None

    def inside(self, task: str) -> AbstractContextManager[None]:
        """Be where a task is to be, for as long as it takes to start it."""
        return self.hosts.inside(task) if self.hosts else contextlib.nullcontext()

    @property
    def descriptors(self) -> list[int]:
        """What a task must not keep."""
        return self.hosts.descriptors if self.hosts else []

    def link(self, host: int, link: Link) -> None:
        """Give a host another link, whoever imposes it."""
        if self.hosts:
            self.hosts.change(host, link)
        if self._wires.exists():
            with contextlib.closing(Wires(self._wires)) as imposed:
                imposed.change(host, self._imposed(link))
        self._note(
            Lifecycle(
                host_name(host),
                "linked",
                "by link()",
                clock(),
                mbit=link.mbit,
                delay_ms=link.delay_ms,
            )
        )

    def partition(self, host: int) -> None:
        """Cut a host off."""
        if self.hosts:
            self.hosts.cut(host)
            self._note(Lifecycle(host_name(host), "cut", "by partition()", clock()))

    def heal(self, host: int) -> None:
        """Join it to the others again."""
        if self.hosts:
            self.hosts.heal(host)
            self._note(Lifecycle(host_name(host), "healed", "by heal()", clock()))

    def _imposed(self, link: Link) -> Link:
        """What our exchange is to keep to: a delay that the kernel does not make, and then the rate
        too, since messages queue up before that.
        """
        by_kernel = self.facts.rate == "kernel" and (self.facts.delay == "kernel" or not link.delay)
        return Link() if by_kernel else link
