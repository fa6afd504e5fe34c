"""A call: a schedule with a length and a dtype, as one rank carries it out, with all that can be
worked out before it begins.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from course_lib.collectives.schedule import Schedule
from course_lib.collectives.steps import PIECE
from course_lib.exchange.program import Incoming, Outgoing, Program, Received, Sent


class Going(NamedTuple):
    """A piece of a message that goes out: its parts, and where each is in the array; `guards`:
    chunks of it that are guarded, shared or not.
    """

    peer: int
    parts: list[tuple[Sent, slice]]
    guards: list[tuple[bool, int]]


class Coming(NamedTuple):
    """A piece of a message that comes; the `first`, the `last`. Each part has the chunks that are
    in it.

    `transfers`: chunk and bytes of what has come in the whole message.
    """

    peer: int
    parts: list[tuple[Received, slice, tuple[int, ...]]]
    confirm: bool
    first: bool
    last: bool
    transfers: list[tuple[int, int]]


class Moves(NamedTuple):
    """What a rank does in a round: for each k the k-th pieces of all messages that have so many."""

    sends: list[list[Going]]
    receives: list[list[Coming]]


@dataclass(frozen=True)
class Call:
    """What ranks must agree on is what it is `about`, and `text` is how they tell each other."""

    schedule: Schedule
    program: Program
    length: int
    dtype: np.dtype
    about: dict[str, Any]
    text: bytes
    rounds: list[Moves]

    @classmethod
    def of(cls, schedule: Schedule, program: Program, length: int, dtype: np.dtype) -> Call:
        about = {
            "algorithm": schedule.name,
            "schedule": schedule.digest,
            "length": length,
            "dtype": dtype.name if dtype.kind == "V" else dtype.str,
        }
        cut = _Cut(schedule.bounds(length).tolist(), dtype.itemsize)
        rounds = [
            Moves(
                cut.all(cut.going(m) for m in step.sends),
                cut.all(cut.coming(m) for m in step.receives),
            )
            for step in program.steps
        ]
        return cls(schedule, program, length, dtype, about, json.dumps(about).encode(), rounds)


class _Cut:
    """Cuts messages into pieces: piece k of a message has the k-th part of each of its chunks.

    An empty chunk is a message too.
    """

    def __init__(self, ends: list[int], itemsize: int) -> None:
        self.ends, self.itemsize, self.size = ends, itemsize, max(1, PIECE // itemsize)

    def going(self, message: Outgoing) -> list[Any]:
        guards = [(part.shared, part.chunk) for part in message.parts if part.guarded]
        return [
            Going(message.peer, [(part, span) for part, span, _ in parts], guards)
            for parts in self._pieces(message.parts)
        ]

    def coming(self, message: Incoming) -> list[Any]:
        pieces = self._pieces(message.parts)
        transfers = [
            (part.chunk, (self.ends[part.chunk + 1] - self.ends[part.chunk]) * self.itemsize)
            for part in message.parts
        ]
        last = len(pieces) - 1
        return [
            Coming(message.peer, parts, message.confirm, k == 0, k == last, transfers)
            for k, parts in enumerate(pieces)
        ]

    def all(self, messages: Any) -> list[list[Any]]:
        """Sorted by k instead of by message."""
        listed = list(messages)
        return [
            [pieces[k] for pieces in listed if k < len(pieces)]
            for k in range(max(map(len, listed), default=0))
        ]

    def _pieces(self, parts: Sequence[Any]) -> list[list[tuple[Any, slice, tuple[int, ...]]]]:
        most = max(self.ends[p.chunk + 1] - self.ends[p.chunk] for p in parts)
        count = max(1, -(-most // self.size))
        pieces: list[list[tuple[Any, slice, tuple[int, ...]]]] = [
            [(p, self._span(p.chunk, k), (p.chunk,)) for p in parts] for k in range(count)
        ]
        return pieces if len(pieces) > 1 else [_joined(pieces[0])]

    def _span(self, chunk: int, k: int) -> slice:
        end = self.ends[chunk + 1]
        start = min(self.ends[chunk] + k * self.size, end)
        return slice(start, min(start + self.size, end))


def _joined(
    parts: Sequence[tuple[Any, slice, tuple[int, ...]]],
) -> list[tuple[Any, slice, tuple[int, ...]]]:
    """Neighbouring chunks of a message with which the same is done, as one part: so much less to do
    for small ones.
    """
    found: list[tuple[Any, slice, tuple[int, ...]]] = []
    for part, span, chunks in parts:
        if found:
            last, before, some = found[-1]
            if (
                before.stop == span.start
                and last._replace(chunk=0) == part._replace(chunk=0)
                and not getattr(part, "staged", False)
            ):
                found[-1] = last, slice(before.start, span.stop), some + chunks
                continue
        found.append((part, span, chunks))
    return found
