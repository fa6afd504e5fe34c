"""A node: the processes of a run on one machine, and their network. A supervisor decides, its nodes
carry that out: a `Node` on this machine, or one that stands for another (`engines/ray/remote.py`).
"""

import contextlib
import math
import os
import selectors
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from course_lib.cluster import keeper, pipes
from course_lib.cluster.pipes import Channel, pair
from course_lib.cluster.process import StartTask
from course_lib.cluster.roster import Attempt
from course_lib.network import layout
from course_lib.network.hosts import build
from course_lib.network.sockets import Sockets
from course_lib.record.events import clock
from course_lib.record.files import Logs
from course_lib.record.rundir import RunDir
from course_lib.spec.fields import Link

PERIOD = 0.1  # seconds between two readings of the kernel's counters

Report = Callable[..., None]
"""Takes what happens on a node: the name of an event, and what it is about.

began       task, pid: its process has been started
heard       task, message: a task has sent it; its code may send anything
halted      task, halted: a signal from outside has stopped it, or let it go on
ended       task, status, why: the exit code of its process, or the negative of the signal that
            killed it; in words, if it is known
counted     traffic: what the kernel has counted for tasks or hosts
note        who, state, why, facts: something was done to a task or host, for the record
"""


class Node:
    """The node of this machine, whose tasks are children of this process. No method waits.

    `addresses`: `host:port` of each of these tasks; `lost`: it is gone, and so are its tasks.
    `outer`: the channel of this process, which no task may keep. Descriptors wake the `selector`,
    each registered with what to call when it can be read. Raises `Unavailable` where the network
    that was planned for the run cannot be had.
    """

    lost = False

    def __init__(
        self,
        files: RunDir,
        tasks: Iterable[str],
        start_task: StartTask,
        selector: selectors.BaseSelector,
        report: Report,
        outer: Channel,
    ) -> None:
        self.files, self.start_task, self.outer = files, start_task, outer
        self.selector, self.report = selector, report
        self.pids: dict[str, int] = {}
        self.channels: dict[str, Channel] = {}
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to be woken
        signal.set_wakeup_fd(waker)
        selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))
        self._holder, self._lifeline = os.pipe()
        self.logs = Logs([path for task in files.spec.tasks for path in files.logs(task)])
        spec, self.facts = files.spec, files.facts
        self.hosts = build(spec, self.facts)
        self.addresses: Mapping[str, str] = self._addresses(tasks)
        if "exchange" in (self.facts.rate, self.facts.delay):
            files.wires.parent.mkdir(mode=0o700)
            links = {host: self._imposed(spec.link_of(host)) for host in spec.all_hosts}
            layout.lay(files.wires, links)
        meter = self.hosts or (Sockets(self.pids) if self.facts.network == "nodes" else None)
        self._meter = meter if spec.trace else None
        self._counted: dict[str, tuple[float, ...]] = {}  # task or host -> its last counts
        self._count_at = clock() if self._meter else math.inf

    def _addresses(self, tasks: Iterable[str]) -> dict[str, str]:
        """Find an address for each task: its own on a host, or a port of this machine."""
        if self.hosts:
            return {task: f"{self.hosts.addresses[task]}:{layout.PORT}" for task in tasks}
        where = self.facts.address or layout.LOOPBACK
        self._reserved = layout.reserve_ports(tasks, where)  # for as long as the run
        ports = {task: sock.getsockname()[1] for task, sock in self._reserved.items()}
        if self.facts.network in layout.OPEN and self.files.spec.framework == "tensorflow":
            self._shut = layout.shut_out(ports.values(), where)
        return {task: f"{where}:{port}" for task, port in ports.items()}

    @property
    def due(self) -> float:
        """Return the time at which to `poll` without being woken."""
        return min(self.logs.due, self._count_at)

    def meet(self, addresses: dict[str, list[str]]) -> None:
        """Take the addresses of all tasks, by job, before a start."""
        self.files.addresses = addresses

    def start(self, task: str, attempt: Attempt) -> None:
        """Start the process of a task, for the first time or again."""
        self._close(task)
        ours, theirs = pair()
        channels = (self.outer, ours, *self.channels.values())
        private = [self._lifeline, *(channel.fileno() for channel in channels)]
        private += self.hosts.descriptors if self.hosts else []
        # a process that is started in a namespace stays in it
        inside = self.hosts.inside(task) if self.hosts else contextlib.nullcontext()
        with inside, theirs:
            arguments = self.files, task, attempt, theirs
            self.pids[task] = self.start_task(arguments, self._holder, private)
        self.channels[task] = ours
        self.selector.register(ours, selectors.EVENT_READ, partial(self._hear, task))
        self.report("began", task, self.pids[task])

    def tell(self, task: str, **state: Any) -> None:
        """Tell a task how something is now, see `Channel.tell`."""
        if task in self.channels:
            self.channels[task].tell(**state)

    def signal(self, task: str, number: int) -> None:
        os.kill(self.pids[task], number)

    def link(self, host: int, link: Link, **cause: str) -> None:
        """Give a host another link, whether the kernel imposes it or our exchange. `cause`: why,
        for the record.
        """
        if self.hosts:
            self.hosts.change(host, link)
        if self.files.wires.exists():
            with contextlib.closing(layout.Wires(self.files.wires)) as imposed:
                imposed.change(host, self._imposed(link))
        self.report("note", layout.host_name(host), "linked", **cause, **link.model_dump())

    def join(self, host: int, joined: bool, **cause: str) -> None:
        """Join a host to the others again, or cut it off from them."""
        if self.hosts:
            self.hosts.join(host, joined)
            self.report("note", layout.host_name(host), "healed" if joined else "cut", **cause)

    def poll(self, last: bool = False) -> None:
        """Read the kernel's counters and cut long logs, if that is due; take the exit status of
        every process that has ended, and read its last messages first. `last`: only the counters
        are read; what is sent from here on ends the run.
        """
        if self._meter and self._count_at < math.inf and (last or clock() >= self._count_at):
            read = self._meter.traffic(clock())
            changed = [now for now in read if self._counted.get(now.task) != now[1:5]]
            self._counted |= {now.task: now[1:5] for now in changed}
            self.report("counted", changed)
            self._count_at = math.inf if last else clock() + PERIOD
        if last:
            return
        self.logs.check()
        names = {pid: name for name, pid in self.pids.items()}
        for pid, status in _changes():
            if not (name := names.get(pid)):
                continue  # an orphan of one of our tasks
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                self.report("halted", name, os.WIFSTOPPED(status))
                continue
            # not until the end: something that it started may still hold the channel
            while name in self.channels and pipes.ready(self.channels[name], 0):
                self._hear(name)
            self.report("ended", name, os.waitstatus_to_exitcode(status))

    def clean(self) -> None:
        """End whatever the last attempt has left here, as all tasks are started again."""
        keeper.end_descendants()

    def close(self) -> None:
        """End all processes."""
        keeper.end_descendants()

    def _hear(self, task: str) -> None:
        """Read a task's messages; at their end, close its channel."""
        messages = self.channels[task].receive()
        if messages is None:
            self._close(task)
        for message in messages or ():
            self.report("heard", task, message)

    def _close(self, task: str) -> None:
        """Close a task's channel, if it has one."""
        if channel := self.channels.pop(task, None):
            self.selector.unregister(channel)
            channel.close()

    def _imposed(self, link: Link) -> Link:
        """The part of a link that our exchange keeps to: all of it if the kernel does not make its
        delay, since messages queue up for the rate before they are delayed; nothing if it does.
        """
        by_kernel = self.facts.rate == "kernel" and (self.facts.delay == "kernel" or not link.delay)
        return Link() if by_kernel else link


def _changes() -> Iterator[tuple[int, int]]:
    """Pid and wait status of each child that has ended, stopped or gone on."""
    with contextlib.suppress(ChildProcessError):
        while (change := os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED))[0]:
            yield change


def wait(selector: selectors.BaseSelector, until: float, now: float) -> None:
    """Wait until something happens, at most `until` then, and do what is registered for it.
    Channels with something unsent are also woken for when there is room.
    """
    for key in selector.get_map().values():
        if isinstance(key.fileobj, Channel):
            wanted = selectors.EVENT_READ | selectors.EVENT_WRITE * key.fileobj.unsent
            if key.events != wanted:
                selector.modify(key.fileobj, wanted, key.data)
    seconds = None if math.isinf(until) else max(0.0, until - now)
    for key, events in selector.select(seconds):
        if events & selectors.EVENT_WRITE:
            key.fileobj.flush()  # type: ignore[union-attr]  # only channels are written
        if events & selectors.EVENT_READ:
            key.data()
