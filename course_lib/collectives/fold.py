"""From any number of workers to a power of two, for algorithms in which ranks pair up by the bits
of their number.
"""

from __future__ import annotations

import numpy as np

from course_lib.collectives.schedule import check_workers


def fold(workers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`(core, stay, extra)`: the largest power of two of ranks as the `core`, and each `extra` rank
    next to its partner `stay` in the core.

    The first pairs of neighbours give one rank each to the core: with 6 workers the core is 0, 2,
    4, 5 and the extra ranks are 1 and 3. The extra ranks hand their gradients to their partners
    before the others start, and get the result from them after.
    """
    pairs = check_workers(workers) - 2 ** (workers.bit_length() - 1)
    stay = 2 * np.arange(pairs)
    return np.concatenate([stay, np.arange(2 * pairs, workers)]), stay, stay + 1
