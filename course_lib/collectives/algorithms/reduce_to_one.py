"""Reduction to one device: all ranks send their gradient to rank 0, which adds them up and sends
the sum back.

The letters are explained in `ring.py`.
"""

import numpy as np

from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import Round, Schedule

ORDER = 1


def reduce_to_one(workers: int) -> Schedule:
    """All-reduce in 2 rounds through rank 0, the bottleneck.

    P workers, S bytes. Rank 0 sends and receives (P-1) S, each other rank S. Time 2(P-1)(α + Sβ) +
    (P-1)Sγ, as rank 0 takes the messages one after another. This is the naive method of every
    comparison, and what `tf.distribute.ReductionToOneDevice` does.
    """
    others = np.arange(1, workers)
    rounds = [Round(others, 0, 0, "reduce"), Round(0, others, 0, "copy")] if workers > 1 else []
    return Schedule("reduce_to_one", workers, chunks=1, rounds=rounds)


def closed_form(P: int, S: int) -> ClosedForm:
    """The cost of `reduce_to_one` among P workers with S bytes each."""
    rounds, each_way = 2 if P > 1 else 0, (P - 1) * S
    terms = Terms(2 * (P - 1), 2 * each_way, reduced=each_way, delays=rounds)
    return ClosedForm(rounds, each_way, terms)
