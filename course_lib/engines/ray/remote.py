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
from course_lib.cluster.node import Node, Report, wait
from course_lib.cluster.pipes import Channel, ready
from course_lib.cluster.process import StartTask
from course_lib.cluster.roster import Attempt
from course_lib.record.events import Traffic, clock, keep_to
from course_lib.record.rundir import RunDir

FAREWELL = 5.0  # seconds that a node has to end its processes and to bring the last of the record


class Away(Node):
    """The supervisor's end: a node called `name`, which has these tasks at `addresses`. Nothing is
    asked of its links: on nodes no order for one is taken.
    """

    due = math.inf  # it wakes us whenever there is something to do

    def __init__(
        self,
        name: str,
        addresses: Mapping[str, str],
        channel: Channel,
        selector: selectors.BaseSelector,
        report: Report,
    ) -> None:
        self.name, self.addresses, self.channel = name, addresses, channel
        self.report, self.selector = report, selector
        self._going = set[str]()  # tasks that have a process
        self._until = ""
        selector.register(channel, selectors.EVENT_READ, self._hear_node)

    def meet(self, addresses: dict[str, list[str]]) -> None:
        self.channel.post(do="meet", addresses=addresses)

    def start(self, task: str, attempt: Attempt) -> None:
        self._going.add(task)
        self.channel.post(do="start", task=task, attempt=attempt)

    def tell(self, task: str, **state: Any) -> None:
        if state:
            self.channel.post(do="tell", task=task, **state)

    def signal(self, task: str, number: int) -> None:
        self.channel.post(do="signal", task=task, number=int(number))

    def poll(self, last: bool = False) -> None:
        """Nothing is due here."""

    def clean(self) -> None:
        self.channel.post(do="clean")

    def close(self) -> None:
        """End all processes, and wait until the last of the record has come. Of a node that is lost
        nothing comes, and it may be closed again, as the one that other tasks were on.
        """
        self.channel.post(do="close")
        deadline = clock() + FAREWELL
        while not self.lost and ready(self.channel, deadline - clock()):
            if self.channel.receive() is None:
                break
            self.channel.flush()
        self.channel.close()

    def _hear_node(self) -> None:
        messages = self.channel.receive()
        for message in messages or ():
            match message:
                case {"until": float(until)}:
                    self._until = f", and with it what it recorded after {until:.1f} s"
                case {"event": ["counted", traffic]}:
                    self.report("counted", [Traffic(*each) for each in traffic])
                case {"event": [event, *about]}:
                    if event == "ended":
                        self._going.discard(about[0])
                    self.report(event, *about)
        if messages is None:
            self.selector.unregister(self.channel)
            self.lost = True
            for task in sorted(self._going):
                self.report("ended", task, 1, f"its node, {self.name}, was lost{self._until}")
            self._going.clear()


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

    def report(*event: Any) -> None:
        channel.post(event=event)

    here = Node(files, tasks, start_task, selector, report, channel)
    channel.post(addresses=here.addresses)
    going = True

    def obey() -> None:
        nonlocal ahead, going
        for order in channel.receive() or [{"do": "close"}]:
            with contextlib.suppress(ProcessLookupError):
                match order:
                    case {"do": "start", "task": task, "attempt": attempt}:
                        here.start(task, Attempt(*attempt))
                        here.tell(task, clock=ahead)
                    case {"do": "clock", "offset": ahead}:
                        keep_to(ahead)
                        for task in here.channels:
                            here.tell(task, clock=ahead)
                    case {"do": "close"}:
                        going = False
                    case {"do": method, **arguments}:  # meet, tell, signal or clean
                        getattr(here, method)(**arguments)

    selector.register(channel, selectors.EVENT_READ, obey)
    try:
        while going:
            wait(selector, here.due, clock())
            here.poll()
    except Exception:  # the supervisor takes this node for lost; the reason is in the log
        traceback.print_exc()
    finally:
        here.close()
        channel.settle()
        if channel.gone:  # else the record is still read
            files.clear(orphaned=True)
        os._exit(0)
