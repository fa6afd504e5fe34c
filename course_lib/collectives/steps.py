"""What each rank does, one thing after the other, when `exchange` carries out a schedule: the work
that `turns` shares out among cores.

A rank works α to hand a piece of a message to a rank of its host, which works α + nβ to read its n
bytes, and nγ more if it adds them. Between hosts both work α + nβ with the α and β of their link,
and what came is then added as if it had come from the same host. What else there is to do is the
same kind of work, and is counted in α: so α and β alone, found on one algorithm, say how long any
other takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from course_lib.collectives.messages import chunk_ends
from course_lib.collectives.model import Terms
from course_lib.collectives.schedule import Schedule

# Found once, by measuring nine algorithms on 2, 3, 4 and 8 ranks; with half or twice as much of any
# one, most times come out a few per cent worse.
CALL = 7  # α: a rank begins and ends a call
HEARD = 2  # α: a rank sees whether what it will write over has been read
# β: a sum that has to wait is written to a third array (half as much as a copy), and copied from
# there to its place
SWAP = 1.5
# bytes in which long chunks travel: still in a core's cache when the next rank reads them, and
# worth waking up for
PIECE = 1 << 20

Word = tuple[str, int, int]
"""What ranks tell each other: ("sent", a, b) is a piece from a to b, ("read", a, b) that b has read
one.
"""


class Step(NamedTuple):
    """A rank waits until it has been told `waits` so often (`number`), then does `work`, and then
    `tells` somebody.

    `message` says which message is sent or taken in this step: its round, its sender and its
    receiver.
    """

    work: Terms
    waits: Word | None = None
    number: int = 0
    tells: Word | None = None
    message: tuple[int, int, int] | None = None


class Part(NamedTuple):
    """A message as one of its ranks sees it: who is at the other end, each chunk and whether it is
    added, and in how many pieces it travels.
    """

    peer: int
    chunks: list[tuple[int, bool]]
    pieces: int


class Moves(NamedTuple):
    """What a rank sends and receives in a round."""

    sends: list[Part]
    receives: list[Part]


def steps(
    schedule: Schedule, nbytes: int, place: Sequence[int], itemsize: int = 1
) -> list[list[Step]]:
    """The steps of each rank, for a buffer of `nbytes` bytes and the host of each rank.

    May raise SpecError.
    """
    sizes = np.diff(chunk_ends(schedule, nbytes, itemsize)).tolist()
    piece = max(1, PIECE // itemsize) * itemsize
    moves = _moves(schedule, [max(1, -(-size // piece)) for size in sizes])
    return [
        list(_Rank(rank, moves[rank], sizes, piece, place).all()) for rank in range(schedule.ranks)
    ]


def _moves(schedule: Schedule, pieces: Sequence[int]) -> list[list[Moves]]:
    """By rank and round: its messages, in the order in which the round first names them.

    An empty round stands at the end.
    """
    found: list[list[Moves]] = [[] for _ in range(schedule.ranks)]
    for r in schedule.rounds:
        by_pair: dict[tuple[int, int], list[tuple[int, bool]]] = defaultdict(list)
        for t in r:
            by_pair[t.src, t.dst].append((t.chunk, t.op == "reduce"))
        now = [Moves([], []) for _ in range(schedule.ranks)]
        for (src, dst), chunks in by_pair.items():
            count = max(pieces[chunk] for chunk, _ in chunks)
            now[src].sends.append(Part(dst, chunks, count))
            now[dst].receives.append(Part(src, chunks, count))
        for rank, moves in enumerate(now):
            found[rank].append(moves)
    return [[*rounds, Moves([], [])] for rounds in found]


class _Rank:
    """Writes down the steps of one rank."""

    def __init__(
        self, rank: int, rounds: list[Moves], sizes: Sequence[int], piece: int, place: Sequence[int]
    ) -> None:
        self.rank, self.rounds, self.sizes, self.piece = rank, rounds, sizes, piece
        self.near = [host == place[rank] for host in place]
        self.last_write = {
            chunk: number
            for number, moves in enumerate(rounds)
            for part in moves.receives
            for chunk, _ in part.chunks
        }
        # chunk, piece -> peer, and how many it then has read
        self.unread: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self.sent: dict[int, int] = defaultdict(int)
        self.taken: dict[int, int] = defaultdict(int)

    def all(self) -> Iterator[Step]:
        """The order is that of `exchange.execution`: as soon as a piece is there, it goes on in the
        next round.
        """
        yield Step(Terms(messages=CALL))
        for k in range(_longest(self.rounds[0].sends)):
            yield from self._send(0, k)
        for number in range(len(self.rounds) - 1):  # after the last round stands an empty one
            for k in range(
                max(_longest(self.rounds[number].receives), _longest(self.rounds[number + 1].sends))
            ):
                yield from self._receive(number, k)
                yield from self._send(number + 1, k)

    def _send(self, number: int, k: int) -> Iterator[Step]:
        for part in self.rounds[number].sends:
            if k < part.pieces:
                self.sent[part.peer] += 1
                near, size = (
                    self.near[part.peer],
                    sum(self._size(chunk, k) for chunk, _ in part.chunks),
                )
                work = Terms(messages=1) if near else Terms(messages_across=1, bytes_across=size)
                yield Step(
                    work,
                    tells=("sent", self.rank, part.peer),
                    message=(number, self.rank, part.peer),
                )
                for chunk, _ in part.chunks:
                    if near and self.last_write.get(chunk, -1) >= number:
                        self.unread[chunk, k].append((part.peer, self.sent[part.peer]))

    def _receive(self, number: int, k: int) -> Iterator[Step]:
        going = {chunk for part in self.rounds[number].sends for chunk, _ in part.chunks}
        # chunks whose sum has to wait: others read them in this round
        waiting: dict[int, None] = {}
        for part in self.rounds[number].receives:
            if k < part.pieces:
                for chunk, _ in part.chunks:
                    if chunk in going:
                        waiting[chunk] = None
                    else:
                        yield from self._heard(chunk, k)
                yield self._take(part, number, k)
        for chunk in waiting:
            yield from self._heard(chunk, k)
            yield Step(Terms(bytes=SWAP * self._size(chunk, k)))

    def _take(self, part: Part, number: int, k: int) -> Step:
        self.taken[part.peer] += 1
        whole = sum(self._size(chunk, k) for chunk, _ in part.chunks)
        added = sum(self._size(chunk, k) for chunk, reduce in part.chunks if reduce)
        if self.near[part.peer]:
            work = Terms(messages=1, bytes=whole, reduced=added)
        else:
            work = Terms(bytes=added, messages_across=1, bytes_across=whole, reduced=added)
        pair = part.peer, self.rank
        return Step(
            work, ("sent", *pair), self.taken[part.peer], ("read", *pair), message=(number, *pair)
        )

    def _heard(self, chunk: int, k: int) -> Iterator[Step]:
        for peer, number in self.unread.pop((chunk, k), ()):
            yield Step(Terms(messages=HEARD), ("read", self.rank, peer), number)

    def _size(self, chunk: int, k: int) -> int:
        """Bytes of piece k of a chunk."""
        return max(0, min(self.piece, self.sizes[chunk] - k * self.piece))


def _longest(parts: Sequence[Part]) -> int:
    return max((part.pieces for part in parts), default=0)
