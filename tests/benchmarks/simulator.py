"""The simulator: messages a second in a ring of thousands of workers, against SimPy with the same
model, and its time against one second.

SimPy's ring is smaller, since the large one would take it minutes: that is to its advantage,
because its queue of events is shorter then. On a ring of that size both must give every rank the
same finishing time, so that it is the same model; a straggler and chunks that are not all of one
size see to it that the times are not all alike.
"""

from __future__ import annotations

import itertools
import time

import numpy as np

from course_lib.collectives import Simulation, Topology, bounds, ring, simulate
from tests.benchmarks.harness import Aim, Options, Rows, compare
from tests.benchmarks.peers import simpy_ring

WORKERS, QUICK, PEERS = 4096, 1024, 128
BYTES = 2**26
UNEVEN = BYTES + 100  # chunks of two sizes
LATE = {3: 1e-3}  # seconds by which a straggler starts late
TOPOLOGY = Topology()
SAME = 1e-9  # how far finishing times may be apart, as a part of them


def rows(options: Options) -> Rows:
    """A row for the speed, and one for the time that a learner waits."""
    workers = QUICK if options.quick else WORKERS
    theirs(UNEVEN)
    name, peer = f"simulated messages, a ring of {workers}", f"SimPy, a ring of {PEERS}"
    yield compare(
        name,
        "million/s",
        lambda: ours(workers),
        (peer, lambda: theirs(BYTES)),
        Aim("at least", 100),
        options,
    )
    yield compare(
        f"a simulated ring of {workers}",
        "s",
        lambda: timed(workers)[0],
        ("one second", lambda: 1.0),
        Aim("faster", 1),
        options,
    )


def ours(workers: int) -> float:
    seconds, simulation = timed(workers)
    return simulation.messages / seconds / 1e6


def timed(workers: int) -> tuple[float, Simulation]:
    """The schedule is made anew: a learner's first call makes it too."""
    began = time.perf_counter()
    simulation = simulate(ring(workers), BYTES, TOPOLOGY, delay=LATE)
    return time.perf_counter() - began, simulation


def theirs(size: int) -> float:
    """Raises ValueError if SimPy's model and ours do not agree."""
    chunks = [b - a for a, b in itertools.pairwise(bounds(size, PEERS).tolist())]
    delay = [LATE.get(rank, 0.0) for rank in range(PEERS)]
    began = time.perf_counter()
    finish = simpy_ring.finish(
        chunks, TOPOLOGY.intra.alpha, TOPOLOGY.intra.beta, TOPOLOGY.gamma, delay
    )
    seconds = time.perf_counter() - began
    same = simulate(ring(PEERS), size, TOPOLOGY, delay=LATE)
    if not np.allclose(finish, same.finish, rtol=SAME, atol=0):
        raise ValueError(
            f"not the same model: a ring of {PEERS} is done after {max(finish)!r} s, and here after"
            f" {same.seconds!r} s"
        )
    return same.messages / seconds / 1e6
