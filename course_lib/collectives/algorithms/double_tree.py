"""Double binary tree: a rank that is a leaf in one tree is an inner node of the other, so that no
rank's port stays idle.

The letters are explained in `ring.py`.
"""

import numpy as np

from course_lib.collectives.cost import ClosedForm, Terms
from course_lib.collectives.schedule import Round, Schedule, check_number

ORDER = 3


def double_tree(workers: int, pieces: int = 4) -> Schedule:
    """All-reduce of one half of the buffer through each of two binary trees, in `pieces` pieces
    that follow each other like a train.

    P workers, S bytes, height H = ⌊lg P⌋, k = pieces. Rounds 2H + k - 1. All ranks together send
    2(P-1)S, and no rank more than 2S: up to S in the tree where it has two children, and half of S
    for each of the edges to its two parents. Time at most 4(H + k - 1)(α + Sβ/2k) + (H + k -
    1)Sγ/k: about as many rounds as a tree and, with many pieces, as many bytes as a ring (2Sβ).

    Sources: Sanders, Speck & Träff 2009 (two-tree), who also colour the edges so that a rank sends
    one message and receives one at a time; without colours a rank has up to four of each in a
    round. NCCL has used such trees since 2.4.
    """
    check_number("pieces", pieces)
    # tree, rank -> parent, or -1 for the root
    up = np.array([_parents(workers), _parents(workers, mirrored=True)])
    depth = _depths(up)
    height = int(depth.max())
    rounds = []
    for now in range(2 * height + pieces - 1 if height else 0):
        legs: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        for piece in range(pieces):
            step = now - piece  # rounds since this piece left the deepest leaves
            rising = 0 <= step < height
            if not rising and not height <= step < 2 * height:
                continue
            level = height - step if rising else step - height + 1
            which, rank = np.nonzero(depth == level)
            parent, chunk = up[which, rank], which * pieces + piece
            ends = (rank, parent) if rising else (parent, rank)
            legs.append((*ends, chunk, np.full(len(rank), rising)))
        rounds.append(Round(*(np.concatenate(column) for column in zip(*legs, strict=True))))
    return Schedule("double_tree", workers, chunks=2 * pieces, rounds=rounds)


def closed_form(P: int, S: int, pieces: int = 4) -> ClosedForm:
    """An upper bound on the cost of `double_tree` among P workers with S bytes each."""
    H, k = P.bit_length() - 1, pieces
    if not H:
        return ClosedForm(0, 0, Terms())
    # two edges down and two up (an inner node of one tree, a leaf of the other) while pieces pass
    # by
    busy = 4 * (H + k - 1)
    rounds = 2 * H + k - 1
    terms = Terms(busy, busy * S / (2 * k), reduced=(H + k - 1) * S / k, delays=rounds)
    return ClosedForm(rounds, 2 * S, terms, exact=False)


def _parents(workers: int, mirrored: bool = False) -> np.ndarray:
    """Each rank's parent in a binary tree over ranks in their order, -1 for the root.

    Seats count from 1. Odd seats are leaves; the parent of a seat clears its lowest set bit and
    sets the next one, or only clears it where that would be past the end. In the mirrored tree the
    ranks of even seats have odd ones (if the number of ranks is odd, all ranks move on by one
    seat).
    """
    rank = np.arange(check_number("workers", workers))
    seat = rank + 1
    if mirrored:
        seat = workers - rank if workers % 2 == 0 else (rank + 1) % workers + 1
    low = seat & -seat
    parent = (seat ^ low) | (low << 1)
    parent = np.where(parent > workers, seat ^ low, parent)
    rank_on = np.empty(workers + 1, dtype=np.int64)
    rank_on[0], rank_on[seat] = -1, rank
    return rank_on[parent]


def _depths(up: np.ndarray) -> np.ndarray:
    """The number of edges between each rank and the root, in each tree."""
    depth, above = np.zeros_like(up), up
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, np.take_along_axis(up, np.maximum(above, 0), axis=1), -1)
    return depth
