"""The grid of built-in algorithms that the tests go through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course_lib.collectives import (
    ALGORITHMS,
    COLLECTIVES,
    FOILS,
    Schedule,
    Transfer,
    hierarchical,
    parameter_server,
    ring,
)

NAMES = [*ALGORITHMS, *FOILS, *COLLECTIVES]


def schedules(name: str, workers: int) -> Iterator[Schedule]:
    """All variants of an algorithm that are worth a look for this number of workers."""
    yield (ALGORITHMS | FOILS | COLLECTIVES)[name](workers)
    if name == "hierarchical":
        yield from (hierarchical(workers, hosts) for hosts in range(2, min(workers, 5) + 1))
        yield from (hierarchical(workers, hosts) for hosts in _uneven(workers))
    if name == "parameter_server":
        yield from (parameter_server(workers, servers) for servers in (2, 3, workers + 2))
        yield from (
            parameter_server(workers, servers, colocated=True)
            for servers in {1, (workers + 1) // 2, workers}
        )
    if name == "ring":
        yield ring(workers, order=[*range(0, workers, 2), *range(1, workers, 2)])
    if name == "ring_worst_order":
        yield from (FOILS[name](workers, hosts) for hosts in _uneven(workers))


def _uneven(workers: int) -> Iterator[tuple[int, ...]]:
    if workers > 2:
        yield (0,) * (workers - 1) + (1,)  # all but one together
        yield (0,) + (4,) * (workers - 1)  # and the other way round, with host numbers left out
        yield tuple(rank % 2 for rank in range(workers))
        yield tuple(min(rank, 2) for rank in range(workers))


def mine(workers: int, chunks: int, rounds: Any, **more: Any) -> Schedule:
    """A schedule the way a learner writes it, from lists."""
    return Schedule("mine", workers, chunks, rounds, **more)


def ring_lists(P: int, gather: str = "copy", rounds: int | None = None) -> Schedule:
    """The ring the way a learner writes it."""
    lists = [
        [Transfer(r, (r + 1) % P, (r - 1 - i) % P, "reduce") for r in range(P)]
        for i in range(P - 1)
    ]
    lists += [
        [Transfer(r, (r + 1) % P, (r - i) % P, gather) for r in range(P)] for i in range(P - 1)
    ]
    return mine(P, P, lists[:rounds])
