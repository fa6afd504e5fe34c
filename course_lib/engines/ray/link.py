"""A node of a run on a Ray cluster, as the driver sees it: its tasks, its clock, and the link to
the actor there, over which orders go and the record comes.
"""

import contextlib
import math
import socket
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.exceptions

from course_lib.engines.ray.cluster import ADVICE, SILENT, WHAT, actor_on
from course_lib.engines.ray.node import versions
from course_lib.engines.ray.parcels import Parcels
from course_lib.errors import Unavailable
from course_lib.record.beats import Beats
from course_lib.record.events import Clock, own, to_line
from course_lib.record.rundir import RunDir

BEGIN = 60.0  # seconds for an actor to begin, on a busy node
EVERY = 1.0  # seconds between two readings of a clock during a run
DRIFT = 1e-4  # seconds a second by which clocks may drift apart, more than any quartz does


@dataclass
class RayNodeOf:
    """A node of a run: Ray's id of it, what we call it, its actor, its address and its tasks.
    `run`: what their part of the run is called there. `offset`: what its clock lacked to the
    driver's when it was last read (`at`), at most `unsure` seconds wrong.
    """

    id: str
    name: str
    actor: Any
    address: str
    tasks: list[str] = field(default_factory=list)
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    offset: float = 0.0
    unsure: float = math.inf
    at: float = 0.0

    def read_clock(self) -> None:
        """Read its clock, and keep what is the better of that and of what we knew. The reading lies
        between question and answer, so half of that time is the bound of the error (Cristian 1989,
        "Probabilistic clock synchronization").
        """
        asked = own()
        [theirs] = answers([self], [self.actor.clock.remote()], SILENT)
        came = own()
        unsure = (came - asked) / 2
        self.unsure += DRIFT * (came - self.at)
        if unsure <= self.unsure:
            self.offset, self.unsure = (asked + came) / 2 - theirs, unsure
        self.at = came

    def note_clock(self, files: RunDir) -> None:
        with files.clocks.open("ab") as file:
            for task in self.tasks:
                file.write(to_line(Clock(task, self.offset, self.unsure, self.at)))


def nodes_of(ids: Mapping[str, str], known: Sequence[RayNodeOf] = ()) -> list[RayNodeOf]:
    """The nodes of these tasks, each with its actor, and named as those that are `known`."""
    names = {node.id: node.name for node in known}
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    places: dict[str, RayNodeOf] = {}
    for task, id in ids.items():
        if id not in places:
            name = names.setdefault(id, f"node {len(names)} ({addresses[id]})")
            places[id] = RayNodeOf(id, name, actor_on(id), addresses[id])
        places[id].tasks.append(task)
    return list(places.values())


class Link:
    """Joins `theirs`, the other end of an `Away`'s channel, to the node's actor, from which the
    record comes as well. It ends when the supervisor closes its end, or when the node is lost.
    """

    def __init__(self, node: RayNodeOf, files: RunDir, theirs: socket.socket) -> None:
        self.node, self.files, self.run, self._theirs = node, files, node.run, theirs
        self._parcels = Parcels(files)
        self._beats = Beats(files.beats, files.spec.tasks)
        for what in (self._bring, self._send):
            name = f"lockstep-{node.name}"
            threading.Thread(target=what, name=name, daemon=True).start()

    def _send(self) -> None:
        """Pass the supervisor's orders on; after the last one, the run is over on this node."""
        with contextlib.suppress(OSError):
            while lines := self._theirs.recv(1 << 20):
                self.node.actor.order.remote(self.run, lines, [])
        with contextlib.suppress(Exception):  # the cluster may be gone
            self.node.actor.close.remote(self.run)

    def _bring(self) -> None:
        """Bring what the node tells, until it is gone."""
        due = (heard := own()) + EVERY
        # at an error the node is lost, or nobody listens any more
        with contextlib.suppress(OSError, Unavailable, ray.exceptions.RayError):
            while True:
                hear = self.node.actor.hear.remote(self.run)
                messages, parcels, beats = ray.get(hear, timeout=SILENT)
                heard = own()
                self._parcels.keep(parcels)
                for task, slot in beats.items():
                    self._beats.lay(task, slot)
                if messages is None:
                    break
                if messages:
                    self._theirs.sendall(messages)
                if notices := self._parcels.new():
                    self.node.actor.order.remote(self.run, b"", notices)
                if own() > due:
                    self.node.read_clock()
                    self.node.note_clock(self.files)
                    due = own() + EVERY
                    line = b'{"do": "clock", "offset": %r}\n' % self.node.offset
                    self.node.actor.order.remote(self.run, line, [])
        with contextlib.suppress(OSError):
            self._theirs.sendall(b'{"until": %.3f}\n' % (heard - self.files.facts.origin))
            self._theirs.shutdown(socket.SHUT_RDWR)


def check_versions(nodes: list[RayNodeOf]) -> None:
    """Raise `Unavailable` if a node has other versions than this process."""
    ours = versions()
    installed = answers(nodes, [node.actor.versions.remote() for node in nodes], BEGIN)
    for node, theirs in zip(nodes, installed, strict=True):
        for what, version in ours.items():
            if theirs.get(what) != version:
                has = f"{node.name} has {what} {theirs.get(what, 'not at all')}"
                cure = f"Install the same there: {what} {version}."
                raise Unavailable(WHAT, f"{has}, this is {version}", cure)


def answers(nodes: Sequence[RayNodeOf], calls: Sequence[Any], timeout: float) -> list[Any]:
    """Return the nodes' answers to calls. Raises `Unavailable` with the one that gives none."""
    answered = []
    for node, call in zip(nodes, calls, strict=True):
        cure = ADVICE
        try:
            answered.append(ray.get(call, timeout=timeout))
            continue
        except ray.exceptions.RayTaskError as error:
            why = f"{node.name} refused: {error.cause}"
        except ray.exceptions.GetTimeoutError:
            why = f"{node.name} does not answer within {timeout:g} s"
        except ray.exceptions.RayError:
            why = f"{node.name} was lost"
            cure = "Start the run again: Ray will do without that node."
        raise Unavailable(WHAT, why, cure)
    return answered
