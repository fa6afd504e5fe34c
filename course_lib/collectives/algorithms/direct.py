"""Direct exchange: every rank sends to all others at once, and adds up one chunk for all.

The letters are explained in `ring.py`.
"""

import numpy as np

from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import Round, Schedule, check_number

ORDER = 8


def direct(workers: int) -> Schedule:
    """All-reduce as an all-to-all reduce-scatter and an all-to-all all-gather.

    P workers, S bytes. Rounds 2. Every rank sends 2(P-1) messages of S/P, as many bytes as in a
    ring. Time 2(P-1)(α + Sβ/P) + (P-1)/P Sγ: if each rank has one port, this is the time of the
    ring; but there is no chain of P-1 ranks that wait for one another. Each rank starts with its
    right neighbour, so that the messages to one rank do not all arrive at once. Source: the
    pairwise exchange of Thakur, Rabenseifner & Gropp 2005, with all its rounds in one.
    """
    src = np.tile(np.arange(check_number("workers", workers)), workers - 1)
    dst = (src + np.repeat(np.arange(1, workers), workers)) % workers
    # chunk c is added up by rank c
    rounds = [Round(src, dst, dst, "reduce"), Round(src, dst, src, "copy")] if workers > 1 else []
    return Schedule("direct", workers, chunks=workers, rounds=rounds)


def direct_all_to_all(workers: int) -> Schedule:
    """All-to-all: every rank sends each other rank a chunk of its own, as when tokens go to their
    experts. Chunk P r + s is what rank r has for rank s.

    P workers, and buffers of S bytes, of which a rank fills an equal part, S/P. Rounds P-1: in
    round i rank r sends to rank r + i, so nobody receives from two. Every rank sends (P-1)/P² S.
    Time (P-1)(α + Sβ/P²). Source: the pairwise exchange of Thakur, Rabenseifner & Gropp 2005.
    """
    src = np.arange(check_number("workers", workers))
    to = [(src + gap) % workers for gap in range(1, workers)]
    rounds = [Round(src, dst, workers * src + dst, "copy") for dst in to]
    return Schedule("direct_all_to_all", workers, workers**2, rounds, "all_to_all")


COLLECTIVES = (direct_all_to_all,)


def closed_form(P: int, S: int) -> ClosedForm:
    """The cost of `direct` among P workers with S bytes each."""
    each = 2 * (P - 1) * S / P
    rounds = 2 if P > 1 else 0
    return ClosedForm(rounds, each, Terms(2 * (P - 1), each, reduced=each / 2, delays=rounds))
