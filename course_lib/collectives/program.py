"""What each rank does when processes carry out a schedule: a list of operations, done one after
another. It is pure data: no processes, no bytes, no clock.

`exchange.execution` carries out the list on bytes.

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
from itertools import chain
from typing import Any, NamedTuple

from course_lib.collectives.schedule import Schedule, Transfer

# bytes in a piece: so few that they are still in a core's cache when the next rank reads them, and
# so many that waking that rank is worth it
PIECE = 1 << 20

# Places: the caller's array, the shared buffer, and from SPARE on spare arrays for sums that have
# to wait because what they replace is still being read.
MINE, SHARED, SPARE = 0, 1, 2


class Begin(NamedTuple):
    """Begin a call: connect to the `peers`, and tell those in `sent_to` what the call is about."""

    peers: tuple[int, ...]
    sent_to: tuple[int, ...]


class Offer(NamedTuple):
    """Offer a piece of a message to `peer`: first copy the spans in `enters` from the own array to
    the shared buffer; then the peer may read the `parts`, each of which is a place and a span.
    """

    round: int
    peer: int
    enters: tuple[slice, ...]
    parts: tuple[tuple[int, slice], ...]


class Await(NamedTuple):
    """Wait until the next piece from `peer` is there; `first`: whether it is the first of a
    message.
    """

    round: int
    peer: int
    first: bool


class UntilRead(NamedTuple):
    """Wait until `peer` has read the first `pieces` pieces that were offered to it in this call."""

    peer: int
    pieces: int


class Part(NamedTuple):
    """A span of a received piece: add it to what is at the place `source` (None: only copy it) and
    put the result at the place `target`; if `leaves`, also in the own array.
    """

    source: int | None
    target: int
    leaves: bool
    span: slice


class Take(NamedTuple):
    """Read the awaited piece from `peer`, and show the peer that it has been read.

    `chunks`: if this is the last piece of a message, each of its chunks and how many elements that
    has; else empty.
    """

    round: int
    peer: int
    parts: tuple[Part, ...]
    chunks: tuple[tuple[int, int], ...]


class Store(NamedTuple):
    """Copy a sum that had to wait from the place `source` to `target`; if `leaves`, also to the own
    array.
    """

    source: int
    target: int
    leaves: bool
    span: slice


Operation = Begin | Offer | Await | UntilRead | Take | Store


class Programs:
    """The programs of all ranks for a schedule that `verify` accepts; `place` is the host of each
    rank.

    If not `private`, the callers' numbers are in the shared buffers from the beginning, and stay
    there.
    """

    def __init__(self, schedule: Schedule, place: Sequence[int], private: bool = True) -> None:
        self.schedule, self.place, self.private = schedule, tuple(place), private
        # by rank and round: the transfers from or to the rank
        self._transfers: list[list[list[Transfer]]] = [
            [[] for _ in schedule.rounds] for _ in range(schedule.ranks)
        ]
        for number, transfers in enumerate(schedule.rounds):
            for t in transfers:
                self._transfers[t.src][number].append(t)
                self._transfers[t.dst][number].append(t)

    def program(self, rank: int, length: int, itemsize: int) -> list[Operation]:
        """The operations of `rank`, for buffers of `length` elements of `itemsize` bytes."""
        layout = _Layout(self.place, self.private, rank, self._transfers[rank])
        return _Compiler(layout, self.schedule.bounds(length).tolist(), itemsize).program()


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


class _Layout:
    """Follows, round by round, in which place each chunk of a rank is."""

    def __init__(
        self, place: Sequence[int], private: bool, rank: int, transfers: list[list[Transfer]]
    ) -> None:
        self.rank, self.private = rank, private
        self.near = [host == place[rank] for host in place]
        # chunk -> the rounds in which ranks of this host read it, and the rounds of those transfers
        # that have yet to write it
        self.reads: dict[int, list[int]] = defaultdict(list)
        self.writes: dict[int, deque[int]] = defaultdict(deque)
        for number, listed in enumerate(transfers):
            for t in listed:
                if t.dst == rank:
                    self.writes[t.chunk].append(number)
                elif self.near[t.dst]:
                    self.reads[t.chunk].append(number)
        self.lies: dict[int, int] = defaultdict(lambda: MINE if private else SHARED)
        self.entered: set[int] = set()
        self.rounds = [self._round(number, listed) for number, listed in enumerate(transfers)]

    def _round(self, number: int, transfers: list[Transfer]) -> tuple[_Sends, _Receives]:
        out, into = defaultdict(list), defaultdict(list)
        for t in transfers:
            if t.src == self.rank:
                out[t.dst].append(t)
            else:
                into[t.src].append(t)
        sends = {peer: [self._sent(t) for t in listed] for peer, listed in out.items()}
        leaving: dict[int, set[int]] = defaultdict(set)  # chunk -> places from which it is sent
        for part in chain.from_iterable(sends.values()):
            leaving[part.chunk].add(part.place)
        receives = {
            peer: [self._received(t, number, leaving[t.chunk]) for t in listed]
            for peer, listed in into.items()
        }
        return sends, receives

    def _sent(self, t: Transfer) -> _Sent:
        here, near = self.lies[t.chunk], self.near[t.dst]
        enters = near and here == MINE and t.chunk not in self.entered
        if enters:
            self.entered.add(t.chunk)
        return _Sent(t.chunk, SHARED if near else here, enters)

    def _received(self, t: Transfer, number: int, leaving: set[int]) -> _Received:
        self.writes[t.chunk].popleft()
        source, target = self.lies[t.chunk], self._target(t.chunk, number)
        self.lies[t.chunk] = target
        leaves = self.private and target == SHARED and not self.writes[t.chunk]
        staged = target in leaving or (leaves and MINE in leaving)
        return _Received(t.chunk, source if t.op == "reduce" else None, target, leaves, staged)

    def _target(self, chunk: int, number: int) -> int:
        """The shared buffer, if ranks of this host read what the round writes before it is written
        again; else the own array.
        """
        until = min((w for w in self.writes[chunk] if w > number), default=math.inf)
        is_read = any(number < r <= until for r in self.reads[chunk])
        return SHARED if is_read or not self.private else MINE


class _Compiler:
    """Cuts the messages of a rank into pieces, and lists the operations on each."""

    def __init__(self, layout: _Layout, ends: list[int], itemsize: int) -> None:
        self.rounds, self.ends = layout.rounds, ends
        self.piece = max(1, PIECE // itemsize)  # elements
        self.offered: Counter[int] = Counter()  # pieces, by peer
        # place, chunk, piece -> the peers that read it, each with how many pieces it has read by
        # then
        self.unread: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        self.ops: list[Operation] = []

    def program(self) -> list[Operation]:
        sent_to = {peer for sends, _ in self.rounds for peer in sends}
        peers = sent_to.union(*(receives for _, receives in self.rounds))
        self.ops.append(Begin(tuple(sorted(peers)), tuple(sorted(sent_to))))
        arriving: _Receives = {}  # what was sent in the round before
        for number, (sends, receives) in enumerate([*self.rounds, ({}, {})]):
            messages: list[Any] = [*arriving.values(), *sends.values()]
            for k in range(max(map(self._pieces, messages), default=0)):
                self._receive(number - 1, arriving, k)
                self._offer(number, sends, k)
            arriving = receives
        return self.ops

    def _offer(self, number: int, sends: _Sends, k: int) -> None:
        for peer, parts in sends.items():
            if k >= self._pieces(parts):
                continue
            self.offered[peer] += 1
            spans = [self._span(part.chunk, k) for part in parts]
            listed = list(zip(parts, spans, strict=True))
            enters = _joined([(span,) for part, span in listed if part.enters])
            places = _joined([(part.place, span) for part, span in listed])
            self.ops.append(Offer(number, peer, tuple(span for (span,) in enters), tuple(places)))
            for part in parts:
                self.unread[part.place, part.chunk, k].append((peer, self.offered[peer]))

    def _receive(self, number: int, receives: _Receives, k: int) -> None:
        """Staged sums are stored only when all pieces have been read, so that ranks never wait for
        one another in a circle.
        """
        # chunk -> its last part, and the place of the sum
        staged: dict[int, tuple[_Received, int]] = {}
        for peer, received in receives.items():
            pieces = self._pieces(received)
            if k >= pieces:
                continue
            self.ops.append(Await(number, peer, first=k == 0))
            parts = []
            for part in received:
                source, target, leaves = part.source, part.target, part.leaves
                if part.staged:
                    _, target = staged.get(part.chunk, (part, SPARE + len(staged)))
                    source, leaves = target if part.chunk in staged else source, False
                    staged[part.chunk] = part, target
                else:
                    self._until_read(part, k)
                parts.append(Part(source, target, leaves, self._span(part.chunk, k)))
            whole = received if k == pieces - 1 else []
            chunks = tuple((part.chunk, self._length(part.chunk)) for part in whole)
            joined = tuple(Part(*part) for part in _joined(parts))
            self.ops.append(Take(number, peer, joined, chunks))
        for part, place in staged.values():
            self._until_read(part, k)
            self.ops.append(Store(place, part.target, part.leaves, self._span(part.chunk, k)))

    def _until_read(self, part: _Received, k: int) -> None:
        """Wait until what the result of a transfer replaces has been read."""
        for place in {part.target, MINE} if part.leaves else {part.target}:
            readers = self.unread.pop((place, part.chunk, k), ())
            self.ops += [UntilRead(peer, pieces) for peer, pieces in readers]

    def _pieces(self, parts: Iterable[_Sent] | Iterable[_Received]) -> int:
        """The number of pieces of a message; 1 if all its chunks are empty."""
        return max(1, -(-max(self._length(part.chunk) for part in parts) // self.piece))

    def _length(self, chunk: int) -> int:
        return int(self.ends[chunk + 1] - self.ends[chunk])

    def _span(self, chunk: int, k: int) -> slice:
        end = self.ends[chunk + 1]
        start = min(self.ends[chunk] + k * self.piece, end)
        return slice(start, min(start + self.piece, end))


def _joined(parts: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The same parts, of which each ends in its span, with adjoining spans joined if the parts are
    otherwise equal.
    """
    found: list[tuple[Any, ...]] = []
    for *treatment, span in parts:
        if found and [*found[-1][:-1]] == treatment and found[-1][-1].stop == span.start:
            span = slice(found.pop()[-1].start, span.stop)
        found.append((*treatment, span))
    return found
