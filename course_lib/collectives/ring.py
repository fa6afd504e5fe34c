"""Chunked ring: every rank sends to its right neighbour and hears from its left one, in every
round, a P-th of the buffer at a time.

Words and letters, here and on the pages of the other algorithms:

    rank            the number of a worker: 0 to P-1 for P workers
    S               bytes of the buffer; every rank has one, with its own gradients in it
    chunk           one of the equal pieces that all buffers are cut into
    reduce-scatter  every rank ends with one chunk (or a few) of the sum over all ranks
    all-gather      every rank hands its finished chunks to all others, so that all end with the whole
    α, β, γ         seconds for a message, for each byte of it on its way, and to add a byte to another
    uplink          what leads from a host to all other hosts; the ranks of a host share it
    lg              the logarithm to base 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from course_lib.collectives.schedule import Op, Round, Rounds, Schedule, check_workers, place
from course_lib.errors import SpecError


def ring(workers: int, order: Sequence[int] | None = None) -> Schedule:
    """All-reduce as a reduce-scatter and an all-gather, both around the ring.

    P workers, S bytes. Rounds 2(P-1). Every rank sends 2(P-1)/P S. Among the P ranks alone, without
    servers and without switches that add, no algorithm lets its busiest rank send less. Time
    2(P-1)(α + Sβ/P) + (P-1)/P Sγ: good for large messages; its rounds grow with P, so it is bad for
    small ones. `order` seats the ranks around the ring (default: 0, 1, 2, ...); between hosts a bad
    order makes every message cross. Source: Patarasuk & Yuan 2009; nccl-tests doc/PERFORMANCE.md
    for the factor 2(P-1)/P.

    The same as lists, for P workers in their own order:

        [[Transfer(r, (r + 1) % P, (r - 1 - i) % P, "reduce") for r in range(P)] for i in range(P - 1)]
        + [[Transfer(r, (r + 1) % P, (r - i) % P, "copy") for r in range(P)] for i in range(P - 1)]
    """
    rank = _seats(workers, order)
    return Schedule(
        "ring",
        workers,
        chunks=workers,
        rounds=_around(rank, 1, "reduce") + _around(rank, 0, "copy"),
    )


def ring_worst_order(workers: int, hosts: int | Sequence[int] = 1) -> Schedule:
    """The ring in which neighbours sit on different hosts wherever they can: with equal hosts every
    message crosses.

    P workers, S bytes, H equal hosts. The uplink of each carries 2(P-1)/H S, which is P/H times
    what the order of hosts needs.
    """
    placement = place(workers, hosts)
    # how many of its host come before it
    turn = [placement[:rank].count(host) for rank, host in enumerate(placement)]
    order = sorted(range(workers), key=lambda rank: (turn[rank], placement[rank]))
    return replace(ring(workers, order), name="ring_worst_order", hosts=placement)


def ring_reduce_scatter(workers: int, order: Sequence[int] | None = None) -> Schedule:
    """The first half: the rank on place c ends with the sum of chunk c. P-1 rounds of S/P bytes.

    Time (P-1)(α + Sβ/P + Sγ/P).
    """
    rank = _seats(workers, order)
    owners = tuple(rank.tolist())
    return Schedule(
        "ring_reduce_scatter",
        workers,
        workers,
        _around(rank, 1, "reduce"),
        kind="reduce_scatter",
        owners=owners,
    )


def ring_all_gather(workers: int, order: Sequence[int] | None = None) -> Schedule:
    """The second half: chunk c starts on place c and ends everywhere. P-1 rounds of S/P bytes.

    Time (P-1)(α + Sβ/P).
    """
    rank = _seats(workers, order)
    owners = tuple(rank.tolist())
    return Schedule(
        "ring_all_gather",
        workers,
        workers,
        _around(rank, 0, "copy"),
        kind="all_gather",
        owners=owners,
    )


def _around(rank: np.ndarray, behind: int, op: Op) -> Rounds:
    """P-1 rounds in which the rank on place r sends chunk r - behind - i to its right neighbour in
    round i.
    """
    place, right = np.arange(len(rank)), np.roll(rank, -1)
    # np.roll(place, n) is (place - n) % P
    return Rounds(len(rank) - 1, lambda i: Round(rank, right, np.roll(place, behind + i), op))


def _seats(workers: int, order: Sequence[int] | None) -> np.ndarray:
    if order is None:
        return np.arange(check_workers(workers))
    if sorted(order) != list(range(workers)):
        raise SpecError("order", order, f"each rank from 0 to {workers - 1} once")
    return np.array(order, dtype=np.int64)
