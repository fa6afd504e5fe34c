"""A collective as data: a `Schedule` is a sequence of rounds, and a round is a set of transfers.

The buffer of every rank is cut into equal chunks. A transfer takes one chunk from `src` to `dst`,
where it is added to what is there ("reduce") or takes its place ("copy"). All transfers of a round
read what was there at the start of the round. No barrier stands between rounds: a rank goes on when
its own sends of the round have left and its own receives have been applied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from course_lib.collectives.rounds import Op, Round, Rounds, Transfer
from course_lib.errors import SpecError

__all__ = [
    "Kind",
    "Op",
    "Round",
    "Rounds",
    "Schedule",
    "Transfer",
    "bounds",
    "check_workers",
    "place",
]

Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"]


@dataclass(frozen=True, repr=False)
class Schedule:
    """A collective for `workers` workers over a buffer of `chunks` chunks.

    - `rounds`: a sequence of rounds, each a sequence of `Transfer`.
    - `kind`: the goal. "all_reduce": every worker ends with the sum; "reduce_scatter" and "reduce":
      the owner of a chunk ends with its sum; "all_gather" and "broadcast": every worker ends with
      what the owner of a chunk had at the start.
    - `owners`: the rank that owns each chunk, for all kinds but "all_reduce" (default: chunk c
      belongs to worker c).
    - `servers`: ranks beyond the workers, `workers` to `workers + servers - 1`; they contribute
      nothing and need no result.
    - `hosts`: the host of each rank (default: all on host 0).

    Ranks that contribute nothing to a chunk start with zeros there. Raises SpecError when the parts
    do not fit together; whether the rounds reach the goal is for `verify` to say.
    """

    name: str
    workers: int
    chunks: int
    rounds: Sequence[Round]
    kind: Kind = "all_reduce"
    owners: tuple[int, ...] = ()
    servers: int = 0
    hosts: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        check_workers(self.workers)
        for name, least in (("chunks", 1), ("servers", 0)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise SpecError(name, getattr(self, name), f"a whole number from {least} on")
        if self.kind not in get_args(Kind):
            raise SpecError.unknown("kind", self.kind, get_args(Kind))
        if not isinstance(self.rounds, Rounds):
            self._set("rounds", tuple(Round.of(r, i) for i, r in enumerate(self.rounds)))
        if self.kind != "all_reduce" and not self.owners:
            self._set("owners", tuple(range(self.chunks)))
        owners = tuple(map(int, self.owners))
        if owners and (
            len(owners) != self.chunks or not all(0 <= r < self.workers for r in owners)
        ):
            raise SpecError(
                "owners",
                owners,
                f"one rank from 0 to {self.workers - 1} for each of {self.chunks} chunks",
            )
        self._set("owners", owners)
        self._set("hosts", place(self.ranks, self.hosts or (0,) * self.ranks))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def ranks(self) -> int:
        """Workers and servers together."""
        return self.workers + self.servers

    def task(self, rank: int) -> str:
        """The task that a rank is: `worker:3`, or `ps:0` for the first rank beyond the workers."""
        return f"worker:{rank}" if rank < self.workers else f"ps:{rank - self.workers}"

    def bounds(self, length: int) -> np.ndarray:
        """Where the chunks of a buffer of `length` elements begin and end, shape (chunks + 1,):
        chunk c is `[bounds[c], bounds[c + 1])`.
        """
        return bounds(length, self.chunks)

    def byte_ends(self, nbytes: int, itemsize: int = 1) -> np.ndarray:
        """The same in bytes, for a buffer of `nbytes` bytes whose elements have `itemsize` bytes.

        Raises SpecError where that is no whole number of elements.
        """
        if nbytes < 0 or itemsize < 1 or nbytes % itemsize:
            raise SpecError("bytes", nbytes, f"a whole number of elements of {itemsize} bytes")
        return self.bounds(nbytes // itemsize) * itemsize

    def placed(self, hosts: int | Sequence[int]) -> Schedule:
        """The same schedule on `hosts`: a number of hosts, which get equal blocks of workers, or
        the host of each worker or of each rank.

        Servers that are not placed are dealt out to the hosts in turn.
        """
        placement = place(self.workers, hosts) if isinstance(hosts, int) else tuple(hosts)
        if len(placement) == self.workers:
            used = sorted(set(placement))
            placement += tuple(used[server % len(used)] for server in range(self.servers))
        return replace(self, hosts=placement)

    @property
    def digest(self) -> str:
        """16 hex digits that are equal for two schedules if they do the same, whatever their names
        and hosts.
        """
        state = hashlib.blake2b(
            repr((self.workers, self.servers, self.chunks, self.kind, self.owners)).encode(),
            digest_size=8,
        )
        for r in self.rounds:
            state.update(
                np.array([(*t[:3], t.op == "reduce") for t in r], dtype=np.int64).tobytes()
                + b"round"
            )
        return state.hexdigest()

    def __repr__(self) -> str:
        servers = f" + {self.servers} servers" if self.servers else ""
        return (
            f"Schedule({self.name}: {self.kind}, {self.workers} workers{servers}, "
            f"{self.chunks} chunks, {len(self.rounds)} rounds)"
        )

    def __str__(self) -> str:
        """A line for each round, with an arrow for each transfer; long ones are cut."""
        lines = [
            f"  {i}: {', '.join(map(str, r[:16]))}{' ...' if len(r) > 16 else ''}"
            for i, r in enumerate(self.rounds[:32])
        ]
        return "\n".join([repr(self), *lines, *(["  ..."] if len(self.rounds) > 32 else [])])


def check_workers(workers: int) -> int:
    """Return a number of workers if it is one, else raise SpecError."""
    if not isinstance(workers, int) or workers < 1:
        raise SpecError("workers", workers, "a whole number from 1 on")
    return workers


def bounds(length: int, chunks: int) -> np.ndarray:
    """The ends of `chunks` nearly equal parts of `length` elements, 0 first, shape (chunks + 1,);
    the first parts get one element more (as in numpy.array_split).
    """
    size, extra = divmod(length, chunks)
    part = np.arange(chunks + 1)
    return part * size + np.minimum(part, extra)


def place(ranks: int, hosts: int | Sequence[int]) -> tuple[int, ...]:
    """The host of each rank: `hosts` is a number of hosts, which get equal blocks of neighbours, or
    the host of each rank. Raises SpecError.
    """
    if isinstance(hosts, int):
        if not 1 <= hosts <= ranks:
            raise SpecError(
                "hosts", hosts, f"a number from 1 to {ranks}, one host for each rank at most"
            )
        return tuple(np.repeat(np.arange(hosts), np.diff(bounds(ranks, hosts))).tolist())
    placement = tuple(map(int, hosts))
    if len(placement) != ranks or min(placement) < 0:
        raise SpecError(
            "hosts",
            placement,
            f"a number of hosts, or the host (from 0 on) of each of {ranks} ranks",
        )
    return placement
