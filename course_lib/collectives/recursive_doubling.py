"""Recursive doubling: in each round every rank swaps its whole sum with a partner twice as far
away, and both add.

With 4 ranks: first 0 and 1 swap, and 2 and 3; then 0 and 2, and 1 and 3. What the letters mean is
in `ring.py`.
"""

from __future__ import annotations

import numpy as np

from course_lib.collectives.fold import fold
from course_lib.collectives.schedule import Round, Schedule


def recursive_doubling(workers: int) -> Schedule:
    """All-reduce in the fewest rounds, if a rank sends one message in each; where P is no power of
    two, in one round more than that.

    P workers, S bytes, L = ⌊lg P⌋, e = 1 if P is no power of two, else 0. Rounds L + 2e. A rank
    sends up to (L + e) S. Time (L + 2e)(α + Sβ) + (L + e)Sγ: good for the smallest messages, where
    only α counts. In a swap a rank sends a chunk while it receives into it, so it needs a second
    buffer. Source: Thakur, Rabenseifner & Gropp 2005.
    """
    core, stay, extra = fold(workers)
    place = np.arange(len(core))
    swaps = [
        Round(core, core[place ^ gap], 0, "reduce")
        for gap in (2**k for k in range(len(core).bit_length() - 1))
    ]
    if len(extra):
        swaps = [Round(extra, stay, 0, "reduce"), *swaps, Round(stay, extra, 0, "copy")]
    return Schedule("recursive_doubling", workers, chunks=1, rounds=swaps)
