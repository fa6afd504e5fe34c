"""Predicts the time of an all-reduce by a formula: alpha and beta from timings of a ring, then the
`cost` of the schedule with them.

The formula gives each rank a core and a port of its own, so it misses. On one machine ranks share
cores and take turns. In a ring all work all the time: its alpha and beta contain these turns, and
an algorithm that leaves some ranks idle is quicker than predicted. A ring adds half of what it
receives, and copies the rest: an algorithm that adds more is slower. Each prediction is shown with
its error.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from course_lib.collectives import AlphaBeta, Topology, closed_form, cost
from course_lib.collectives.algorithms.ring import ring
from course_lib.reduction.measure import HERE, AllReduce, Watch, imposed, job, measure
from course_lib.reduction.role import Job
from course_lib.spec.run_spec import RunSpec

SIZES = (4 << 10, 256 << 10, 4 << 20)  # bytes that each rank of a timed ring brings


def fitted(ranks: int, seconds: Sequence[float]) -> AlphaBeta:
    """The alpha and beta with which the closed form of a ring of `ranks` ranks comes nearest to its
    measured `seconds`, one for each of the `SIZES`: least squares of the relative errors.
    """
    terms = [closed_form("ring", ranks, size).terms for size in SIZES]
    counts = np.array([(t.messages, t.bytes) for t in terms])
    ones = np.ones(len(SIZES))
    best, *_ = np.linalg.lstsq(counts / np.array(seconds)[:, None], ones, rcond=None)
    return AlphaBeta(*np.maximum(best, 0.0).tolist())


def measure_and_predict(
    jobs: Sequence[Job], where: RunSpec = HERE, watch: Watch | None = None
) -> list[AllReduce]:
    """Carry out jobs as `measure` does, and predict their times.

    Rings on the same ranks and hosts are timed in turn with the jobs. With a `link` for each host
    they are timed before, without it: the formula then takes the link's own figures across hosts.
    Without one, alpha and beta are the same inside hosts and across.
    """
    places = list(dict.fromkeys(one.schedule.hosts for one in jobs))
    around = [ring(len(hosts)).placed(hosts) for hosts in places]
    rings = [job(each, size // 4, traced=0) for each in around for size in SIZES]
    if where.link:
        done = measure(rings, HERE, watch) + measure(jobs, where, watch)
    else:
        done = measure([*rings, *jobs], where, watch)
    timed = np.array([ring.seconds for ring in done[: len(rings)]]).reshape(len(places), -1)
    models: dict[tuple[int, ...], Topology] = {}
    for hosts, seconds in zip(places, timed.tolist(), strict=True):
        path = fitted(len(hosts), seconds)
        model = Topology(path, path, gamma=0.0)  # adding is part of beta
        models[hosts] = imposed(where.link_of(0), model) if where.link else model
    return [
        replace(one, predicted_seconds=expected(job, models[job.schedule.hosts]))
        for job, one in zip(jobs, done[len(rings) :], strict=True)
    ]


def expected(job: Job, topology: Topology) -> float:
    """Seconds that a call of a job should take."""
    return cost(job.schedule, job.bytes, topology, job.itemsize).seconds
