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


def closed_form(P: int, S: int) -> ClosedForm:
    """The cost of `direct` among P workers with S bytes each."""
    each = 2 * (P - 1) * S / P
    rounds = 2 if P > 1 else 0
    return ClosedForm(rounds, each, Terms(2 * (P - 1), each, reduced=each / 2, delays=rounds))
