"""From transfers to messages: what goes from one rank to another in a round travels as one message,
however many chunks it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from course_lib.collectives.schedule import Round, Schedule
from course_lib.errors import SpecError


@dataclass(frozen=True)
class Messages:
    """The messages of a round, as arrays with one row for each, in the order in which the round
    first names them.

    `bytes` goes from `src` to `dst`, and `reduced` of them are added there. An empty chunk is still
    a message. `of_row` is the message of each row of the round's arrays. What is the same as in the
    round before is the very same array, so that work on it can be kept.
    """

    src: np.ndarray
    dst: np.ndarray
    bytes: np.ndarray
    reduced: np.ndarray
    of_row: np.ndarray | None  # None: row i is message i


def chunk_ends(schedule: Schedule, nbytes: int, itemsize: int = 1) -> np.ndarray:
    """Where the chunks of a buffer of `nbytes` bytes end, in bytes, 0 first. A chunk holds whole
    elements of `itemsize` bytes.

    Raises SpecError where the buffer does not.
    """
    if nbytes < 0 or itemsize < 1 or nbytes % itemsize:
        raise SpecError("bytes", nbytes, f"a whole number of elements of {itemsize} bytes")
    return schedule.bounds(nbytes // itemsize) * itemsize


def messages(schedule: Schedule, nbytes: int, itemsize: int = 1) -> Iterator[Messages]:
    """The messages of each round of a schedule that `verify` accepts, for a buffer of `nbytes`
    bytes.
    """
    ends = chunk_ends(schedule, nbytes, itemsize)
    sizes = np.diff(ends)
    even = bool((sizes == sizes[0]).all())
    last: Round | None = None
    for r in schedule.rounds:
        if last is None or r.src is not last.src or r.dst is not last.dst:
            src, dst, of_row = _pairs(r, schedule.ranks)
            alike, nothing = np.full(len(r.src), sizes[0]), np.zeros(len(r.src), dtype=np.int64)
        last = r
        if r.span is not None:
            amount = ends[r.chunk + r.span] - ends[r.chunk]
        elif even:
            amount = alike
        else:
            amount = sizes[r.chunk]
        reduced = nothing if not r.reduce.any() else amount if r.reduce.all() else amount * r.reduce
        if of_row is not None:
            amount, reduced = (
                np.bincount(of_row, column, len(src)).astype(np.int64)
                for column in (amount, reduced)
            )
        yield Messages(src, dst, amount, reduced, of_row)


def _pairs(r: Round, ranks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The pairs of ranks that talk in a round, in the order in which it first names them, and the
    pair of each row.
    """
    pair = r.src.astype(np.int64) * ranks + r.dst
    unique, first, of_row = np.unique(pair, return_index=True, return_inverse=True)
    if len(unique) == len(pair):
        return r.src, r.dst, None
    order = np.argsort(first)
    rank_of = np.empty_like(order)
    rank_of[order] = np.arange(len(order))
    return r.src[first[order]], r.dst[first[order]], rank_of[of_row]
