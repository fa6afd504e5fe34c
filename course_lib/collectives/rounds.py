"""Rounds and their transfers, written in one of two ways: as lists, which a learner writes, or as
arrays, for thousands of ranks.

Both are read in the same way: `schedule.rounds[2][0]` is a `Transfer`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from course_lib.errors import SpecError

Op = Literal["reduce", "copy"]
OPS: tuple[Op, Op] = ("copy", "reduce")  # at index False and True of `Round.reduce`


class Transfer(NamedTuple):
    """Chunk `chunk` goes from rank `src` to rank `dst`, where it is added to what is there (op
    "reduce") or replaces it ("copy").
    """

    src: int
    dst: int
    chunk: int
    op: Op

    def __str__(self) -> str:
        return f"{self.src}→{self.dst} {'+' if self.op == 'reduce' else '='}c{self.chunk}"


class Round(Sequence[Transfer]):
    """The transfers of one round, held as arrays: row i takes `span[i]` chunks, from `chunk[i]` on,
    from `src[i]` to `dst[i]`.

    Any of `src`, `dst`, `chunk` and `span` may be one number for all rows. As a sequence it has one
    `Transfer` for each chunk.
    """

    __slots__ = ("chunk", "dst", "reduce", "span", "src")

    def __init__(
        self, src: Any, dst: Any, chunk: Any, op: Op | np.ndarray, span: Any = None
    ) -> None:
        rows = max(map(np.size, (src, dst, chunk)))
        self.src, self.dst, self.chunk = (
            _column(src, rows),
            _column(dst, rows),
            _column(chunk, rows),
        )
        self.span = None if span is None else _column(span, rows)  # None: one chunk in each row
        self.reduce = np.full(rows, op == "reduce") if isinstance(op, str) else op

    @classmethod
    def of(cls, transfers: Iterable[Any], number: int = 0) -> Round:
        """A round from transfers or plain 4-tuples. Raises SpecError, with the `number` of the
        round, for something else.
        """
        if isinstance(transfers, Round):
            return transfers
        rows = [_transfer(t, number) for t in transfers]
        src, dst, chunk = np.array([t[:3] for t in rows], dtype=np.int64).reshape(-1, 3).T
        return cls(src, dst, chunk, np.array([t.op == "reduce" for t in rows], dtype=bool))

    def __len__(self) -> int:
        return len(self.src) if self.span is None else int(self.span.sum())

    def __iter__(self) -> Iterator[Transfer]:
        span = [1] * len(self.src) if self.span is None else self.span.tolist()
        rows = zip(
            self.src.tolist(),
            self.dst.tolist(),
            self.chunk.tolist(),
            span,
            self.reduce.tolist(),
            strict=True,
        )
        return (
            Transfer(s, d, c, OPS[r]) for s, d, first, n, r in rows for c in range(first, first + n)
        )

    @overload
    def __getitem__(self, index: int) -> Transfer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Transfer, ...]: ...
    def __getitem__(self, index: int | slice) -> Transfer | tuple[Transfer, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        if len(self) == 0 or len(self) > 1000:
            return f"Round({len(self)} transfers)"
        more = ", ..." if len(self) > 4 else ""
        return f"Round({len(self)} transfers: {', '.join(map(str, self[:4]))}{more})"


def _column(value: Any, rows: int) -> np.ndarray:
    return (
        value
        if np.ndim(value) and isinstance(value, np.ndarray)
        else np.broadcast_to(np.asarray(value, dtype=np.int64), rows)
    )


def _transfer(given: Any, number: int) -> Transfer:
    """The transfer that a learner gave in round `number`. Raises SpecError."""
    try:
        src, dst, chunk, op = given
    except (TypeError, ValueError):
        raise SpecError(
            f"rounds[{number}]", given, "each transfer is Transfer(src, dst, chunk, op)"
        ) from None
    if op not in OPS:
        raise SpecError(
            f"rounds[{number}] {src}→{dst} op",
            op,
            "'reduce' (add to what is there) or 'copy' (take its place)",
        )
    for name, value in (("src", src), ("dst", dst), ("chunk", chunk)):
        if not hasattr(value, "__index__"):
            raise SpecError(
                f"rounds[{number}] {name}", value, "a whole number (divide with //, not /)"
            )
    return Transfer(operator.index(src), operator.index(dst), operator.index(chunk), op)


class Rounds(Sequence[Round]):
    """`count` rounds that are made when they are needed: round i is `make(i)`.

    `a + b` is the rounds of `a`, then those of `b`.
    """

    def __init__(self, count: int, make: Callable[[int], Round]) -> None:
        self._parts: tuple[tuple[int, Callable[[int], Round]], ...] = ((count, make),)

    def __add__(self, other: Rounds) -> Rounds:
        both = Rounds.__new__(Rounds)
        both._parts = self._parts + other._parts
        return both

    def __len__(self) -> int:
        return sum(count for count, _ in self._parts)

    def __iter__(self) -> Iterator[Round]:
        return (make(i) for count, make in self._parts for i in range(count))

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, index: int | slice) -> Round | tuple[Round, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        at = index + len(self) if index < 0 else index
        for count, make in self._parts:
            if 0 <= at < count:
                return make(at)
            at -= count
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (list(self),)  # the functions that make rounds do not pickle, the rounds do

    def __repr__(self) -> str:
        return f"Rounds({len(self)})"
