"""The work of each rank when processes carry out a schedule: a list of operations, done one after
another. It is pure data: no processes, no bytes, no clock. `exchange.communicator` carries it out.

A rank has two buffers: the caller's own array, and a buffer in shared memory that ranks of the same
host read. A chunk is copied between them only when it must be: into the shared buffer before
another rank first reads it, and back to the own array after it was last written. Between hosts
messages go straight from buffer to buffer.

Long chunks travel in pieces: piece k of a message holds the k-th part of each of its chunks. As
soon as a piece has been received it is sent on in the next round, while the pieces after it are
still under way.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from course_lib.collectives.schedule import Schedule, Transfer

# bytes in a piece: so few that they are still in a core's cache when the next rank reads them, and
# so many that waking that rank is worth it
PIECE = 1 << 20

# Places: the caller's array, the shared buffer, and from SPARE on spare arrays for sums that have
# to wait because what they replace is still being read.
MINE, SHARED, SPARE = 0, 1, 2

Reads = tuple[tuple[int, int], ...]
"""Peers, each with a number of pieces: the peer must have read so many of those that were offered
to it in this call.
"""


class Offer(NamedTuple):
    """Offer a piece of a message to `peer`, which may read its `parts` from then on. Each is a
    place, whether it has to be copied there from the own array first, and a span.
    """

    round: int
    peer: int
    parts: tuple[tuple[int, bool, slice], ...]


class Part(NamedTuple):
    """A span of a received piece: add it to what is at the place `source` (None: only copy it) and
    put the result at the place `target`; if `leaves`, also in the own array.
    """

    source: int | None
    target: int
    leaves: bool
    span: slice


class Take(NamedTuple):
    """Wait for the next piece from `peer`, and for the reads in `after`; read the piece, and show
    the peer that it has been read.

    `first`: whether it is the first piece of a message. `chunks`: if it is the last one, each chunk
    of the message and how many elements that has; else empty.
    """

    round: int
    peer: int
    first: bool
    after: Reads
    parts: tuple[Part, ...]
    chunks: tuple[tuple[int, int], ...]


class Store(NamedTuple):
    """Wait for the reads in `after`; copy a sum that had to wait from the place `source`, as `part`
    says.
    """

    after: Reads
    source: int
    part: Part


class Program(NamedTuple):
    """The operations of a rank in a call, its peers, and those of them that it sends to."""

    peers: tuple[int, ...]
    sent_to: tuple[int, ...]
    operations: list[Offer | Take | Store]


def program(
    schedule: Schedule,
    place: Sequence[int],
    rank: int,
    length: int,
    itemsize: int,
    private: bool = True,
) -> Program:
    """The program of `rank` for a schedule that `verify` accepts, on buffers of `length` elements
    of `itemsize` bytes; `place` is the host of each rank.

    If not `private`, the callers' numbers are in the shared buffers from the beginning, and stay
    there.
    """
    near = [host == place[rank] for host in place]
    transfers = [[t for t in r if rank in (t.src, t.dst)] for r in schedule.rounds]
    rounds = _Places(rank, near, private).of(transfers)
    operations = _Pieces(schedule.bounds(length).tolist(), itemsize).of(rounds)
    sent_to = {peer for sends, _ in rounds for peer in sends}
    peers = sent_to.union(*(receives for _, receives in rounds))
    return Program(tuple(sorted(peers)), tuple(sorted(sent_to)), operations)


class _Sent(NamedTuple):
    """A chunk and the place from which it is sent. `enters`: whether it is copied into the shared
    buffer first.
    """

    chunk: int
    place: int
    enters: bool


class _Received(NamedTuple):
    """A chunk that is received: see `Part`. `staged`: whether the result has to wait in a spare
    array until the rank's own messages of the round have been read.
    """

    chunk: int
    source: int | None
    target: int
    leaves: bool
    staged: bool


# what a rank sends and receives in a round, for each peer, in the order in which the round first
# names the peers
_Sends = dict[int, list[_Sent]]
_Receives = dict[int, list[_Received]]


class _Places:
    """Follows, round by round, in which place each chunk of a rank is."""

    def __init__(self, rank: int, near: list[bool], private: bool) -> None:
        self.rank, self.near, self.private = rank, near, private
        # chunk -> the rounds in which ranks of this host read it, and the rounds of those transfers
        # that have yet to write it
        self.reads: dict[int, list[int]] = defaultdict(list)
        self.writes: dict[int, deque[int]] = defaultdict(deque)
        self.lies: dict[int, int] = defaultdict(lambda: MINE if private else SHARED)
        self.entered: set[int] = set()

    def of(self, rounds: list[list[Transfer]]) -> list[tuple[_Sends, _Receives]]:
        for number, transfers in enumerate(rounds):
            for t in transfers:
                if t.dst == self.rank:
                    self.writes[t.chunk].append(number)
                elif self.near[t.dst]:
                    self.reads[t.chunk].append(number)
        return [self._round(number, transfers) for number, transfers in enumerate(rounds)]

    def _round(self, number: int, transfers: list[Transfer]) -> tuple[_Sends, _Receives]:
        out: defaultdict[int, list[Transfer]] = defaultdict(list)
        into: defaultdict[int, list[Transfer]] = defaultdict(list)
        for t in transfers:
            (out[t.dst] if t.src == self.rank else into[t.src]).append(t)
        # peer by peer, as a chunk enters the shared buffer before the first peer reads it
        sends = {peer: [self._sent(t) for t in listed] for peer, listed in out.items()}
        leaving = {(part.chunk, part.place) for parts in sends.values() for part in parts}
        receives = {}
        for peer, listed in into.items():
            receives[peer] = [self._received(t, number, leaving) for t in listed]
        return sends, receives

    def _sent(self, t: Transfer) -> _Sent:
        here, near = self.lies[t.chunk], self.near[t.dst]
        enters = near and here == MINE and t.chunk not in self.entered
        self.entered |= {t.chunk} if enters else set()
        return _Sent(t.chunk, SHARED if near else here, enters)

    def _received(self, t: Transfer, number: int, leaving: set[tuple[int, int]]) -> _Received:
        """The result goes to the shared buffer if ranks of this host read it before it is written
        again, else to the own array.
        """
        writes = self.writes[t.chunk]
        writes.popleft()
        until = min((w for w in writes if w > number), default=math.inf)
        is_read = any(number < r <= until for r in self.reads[t.chunk])
        source, target = self.lies[t.chunk], SHARED if is_read or not self.private else MINE
        self.lies[t.chunk] = target
        leaves = self.private and target == SHARED and not writes
        places = {target, MINE} if leaves else {target}
        staged = any((t.chunk, place) in leaving for place in places)
        return _Received(t.chunk, source if t.op == "reduce" else None, target, leaves, staged)


class _Pieces:
    """Cuts the messages of a rank into pieces, and lists the operations on each."""

    def __init__(self, ends: list[int], itemsize: int) -> None:
        self.ends, self.piece = ends, max(1, PIECE // itemsize)  # both in elements
        self.offered: Counter[int] = Counter()  # pieces, by peer
        # place, chunk, piece -> the peers that read it, each with how many pieces it has read by
        # then
        self.unread: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        self.operations: list[Offer | Take | Store] = []

    def of(self, rounds: list[tuple[_Sends, _Receives]]) -> list[Offer | Take | Store]:
        arriving: _Receives = {}  # what was sent in the round before
        for number, (sends, receives) in enumerate([*rounds, ({}, {})]):
            messages: list[Any] = [*arriving.values(), *sends.values()]
            for k in range(max(map(self._count, messages), default=0)):
                self._receive(number - 1, arriving, k)
                self._offer(number, sends, k)
            arriving = receives
        return self.operations

    def _offer(self, number: int, sends: _Sends, k: int) -> None:
        for peer, parts in sends.items():
            if k >= self._count(parts):
                continue
            self.offered[peer] += 1
            spans = [(part.place, part.enters, self._span(part.chunk, k)) for part in parts]
            self.operations.append(Offer(number, peer, tuple(_joined(spans))))
            for part in parts:
                self.unread[part.place, part.chunk, k].append((peer, self.offered[peer]))

    def _receive(self, number: int, receives: _Receives, k: int) -> None:
        """Staged sums are stored only when all pieces have been read, so that ranks never wait for
        one another in a circle.
        """
        # chunk -> its last part, and the place of the sum
        staged: dict[int, tuple[_Received, int]] = {}
        for peer, received in receives.items():
            pieces = self._count(received)
            if k >= pieces:
                continue
            parts, after = [], []
            for part in received:
                source, target, leaves = part.source, part.target, part.leaves
                if part.staged:
                    _, target = staged.get(part.chunk, (part, SPARE + len(staged)))
                    source, leaves = target if part.chunk in staged else source, False
                    staged[part.chunk] = part, target
                else:
                    after += self._readers(part, k)
                parts.append((source, target, leaves, self._span(part.chunk, k)))
            whole = received if k == pieces - 1 else []
            chunks = tuple((c, self.ends[c + 1] - self.ends[c]) for c, *_ in whole)
            joined = tuple(Part(*part) for part in _joined(parts))
            self.operations.append(Take(number, peer, k == 0, tuple(after), joined, chunks))
        for part, place in staged.values():
            stored = Part(None, part.target, part.leaves, self._span(part.chunk, k))
            self.operations.append(Store(tuple(self._readers(part, k)), place, stored))

    def _readers(self, part: _Received, k: int) -> list[tuple[int, int]]:
        """The reads that must come before the result of a transfer replaces what is there."""
        places = {part.target, MINE} if part.leaves else {part.target}
        return [read for p in places for read in self.unread.pop((p, part.chunk, k), ())]

    def _count(self, parts: Iterable[_Sent] | Iterable[_Received]) -> int:
        """The number of pieces of a message; 1 if all its chunks are empty."""
        longest = max(self.ends[part.chunk + 1] - self.ends[part.chunk] for part in parts)
        return max(1, -(-longest // self.piece))

    def _span(self, chunk: int, k: int) -> slice:
        end = self.ends[chunk + 1]
        start = min(self.ends[chunk] + k * self.piece, end)
        return slice(start, min(start + self.piece, end))


def _joined(parts: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The same parts, of which each ends in its span, with adjoining spans joined if the parts are
    otherwise equal.
    """
    joined: list[tuple[Any, ...]] = []
    for *treatment, span in parts:
        if joined and [*joined[-1][:-1]] == treatment and joined[-1][-1].stop == span.start:
            span = slice(joined.pop()[-1].start, span.stop)
        joined.append((*treatment, span))
    return joined
