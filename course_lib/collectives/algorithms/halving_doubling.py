"""Recursive halving and doubling: swap halves with a neighbour, quarters with one twice as far, and
so on; then the way back.

With 4 ranks, whose buffers are cut into quarters q0 to q3 ("a ↔ b": they swap; rounds 0 and 1 add
what arrives, 2 and 3 keep it as it is):

    round 0   0 ↔ 1, 2 ↔ 3   halves: 0 and 2 send q2 q3, 1 and 3 send q0 q1; each keeps the rest
    round 1   0 ↔ 2, 1 ↔ 3   quarters of the half that they kept: now the sum of q0 is on rank 0,
                             that of q1 on 2, that of q2 on 1, that of q3 on 3
    round 2   0 ↔ 2, 1 ↔ 3   their finished quarters: each has a finished half
    round 3   0 ↔ 1, 2 ↔ 3   their finished halves: each has all

Rounds 0 and 1 are the reduce-scatter, 2 and 3 the all-gather. The letters are explained in
`ring.py`.
"""

import numpy as np

from course_lib.collectives.algorithms.recursive_doubling import fold
from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import Round, Schedule

ORDER = 5


def halving_doubling(workers: int) -> Schedule:
    """All-reduce by Rabenseifner: vector halving with distance doubling as the reduce-scatter, then
    the same backwards as the all-gather.

    P workers, S bytes, C = the largest power of two up to P, L = lg C, e = 1 if C < P, else 0.
    Rounds 2L + 3e. A rank sends up to 2(C-1)/C S + 3e S/2. Time (2L + 3e)α + (2(C-1)/C + 2e)Sβ +
    ((C-1)/C + e/2)Sγ: for C = P, as many rounds as a tree and as many bytes as a ring. The largest
    halves go to the nearest ranks, which are the likeliest to share a host. Source: Rabenseifner
    2004; Thakur, Rabenseifner & Gropp 2005; gloo docs/algorithms.md ("halving_doubling").
    """
    core, stay, extra = fold(workers)
    chunks, place = len(core), np.arange(len(core))
    halving: list[Round] = []
    doubling: list[Round] = []
    # each rank works on `span` chunks from `first` on
    first, span, gap = np.zeros_like(place), chunks, 1
    while gap < chunks:
        span //= 2
        # of each pair, the rank with the bit set keeps the upper half
        partner, upper = place ^ gap, (place & gap) > 0
        keep, give = first + span * upper, first + span * ~upper
        halving.append(Round(core, core[partner], give, "reduce", span))
        doubling.insert(0, Round(core, core[partner], keep, "copy", span))
        first, gap = keep, 2 * gap
    rounds = halving + doubling
    if len(extra):  # each of a pair adds up one half for both
        half = np.repeat([chunks // 2, 0], len(stay))
        src, dst = np.concatenate([stay, extra]), np.concatenate([extra, stay])
        swap = Round(src, dst, half, "reduce", chunks // 2)
        hand_over = Round(extra, stay, chunks // 2, "copy", chunks // 2)
        rounds = [swap, hand_over, *rounds, Round(stay, extra, 0, "copy", chunks)]
    return Schedule("halving_doubling", workers, chunks=chunks, rounds=rounds)


def closed_form(P: int, S: int) -> ClosedForm:
    """The cost of `halving_doubling` among P workers with S bytes each."""
    L = P.bit_length() - 1
    C = 2**L
    e = int(C < P)
    rounds, half = 2 * L + 3 * e, (C - 1) / C * S
    terms = Terms(rounds, 2 * half + 2 * e * S, reduced=half + e * S / 2, delays=rounds)
    return ClosedForm(rounds, 2 * half + 1.5 * e * S, terms)
