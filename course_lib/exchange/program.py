"""What one rank has to do in each round of a schedule, and where each chunk lies meanwhile. Pure:
no processes, no bytes.

A chunk lies in the caller's own array, or in the shared buffer while ranks on the same host read it
there. It is copied from one to the other only where it must be: into the buffer before it is first
read, out of it after it is last written.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from course_lib.collectives.schedule import Schedule, Transfer


class Sent(NamedTuple):
    """A chunk of a message that goes out. `enters`: copy it into the shared buffer first; `shared`:
    that is where it lies.

    `guarded`: it will be written again there, once the peer has it.
    """

    chunk: int
    enters: bool
    shared: bool
    guarded: bool


class Received(NamedTuple):
    """A chunk of a message that comes. `reduce`: it is added to what is there, else it takes its
    place.

    `source`, `target`: whether what is there, and the result, lie in the shared buffer. `staged`:
    the result has to wait until what it replaces has been read. `leaves`: then it is copied out of
    the shared buffer as well.
    """

    chunk: int
    reduce: bool
    source: bool
    target: bool
    staged: bool
    leaves: bool


class Outgoing(NamedTuple):
    """A message to `peer`: everything that goes there in one round."""

    peer: int
    parts: tuple[Sent, ...]


class Incoming(NamedTuple):
    """A message from `peer`. `confirm`: the peer must know when it has been read."""

    peer: int
    parts: tuple[Received, ...]
    confirm: bool


class Step(NamedTuple):
    """What a rank sends and receives in one round, in the order in which the schedule names it."""

    sends: tuple[Outgoing, ...]
    receives: tuple[Incoming, ...]


class Program(NamedTuple):
    """All rounds of a rank; the `peers` that it hears from or sends to, and those that it sends to."""

    steps: tuple[Step, ...]
    peers: tuple[int, ...]
    sent_to: tuple[int, ...]


def program(schedule: Schedule, rank: int, place: Sequence[int], private: bool = True) -> Program:
    """The part of `rank` in a schedule that `verify` accepts, with the host of each rank.

    Without a `private` array the caller's numbers are in the shared buffer from the beginning, and
    stay there.
    """
    rounds = [list(r) for r in schedule.rounds]
    # the round of the last message of a pair
    last = {(t.src, t.dst): number for number, transfers in enumerate(rounds) for t in transfers}
    mine = [[t for t in transfers if rank in t[:2]] for transfers in rounds]
    peers = sorted({r for transfers in mine for t in transfers for r in t[:2]} - {rank})
    guarding = {peer: _guarded(rounds, peer, rank, place, private) for peer in peers}
    lies = _Lies(mine, rank, place, private)
    steps = []
    for number, transfers in enumerate(mine):
        out: dict[int, list[Sent]] = defaultdict(list)
        into: dict[int, list[Received]] = defaultdict(list)
        # message by message, as they leave
        for t in _by_peer([t for t in transfers if t.src == rank], 1):
            out[t.dst].append(lies.sent(t, number))
        coming = [
            t
            for src in dict.fromkeys(t.src for t in transfers)
            for t in transfers
            if t.src == src != rank
        ]  # as they will be applied
        for i, t in enumerate(coming):
            again = any(other.chunk == t.chunk for other in coming[i + 1 :])
            into[t.src].append(lies.received(t, number, again))
        lies.settle()
        sends = tuple(Outgoing(peer, tuple(parts)) for peer, parts in out.items())
        receives = (
            Incoming(p, tuple(parts), last[p, rank] == number or number in guarding[p])
            for p, parts in into.items()
        )
        steps.append(Step(sends, tuple(receives)))
    sent_to = {m.peer for step in steps for m in step.sends}
    return Program(tuple(steps), tuple(peers), tuple(sorted(sent_to)))


def _by_peer(transfers: list[Transfer], end: int) -> list[Transfer]:
    """Sorted into messages, in the order in which the round first names them."""
    return [
        t for peer in dict.fromkeys(t[end] for t in transfers) for t in transfers if t[end] == peer
    ]


def _guarded(
    rounds: list[list[Transfer]], rank: int, reader: int, place: Sequence[int], private: bool
) -> set[int]:
    """The rounds in which `rank` sends `reader` something that it will write over."""
    mine = [[t for t in transfers if rank in t[:2]] for transfers in rounds]
    lies = _Lies(mine, rank, place, private)
    found = set()
    for number, transfers in enumerate(mine):
        for t in transfers:
            if t.src == rank and lies.sent(t, number).guarded and t.dst == reader:
                found.add(number)
        for t in transfers:
            if t.dst == rank:
                lies.received(t, number, again=False)
        lies.settle()
    return found


class _Lies:
    """Where each chunk of a rank lies, as the rounds go by."""

    def __init__(
        self, mine: list[list[Transfer]], rank: int, place: Sequence[int], private: bool
    ) -> None:
        self.private, self.near = private, [host == place[rank] for host in place]
        # chunk -> rounds in which ranks on this host read it
        self.read: dict[int, list[int]] = defaultdict(list)
        # chunk -> rounds in which it is written
        self.write: dict[int, list[int]] = defaultdict(list)
        for number, transfers in enumerate(mine):
            for t in transfers:
                if t.src != rank:
                    self.write[t.chunk].append(number)
                elif self.near[t.dst]:
                    self.read[t.chunk].append(number)
        self.shared: dict[int, bool] = defaultdict(lambda: not private)
        self.entered: set[int] = set()
        # chunks that leave in this round, and from where
        self.going: dict[int, set[bool]] = defaultdict(set)
        self.next: dict[int, bool] = {}

    def sent(self, t: Transfer, number: int) -> Sent:
        shared = self.shared[t.chunk]
        enters = self.near[t.dst] and not shared and t.chunk not in self.entered
        if enters:
            self.entered.add(t.chunk)
        where = shared or self.near[t.dst]
        self.going[t.chunk].add(where)
        last = max(self.write[t.chunk], default=-1)
        guarded = any(
            w >= number and (self._target(t.chunk, w) == where or (w == last and not where))
            for w in self.write[t.chunk]
        )
        return Sent(t.chunk, enters, where, guarded)

    def received(self, t: Transfer, number: int, again: bool) -> Received:
        """`again`: another transfer of this round writes the same chunk after this one."""
        source, target = self.next.get(t.chunk, self.shared[t.chunk]), self._target(t.chunk, number)
        self.next[t.chunk] = target
        leaves = self.private and target and not again and number == self.write[t.chunk][-1]
        staged = target in self.going[t.chunk] or (leaves and False in self.going[t.chunk])
        return Received(t.chunk, t.op == "reduce", source, target, staged, leaves)

    def settle(self) -> None:
        """The end of a round."""
        self.shared.update(self.next)
        self.next.clear()
        self.going.clear()

    def _target(self, chunk: int, number: int) -> bool:
        """Whether what is written in a round is read by ranks on this host before it is written
        again.
        """
        until = min((w for w in self.write[chunk] if w > number), default=math.inf)
        return not self.private or any(number < r <= until for r in self.read[chunk])
