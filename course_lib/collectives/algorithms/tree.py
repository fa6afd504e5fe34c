"""Binomial tree: in each round of the reduction half of the remaining ranks send their sum on and
are done; the broadcast is the same in reverse.

With 4 ranks: 1 sends to 0 and 3 to 2; 2 sends to 0, which then has the sum. On the way back 0 sends
it to 2, and at last 0 to 1 and 2 to 3. The letters are explained in `ring.py`.
"""

import numpy as np

from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import Round, Schedule

ORDER = 2


def tree(workers: int) -> Schedule:
    """All-reduce as a reduction to rank 0 and a broadcast from it, each along a binomial tree.

    P workers, S bytes, L = ⌈lg P⌉. Rounds 2L. Rank 0 sends L S, a leaf S. Time 2L(α + Sβ) + L Sγ.
    The number of rounds grows only with lg P, so for small messages it beats a ring of many ranks,
    but not recursive doubling, which needs about half as many rounds. All S bytes are sent in each
    round, so it is bad for large messages. Source: Thakur, Rabenseifner & Gropp 2005.
    """
    rounds: list[Round] = []
    for gap in [2**k for k in range((workers - 1).bit_length())][::-1]:
        high = np.arange(gap, workers, 2 * gap)
        up, down = Round(high, high - gap, 0, "reduce"), Round(high - gap, high, 0, "copy")
        rounds = [up, *rounds, down]
    return Schedule("tree", workers, chunks=1, rounds=rounds)


def tree_broadcast(workers: int) -> Schedule:
    """The second half: what rank 0 has ends everywhere. ⌈lg P⌉ rounds of S bytes.

    Time ⌈lg P⌉(α + Sβ): rank 0 sends in every round.
    """
    rounds = tree(workers).rounds
    down = rounds[len(rounds) // 2 :]
    return Schedule("tree_broadcast", workers, 1, down, "broadcast")


COLLECTIVES = (tree_broadcast,)


def closed_form(P: int, S: int) -> ClosedForm:
    """The cost of `tree` among P workers with S bytes each."""
    L = (P - 1).bit_length()
    return ClosedForm(2 * L, L * S, Terms(2 * L, 2 * L * S, reduced=L * S, delays=2 * L))
