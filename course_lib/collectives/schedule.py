"""A collective as data: a `Schedule` is a sequence of rounds, and a round is a set of transfers.

The buffer of every rank is cut into equal chunks. A transfer sends one chunk from `src` to `dst`,
where it is added to what is there ("reduce") or replaces it ("copy"). All transfers of a round read
what was there at the start of the round. There is no barrier between rounds: a rank goes on when
its own sends of the round have left and its own receives have been applied.

Rounds can be written as lists, which is what a learner does, or as arrays, for thousands of ranks.
Both are read in the same way: `schedule.rounds[2][0]` is a `Transfer`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from course_lib.errors import SpecError
from course_lib.text import count

CollectiveKind = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast", "all_to_all"
]
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
    """The transfers of one round, as arrays: row i sends `span[i]` chunks, from `chunk[i]` on,
    from rank `src[i]` to rank `dst[i]`.

    Each of `src`, `dst`, `chunk` and `span` may be one number for all rows. As a sequence, a round
    has one `Transfer` for each chunk sent.
    """

    __slots__ = ("chunk", "dst", "reduce", "span", "src")

    def __init__(
        self, src: Any, dst: Any, chunk: Any, op: Op | np.ndarray, span: Any = None
    ) -> None:
        self.src, self.dst, self.chunk = np.broadcast_arrays(*np.atleast_1d(src, dst, chunk))
        rows = len(self.src)
        # None: one chunk in each row
        self.span = None if span is None else np.broadcast_to(span, rows)
        self.reduce = np.full(rows, op == "reduce") if isinstance(op, str) else op

    @classmethod
    def of(cls, transfers: Iterable[Any], number: int = 0) -> Round:
        """A round from transfers or plain 4-tuples. Raises SpecError, which names the `number` of
        the round, for anything else.
        """
        if isinstance(transfers, Round):
            return transfers
        rows = [_transfer(t, number) for t in transfers]
        src, dst, chunk = np.array([t[:3] for t in rows], dtype=np.int64).reshape(-1, 3).T
        return cls(src, dst, chunk, np.array([t.op == "reduce" for t in rows], dtype=bool))

    def __len__(self) -> int:
        return len(self.src) if self.span is None else int(self.span.sum())

    def __iter__(self) -> Iterator[Transfer]:
        span = np.ones_like(self.src) if self.span is None else self.span
        columns = (self.src, self.dst, self.chunk, span, self.reduce)
        for src, dst, first, chunks, reduce in zip(*(c.tolist() for c in columns), strict=True):
            for chunk in range(first, first + chunks):
                yield Transfer(src, dst, chunk, OPS[reduce])

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Round({len(self)} transfers: {_listed(self, 4)})"


def _transfer(given: Any, number: int) -> Transfer:
    """The transfer that a learner gave in round `number`. Raises SpecError."""
    with contextlib.suppress(TypeError, ValueError):
        *numbers, op = given
        src, dst, chunk = map(operator.index, numbers)
        if op in OPS:
            return Transfer(src, dst, chunk, op)
    allowed = "each transfer is Transfer(src, dst, chunk, op), with whole numbers (divide with //, "
    allowed += "not /), and as op 'reduce' (add to what is there) or 'copy' (take its place)"
    raise SpecError(f"rounds[{number}]", given, allowed)


@dataclass(frozen=True, repr=False)
class Schedule:
    """A collective for `workers` workers over a buffer of `chunks` chunks.

    - `rounds`: a sequence of rounds, each a sequence of `Transfer`.
    - `kind`: the goal. "all_reduce": every worker ends with the sum; "reduce_scatter" and "reduce":
      the owner of a chunk ends with its sum; "all_gather" and "broadcast": every worker ends with
      what the owner of a chunk had at the start; "all_to_all": of workers x workers chunks, worker
      w ends with what the owner of chunk c had, for c % workers = w.
    - `owners`: the rank that owns each chunk, for all kinds but "all_reduce" (default: chunk c
      belongs to worker c; of an "all_to_all", to worker c // workers).
    - `servers`: ranks beyond the workers, `workers` to `workers + servers - 1`; they contribute
      nothing and need no result.
    - `hosts`: the host of each rank (default: all on host 0).

    Ranks that contribute nothing to a chunk start with zeros there. Raises SpecError if the fields
    do not fit together; whether the rounds reach the goal is checked by `verify`.
    """

    name: str
    workers: int
    chunks: int
    rounds: Sequence[Round]
    kind: CollectiveKind = "all_reduce"
    owners: tuple[int, ...] = ()
    servers: int = 0
    hosts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("chunks", 1), ("servers", 0)):
            check_number(name, getattr(self, name), least)
        if self.kind not in get_args(CollectiveKind):
            raise SpecError.unknown("kind", self.kind, get_args(CollectiveKind))
        self._set("rounds", tuple(Round.of(r, i) for i, r in enumerate(self.rounds)))
        if self.kind != "all_reduce" and not self.owners:
            each = self.workers if self.kind == "all_to_all" else 1
            self._set("owners", tuple(chunk // each for chunk in range(self.chunks)))
        owners = tuple(map(int, self.owners))
        fit = len(owners) == self.chunks and all(0 <= rank < self.workers for rank in owners)
        if owners and not fit:
            allowed = f"one rank from 0 to {self.workers - 1} for each of {self.chunks} chunks"
            raise SpecError("owners", owners, allowed)
        self._set("owners", owners)
        self._set("hosts", place(self.ranks, self.hosts or (0,) * self.ranks))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def ranks(self) -> int:
        """Workers and servers together."""
        return self.workers + self.servers

    def task(self, rank: int) -> str:
        """The task of a rank: `worker:3`, or `ps:0` for the first rank beyond the workers."""
        return f"worker:{rank}" if rank < self.workers else f"ps:{rank - self.workers}"

    def bounds(self, length: int) -> np.ndarray:
        """The bounds of the chunks of a buffer of `length` elements, shape (chunks + 1,):
        chunk c is `[bounds[c], bounds[c + 1])`.
        """
        return bounds(length, self.chunks)

    def byte_ends(self, nbytes: int, itemsize: int = 1) -> np.ndarray:
        """The same in bytes, for a buffer of `nbytes` bytes whose elements have `itemsize` bytes.

        Raises SpecError if that is no whole number of elements.
        """
        if nbytes < 0 or itemsize < 1 or nbytes % itemsize:
            raise SpecError("bytes", nbytes, f"a whole number of elements of {itemsize} bytes")
        return self.bounds(nbytes // itemsize) * itemsize

    def placed(self, hosts: int | Sequence[int]) -> Schedule:
        """The same schedule on `hosts`: a number of hosts, which get equal blocks of workers, or
        the host of each worker or of each rank.

        Servers without a place in `hosts` are dealt out to the hosts in turn.
        """
        placement = place(self.workers, hosts) if isinstance(hosts, int) else tuple(hosts)
        if len(placement) == self.workers:
            used = sorted(set(placement))
            placement += tuple(used[server % len(used)] for server in range(self.servers))
        return replace(self, hosts=placement)

    @property
    def digest(self) -> str:
        """16 hex digits, equal for two schedules with the same transfers, whatever their names and
        hosts.
        """
        facts = (self.workers, self.servers, self.chunks, self.kind, self.owners)
        state = hashlib.blake2b(repr(facts).encode(), digest_size=8)
        for r in self.rounds:
            transfers = np.array([(*t[:3], t.op == "reduce") for t in r], dtype=np.int64)
            state.update(transfers.tobytes() + b"round")
        return state.hexdigest()

    def __repr__(self) -> str:
        servers = f" + {count(self.servers, 'server')}" if self.servers else ""
        return (
            f"Schedule({self.name}: {self.kind}, {count(self.workers, 'worker')}{servers}, "
            f"{count(self.chunks, 'chunk')}, {count(len(self.rounds), 'round')})"
        )

    def __str__(self) -> str:
        """A line for each round, with an arrow for each transfer; long ones are cut."""
        lines = [f"  {i}: {_listed(r, 16)}" for i, r in enumerate(self.rounds)]
        return _listed([repr(self), *lines], 33, "\n")


def _listed(items: Sequence[object], most: int, separator: str = ", ") -> str:
    """Join the first items as text; dots stand for more."""
    more = ["..."] if len(items) > most else []
    return separator.join([*map(str, itertools.islice(items, most)), *more])


def check_number(name: str, value: int, least: int = 1) -> int:
    """Return `value` if it is a whole number and at least `least`, else raise SpecError."""
    if not isinstance(value, int) or value < least:
        raise SpecError(name, value, f"a whole number from {least} on")
    return value


def bounds(length: int, chunks: int) -> np.ndarray:
    """The ends of `chunks` nearly equal parts of `length` elements, 0 first, shape (chunks + 1,);
    the first parts get one element more, as in numpy.array_split.
    """
    size, extra = divmod(length, chunks)
    part = np.arange(chunks + 1)
    return part * size + np.minimum(part, extra)


def place(ranks: int, hosts: int | Sequence[int]) -> tuple[int, ...]:
    """The host of each rank: `hosts` is a number of hosts, which get equal blocks of neighbours, or
    the host of each rank. Raises SpecError for a number or a sequence that does not fit.
    """
    if isinstance(hosts, int):
        if not 1 <= hosts <= ranks:
            allowed = f"a number from 1 to {ranks}, one host for each rank at most"
            raise SpecError("hosts", hosts, allowed)
        return tuple(np.repeat(np.arange(hosts), np.diff(bounds(ranks, hosts))).tolist())
    placement = tuple(map(int, hosts))
    if len(placement) != ranks or min(placement) < 0:
        allowed = f"a number of hosts, or the host (from 0 on) of each of {ranks} ranks"
        raise SpecError("hosts", placement, allowed)
    return placement
