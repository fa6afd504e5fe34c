"""A node that is not this machine: what a supervisor asks of it, and what it tells, are messages
over a channel. `Away` is the supervisor's end, `serve` the other.
"""

import contextlib
import math
import os
import selectors
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from course_lib.cluster import keeper
from course_lib.cluster.node import Here, Listener, wait
from course_lib.cluster.pipes import Channel, ready
from course_lib.cluster.process import StartTask
from course_lib.cluster.roster import Attempt
from course_lib.errors import LockstepError
from course_lib.record.events import Traffic, clock, keep_to
from course_lib.record.rundir import RunDir
from course_lib.spec.fields import Link

COUNTED = 0.25  # seconds for which what was counted may wait for company: each message costs
FAREWELL = 5.0  # seconds that a node has to end its processes and to bring the last of the record


class Away:
    """The supervisor's end: a node called `name`, which has these tasks at `addresses`."""

    due = math.inf  # it wakes us whenever there is something to do

    def __init__(
        self,
        name: str,
        addresses: Mapping[str, str],
        channel: Channel,
        selector: selectors.BaseSelector,
        listener: Listener,
    ) -> None:
        self.name, self.addresses, self.channel = name, addresses, channel
        self.listener, self._selector = listener, selector
        self._going = set[str]()  # tasks that have a process
        self.lost, self._until = False, ""
        selector.register(channel, selectors.EVENT_READ, self._hear)

    def meet(self, addresses: dict[str, list[str]]) -> None:
        self.channel.post(do="meet", addresses=addresses)

    def start(self, task: str, attempt: Attempt) -> None:
        self._going.add(task)
        self.channel.post(do="start", task=task, attempt=attempt)

    def tell(self, task: str, **state: Any) -> None:
        if state:
            self.channel.post(do="tell", task=task, state=state)

    def signal(self, task: str, number: int) -> None:
        self.channel.post(do="signal", task=task, number=int(number))

    def link(self, host: int, link: Link, **cause: str) -> None:
        raise LockstepError("links between nodes are as they are")

    def join(self, host: int, joined: bool, **cause: str) -> None:
        raise LockstepError("links between nodes are as they are")

    def look(self, last: bool = False) -> None:
        """Nothing is due here."""

    def clean(self) -> None:
        self.channel.post(do="clean")

    def close(self) -> None:
        """End all processes, and wait until the last of the record has come."""
        self.channel.post(do="close")
        deadline = clock() + FAREWELL
        while ready(self.channel, deadline - clock()):
            if self.channel.receive() is None:
                break
            self.channel.flush()
        self.channel.close()

    def _hear(self) -> None:
        messages = self.channel.receive()
        for message in messages or ():
            match message:
                case {"began": [task, pid]}:
                    self.listener.began(task, pid)
                case {"heard": [task, words]}:
                    self.listener.heard(task, words)
                case {"halted": [task, halted]}:
                    self.listener.halted(task, halted)
                case {"counted": [*traffic]}:
                    self.listener.counted([Traffic(*each) for each in traffic])
                case {"until": float(until)}:
                    self._until = f", and with it what it recorded after {until:.1f} s"
                case {"ended": [task, status, why]}:
                    self._going.discard(task)
                    self.listener.ended(task, status, why)
        if messages is None:
            self._selector.unregister(self.channel)
            self.lost = True
            for task in sorted(self._going):
                self.listener.ended(task, 1, f"its node, {self.name}, was lost{self._until}")
            self._going.clear()


class _Reporter:
    """Sends what happens on a node to the supervisor, see `Listener`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._counted, self._due = list[Traffic](), 0.0

    def began(self, task: str, pid: int) -> None:
        self._post(began=[task, pid])

    def heard(self, task: str, message: dict[str, Any]) -> None:
        self._post(heard=[task, message])

    def halted(self, task: str, halted: bool) -> None:
        self._post(halted=[task, halted])

    def ended(self, task: str, status: int, why: str = "") -> None:
        self._post(ended=[task, status, why])

    def counted(self, traffic: list[Traffic]) -> None:
        self._counted += traffic
        if clock() >= self._due:
            self._post()

    def _post(self, **message: Any) -> None:
        """Tell this, and before it what was counted so far."""
        if self._counted:
            self._channel.post(counted=self._counted)
            self._counted, self._due = [], clock() + COUNTED
        if message:
            self._channel.post(**message)

    def note(self, who: str, state: str, why: str = "", **facts: Any) -> None:
        """Networks that are imposed are of one machine only."""


def serve(
    channel: Channel,
    files: RunDir,
    tasks: Iterable[str],
    start_task: StartTask,
    lifeline: int | None,
) -> NoReturn:
    """Be the node of these tasks, whose supervisor is at the other end of `channel`, until it says
    so or is gone. Never returns.
    """
    ahead = files.facts.offset
    keep_to(ahead)
    keeper.keep(channel, files, lifeline)
    selector = selectors.DefaultSelector()
    here = Here(files, tasks, start_task, selector, _Reporter(channel), channel)
    channel.post(addresses=here.addresses)
    going = True

    def obey() -> None:
        nonlocal ahead, going
        for order in channel.receive() or [{"do": "close"}]:
            with contextlib.suppress(ProcessLookupError):
                match order:
                    case {"do": "meet", "addresses": addresses}:
                        here.meet(addresses)
                    case {"do": "start", "task": task, "attempt": attempt}:
                        here.start(task, Attempt(*attempt))
                        here.tell(task, clock=ahead)
                    case {"do": "tell", "task": task, "state": state}:
                        here.tell(task, **state)
                    case {"do": "signal", "task": task, "number": number}:
                        here.signal(task, number)
                    case {"do": "clock", "offset": ahead}:
                        keep_to(ahead)
                        for task in here.channels:
                            here.tell(task, clock=ahead)
                    case {"do": "clean"}:
                        here.clean()
                    case {"do": "close"}:
                        going = False

    selector.register(channel, selectors.EVENT_READ, obey)
    try:
        while going:
            wait(selector, here.due, clock())
            here.look()
    except Exception:  # the supervisor takes this node for lost; the reason is in the log
        traceback.print_exc()
    finally:
        here.close()
        channel.settle()
        if channel.gone:  # else the record is still read
            files.clear(orphaned=True)
        os._exit(0)
