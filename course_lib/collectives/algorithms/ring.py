"""Chunked ring: in every round every rank sends a P-th of its buffer to its right neighbour and
receives a P-th from its left neighbour.

Words and letters, here and on the pages of the other algorithms:

    rank            the number of a worker: 0 to P-1 for P workers
    S               the bytes of the buffer; every rank has one, with its own gradients in it
    chunk           one of the equal parts that all buffers are cut into
    reduce-scatter  every rank ends with one chunk (or a few) of the sum over all ranks
    all-gather      every rank sends its finished chunks to all others: all end with the whole
    α, β, γ         seconds for a message, for each byte of it, and to add one byte to another; a
                    rank sends one message at a time, and receives one at a time
    message         all that one rank sends another in a round
    uplink          the way from a host to all other hosts; the ranks of the host share it
    lg              the logarithm to base 2
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import CollectiveKind, Op, Round, Schedule, check_number, place
from course_lib.errors import SpecError

ORDER = 4


def ring(workers: int, order: Sequence[int] | None = None) -> Schedule:
    """All-reduce as a reduce-scatter and an all-gather, both around the ring.

    P workers, S bytes. Rounds 2(P-1). Every rank sends 2(P-1)/P S. In no algorithm among P ranks
    alone does the busiest rank send less; that takes servers or switches that add. Time 2(P-1)(α +
    Sβ/P) + (P-1)/P Sγ: good for large messages; bad for small ones, as the number of rounds grows
    with P. `order` seats the ranks around the ring (default: 0, 1, 2, ...); between hosts a bad
    order makes every message cross. Source: Patarasuk & Yuan 2009; the factor 2(P-1)/P: nccl-tests,
    doc/PERFORMANCE.md.

    The same with plain lists of `Transfer(src, dst, chunk, op)`, which `Schedule` takes too, for P
    workers in their own order:

        def around(behind, op):
            return [
                [Transfer(r, (r + 1) % P, (r - behind - i) % P, op) for r in range(P)]
                for i in range(P - 1)
            ]

        around(1, "reduce") + around(0, "copy")
    """
    rank = _seats(workers, order)
    rounds = _around(rank, 1, "reduce") + _around(rank, 0, "copy")
    return Schedule("ring", workers, chunks=workers, rounds=rounds)


def closed_form(P: int, S: int) -> ClosedForm:
    """The cost of `ring` among P workers with S bytes each."""
    rounds, each = 2 * (P - 1), 2 * (P - 1) * S / P
    return ClosedForm(rounds, each, Terms(rounds, each, reduced=each / 2, delays=rounds))


def ring_worst_order(workers: int, hosts: int | Sequence[int] = 1) -> Schedule:
    """The ring in which neighbours sit on different hosts wherever possible: with equal hosts every
    message crosses.

    P workers, S bytes, H equal hosts. The uplink of each host carries 2(P-1)/H S, which is P/H
    times as much as in the order of hosts.
    """
    placement = place(workers, hosts)
    # for each rank, how many ranks of its host come before it
    turn = [placement[:rank].count(host) for rank, host in enumerate(placement)]
    order = sorted(range(workers), key=lambda rank: (turn[rank], placement[rank]))
    return replace(ring(workers, order), name="ring_worst_order", hosts=placement)


def ring_reduce_scatter(workers: int, order: Sequence[int] | None = None) -> Schedule:
    """The first half: the rank in seat c ends with the sum of chunk c. P-1 rounds of S/P bytes.

    Time (P-1)(α + Sβ/P + Sγ/P).
    """
    return _half("ring_reduce_scatter", "reduce_scatter", _seats(workers, order), 1, "reduce")


def ring_all_gather(workers: int, order: Sequence[int] | None = None) -> Schedule:
    """The second half: chunk c starts at the rank in seat c and ends everywhere. P-1 rounds of S/P
    bytes.

    Time (P-1)(α + Sβ/P).
    """
    return _half("ring_all_gather", "all_gather", _seats(workers, order), 0, "copy")


FOILS = (ring_worst_order,)
COLLECTIVES = (ring_reduce_scatter, ring_all_gather)


def _half(name: str, kind: CollectiveKind, rank: np.ndarray, behind: int, op: Op) -> Schedule:
    P = len(rank)
    return Schedule(name, P, P, _around(rank, behind, op), kind, owners=tuple(rank.tolist()))


def _around(rank: np.ndarray, behind: int, op: Op) -> list[Round]:
    """P-1 rounds: in round i the rank in seat r sends chunk r - behind - i to its right."""
    P, right = len(rank), np.roll(rank, -1)
    # Chunk (r - n) % P is in place P - n + r of this. Thousands of rounds share its memory.
    chunks = np.tile(np.arange(P), 2)
    return [
        Round(rank, right, chunks[P - n : 2 * P - n], op) for n in range(behind, behind + P - 1)
    ]


def _seats(workers: int, order: Sequence[int] | None) -> np.ndarray:
    """The rank in each seat of the ring."""
    if order is None:
        return np.arange(check_number("workers", workers))
    if sorted(order) != list(range(workers)):
        raise SpecError("order", order, f"each rank from 0 to {workers - 1} once")
    return np.array(order, dtype=np.int64)
