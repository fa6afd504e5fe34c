"""Which examples a step trains on: the order of the training data in each epoch, cut into batches,
and these into shares.
"""

import functools
import itertools
import math
from typing import Any

import numpy as np

from course_lib.spec.run_spec import RunSpec

Piece = tuple[int, np.ndarray]  # an epoch, and indices into the training data


def pieces(
    spec: RunSpec, data: Any, step: int, share: int = 0, of: int = 1, batch: int = 0, ahead: int = 0
) -> list[Piece]:
    """Indices into the training `data`: the `share`-th of `of` equal slices of a step's global
    batch, as pairs of an epoch and its indices, two of them where the next epoch begins in the
    middle. `batch`: its size, 0 for that of the run; `of` must divide it. `ahead`: so many
    examples were read beyond those of the steps before.

    They depend on nothing but the arguments, so every worker finds its own share.

    With the sampler `global`, all examples in shuffled order, then all again in another order, and
    so on, are cut into batches of equal size; so N workers read what one device reads. With
    `per_worker`, the examples are dealt out to the workers once, as files on the disks of machines
    would be, and each worker shuffles its own part anew in each epoch, by the seed and the number
    of the epoch; each replica of a worker has a part of its own.

    Parts that are uneven are padded by repeating, as PyTorch's DistributedSampler does, so that all
    workers are in the same epoch at every step: up to `of` - 1 examples are read twice in an epoch,
    others in the next one. (DistributedSampler itself deals all examples out anew in each epoch,
    after `set_epoch`; without it each epoch has the same order.)
    """
    batch = batch or spec.batch
    count = batch // of
    if spec.sampler == "global":
        return _read(len(data), spec.seed, 1, 0, ahead + step * batch + share * count, count)
    parts, count = of * spec.replicas, count // spec.replicas
    mine = range(share * spec.replicas, (share + 1) * spec.replicas)
    read = (_read(len(data), spec.seed, parts, k, step * count, count) for k in mine)
    return list(itertools.chain.from_iterable(read))


def _read(examples: int, seed: int, parts: int, part: int, first: int, count: int) -> list[Piece]:
    """So many examples of a part, from the `first` on, counted over all epochs."""
    end, read = first + count, list[Piece]()
    while first < end:
        epoch, start = divmod(first, math.ceil(examples / parts))
        order = _orders(examples, seed, epoch, parts)[part]
        read.append((epoch, order[start : start + end - first]))
        first += len(read[-1][1])
    return read


@functools.lru_cache(maxsize=8)
def _orders(examples: int, seed: int, epoch: int, parts: int) -> np.ndarray:
    """The order of the examples of each part in an epoch, shape (parts, examples of a part), not to
    be changed: it is kept. Shorter parts are padded with their own first examples.
    """
    if parts == 1:
        orders = np.random.default_rng([1, seed, epoch]).permutation(examples)[None]
    else:
        dealt = np.random.default_rng([2, seed]).permutation(examples)
        orders = np.empty((parts, math.ceil(examples / parts)), np.int64)
        for k, order in enumerate(orders):
            own = np.random.default_rng([3, seed, epoch, k]).permutation(dealt[k::parts])
            order[:] = np.resize(own, len(order))
    orders.setflags(write=False)
    return orders
