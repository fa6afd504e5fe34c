"""A node: the processes of a run on one machine. This is the seam between the supervisor, which
decides, and what carries its decisions out: `Here` on this machine, `Away` on another.
"""

import contextlib
import math
import os
import selectors
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from course_lib.cluster import keeper, pipes
from course_lib.cluster.pipes import Channel, pair
from course_lib.cluster.process import StartTask
from course_lib.cluster.roster import Attempt
from course_lib.network.hosts import build
from course_lib.network.layout import LOOPBACK, OPEN, PORT, host_name, reserve_ports, shut_out
from course_lib.network.sockets import Sockets
from course_lib.network.wires import Wires, lay
from course_lib.record.events import Traffic, clock
from course_lib.record.files import Logs
from course_lib.record.rundir import RunDir
from course_lib.spec.fields import Link

PERIOD = 0.1  # seconds between two readings of the kernel's counters


class Listener(Protocol):
    """Hears what happens on a node."""

    def began(self, task: str, pid: int) -> None:
        """The process of a task has been started."""

    def heard(self, task: str, message: dict[str, Any]) -> None:
        """A task says something; its code may say anything."""

    def halted(self, task: str, halted: bool) -> None:
        """A signal from outside has stopped a task, or let it go on."""

    def ended(self, task: str, status: int, why: str = "") -> None:
        """The process of a task has ended: its exit code, or the negative of the signal that killed
        it. `why`: in words, if it is known.
        """

    def counted(self, traffic: list[Traffic]) -> None:
        """The kernel has counted what tasks or hosts have sent and received."""

    def note(self, who: str, state: str, why: str = "", **facts: Any) -> None:
        """Something was done to a task or host, for the record."""


class Node(Protocol):
    """Carries out what a supervisor asks. No method waits; the listener hears what comes of it.

    `addresses`: `host:port` of each of its tasks; `due`: when to `look` again without being woken;
    `lost`: it is gone, and so are its tasks.
    """

    @property
    def lost(self) -> bool: ...

    @property
    def addresses(self) -> Mapping[str, str]: ...

    @property
    def due(self) -> float: ...

    def meet(self, addresses: dict[str, list[str]]) -> None:
        """Before a start: the addresses of all tasks, by job."""

    def start(self, task: str, attempt: Attempt) -> None:
        """Start the process of a task, for the first time or again."""

    def tell(self, task: str, **state: Any) -> None:
        """Tell a task how something is now, see `Channel.tell`."""

    def signal(self, task: str, number: int) -> None: ...

    def link(self, host: int, link: Link, **cause: str) -> None:
        """Give a host another link. `cause`: why, for the record."""

    def join(self, host: int, joined: bool, **cause: str) -> None:
        """Join a host to the others again, or cut it off from them."""

    def look(self, last: bool = False) -> None:
        """Do what is due; `last`: what is sent from here on only ends the run."""

    def clean(self) -> None:
        """End whatever the last attempt has left here, as all tasks are started again."""

    def close(self) -> None:
        """End all processes."""


class Here:
    """The node of this machine, whose tasks are children of this process.

    `outer`: the channel of this process, which no task may keep. Descriptors wake the `selector`,
    each registered with what to call when it can be read.
    """

    lost = False  # all of us would be

    def __init__(
        self,
        files: RunDir,
        tasks: Iterable[str],
        start_task: StartTask,
        selector: selectors.BaseSelector,
        listener: Listener,
        outer: Channel,
    ) -> None:
        self.files, self.start_task, self.outer = files, start_task, outer
        self.selector, self.listener = selector, listener
        self.pids: dict[str, int] = {}
        self.channels: dict[str, Channel] = {}
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to be woken
        signal.set_wakeup_fd(waker)
        selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))
        self._holder, self._lifeline = os.pipe()
        self.wiring = Wiring(files, tasks, listener)
        self.addresses = self.wiring.addresses
        self.logs = Logs([path for task in files.spec.tasks for path in files.logs(task)])

    @property
    def due(self) -> float:
        return min(self.logs.due, self.wiring.due)

    def meet(self, addresses: dict[str, list[str]]) -> None:
        self.files.addresses = addresses

    def start(self, task: str, attempt: Attempt) -> None:
        self._close(task)
        ours, theirs = pair()
        channels = (self.outer, ours, *self.channels.values())
        private = [self._lifeline, *(c.fileno() for c in channels), *self.wiring.descriptors]
        with self.wiring.inside(task), theirs:
            arguments = self.files, task, attempt, theirs
            self.pids[task] = self.start_task(arguments, self._holder, private)
        self.channels[task] = ours
        self.selector.register(ours, selectors.EVENT_READ, partial(self._hear, task))
        self.listener.began(task, self.pids[task])

    def tell(self, task: str, **state: Any) -> None:
        if task in self.channels:
            self.channels[task].tell(**state)

    def signal(self, task: str, number: int) -> None:
        os.kill(self.pids[task], number)

    def link(self, host: int, link: Link, **cause: str) -> None:
        self.wiring.link(host, link, **cause)

    def join(self, host: int, joined: bool, **cause: str) -> None:
        self.wiring.join(host, joined, **cause)

    def look(self, last: bool = False) -> None:
        """Read the kernel's counters and cut long logs, if that is due; take the exit status of
        every process that has ended, and read its last messages first.
        """
        self.wiring.look(self.pids, last)
        if last:
            return
        self.logs.check()
        names = {pid: name for name, pid in self.pids.items()}
        for pid, status in _changes():
            if not (name := names.get(pid)):
                continue  # an orphan of one of our tasks
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                self.listener.halted(name, os.WIFSTOPPED(status))
                continue
            # not until the end: something that it started may still hold the channel
            while name in self.channels and pipes.ready(self.channels[name], 0):
                self._hear(name)
            self.listener.ended(name, os.waitstatus_to_exitcode(status))

    def clean(self) -> None:
        keeper.end_descendants()

    close = clean

    def _hear(self, task: str) -> None:
        """Read a task's messages; at their end, close its channel."""
        messages = self.channels[task].receive()
        if messages is None:
            self._close(task)
        for message in messages or ():
            self.listener.heard(task, message)

    def _close(self, task: str) -> None:
        """Close a task's channel, if it has one."""
        if channel := self.channels.pop(task, None):
            self.selector.unregister(channel)
            channel.close()


class Wiring:
    """The network side of `Here`: joins this process to the network that was planned for the run,
    and finds an address for each of these tasks.

    `listener` has recorded what is done to a host, and what was sent. `due`: when to `look` at the
    counters again; infinity if there are none, or no longer. Raises `Unavailable` where the network
    cannot be had.
    """

    def __init__(self, files: RunDir, tasks: Iterable[str], listener: Listener) -> None:
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

    def link(self, host: int, link: Link, **cause: str) -> None:
        """Give a host another link, whether the kernel imposes it or our exchange."""
        if self.hosts:
            self.hosts.change(host, link)
        if self._wires.exists():
            with contextlib.closing(Wires(self._wires)) as imposed:
                imposed.change(host, self._imposed(link))
        self._listener.note(host_name(host), "linked", **cause, **link.model_dump())

    def join(self, host: int, joined: bool, **cause: str) -> None:
        """Join a host to the others again, or cut it off from them."""
        if self.hosts:
            self.hosts.join(host, joined)
            self._listener.note(host_name(host), "healed" if joined else "cut", **cause)

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
