"""Recursive doubling: in each round every rank swaps its whole sum with a partner twice as far
away, and both add.

With 4 ranks: first 0 and 1 swap, and 2 and 3; then 0 and 2, and 1 and 3. The letters are
explained in `ring.py`.
"""

import numpy as np

from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import Round, Schedule, check_number

ORDER = 6


def recursive_doubling(workers: int) -> Schedule:
    """All-reduce in the fewest rounds possible if a rank sends one message in each; if P is no
    power of two, in one round more than that.

    P workers, S bytes, L = ⌊lg P⌋, e = 1 if P is no power of two, else 0. Rounds L + 2e. A rank
    sends up to (L + e) S. Time (L + 2e)(α + Sβ) + (L + e)Sγ: good for the smallest messages, where
    only α counts. In a swap a rank receives into the chunk that it is sending, so it needs a
    second buffer. Source: Thakur, Rabenseifner & Gropp 2005.
    """
    core, stay, extra = fold(workers)
    place = np.arange(len(core))
    gaps = [2**k for k in range(len(core).bit_length() - 1)]
    swaps = [Round(core, core[place ^ gap], 0, "reduce") for gap in gaps]
    if len(extra):
        swaps = [Round(extra, stay, 0, "reduce"), *swaps, Round(stay, extra, 0, "copy")]
    return Schedule("recursive_doubling", workers, chunks=1, rounds=swaps)


def closed_form(P: int, S: int) -> ClosedForm:
    """The cost of `recursive_doubling` among P workers with S bytes each."""
    L = P.bit_length() - 1
    e = int(2**L < P)
    rounds, most = L + 2 * e, (L + e) * S
    return ClosedForm(rounds, most, Terms(rounds, rounds * S, reduced=most, delays=rounds))


def fold(workers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(core, stay, extra)`: the largest power of two of ranks as the `core`, and each `extra` rank
    beside its partner `stay` in the core. It is for algorithms in which ranks pair up by the bits
    of their numbers.

    In each of the first pairs of neighbours, one rank is in the core and the other is extra: with 6
    workers the core is 0, 2, 4, 5 and the extra ranks are 1 and 3. The extra ranks hand their
    gradients to their partners before the others start, and get the result from them after.
    """
    pairs = check_number("workers", workers) - 2 ** (workers.bit_length() - 1)
    stay = 2 * np.arange(pairs)
    return np.concatenate([stay, np.arange(2 * pairs, workers)]), stay, stay + 1
