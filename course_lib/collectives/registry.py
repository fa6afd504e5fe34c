"""The names of all algorithms, and the one way from a name (or a learner's own function) to a
schedule.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from course_lib.collectives.direct import direct, direct_all_gather, direct_reduce_scatter
from course_lib.collectives.double_tree import double_tree
from course_lib.collectives.halving_doubling import halving_doubling
from course_lib.collectives.hierarchical import hierarchical
from course_lib.collectives.parameter_server import parameter_server
from course_lib.collectives.recursive_doubling import recursive_doubling
from course_lib.collectives.reduce_to_one import reduce_to_one
from course_lib.collectives.ring import ring, ring_all_gather, ring_reduce_scatter, ring_worst_order
from course_lib.collectives.schedule import Schedule
from course_lib.collectives.tree import tree, tree_broadcast, tree_reduce
from course_lib.errors import SpecError

Algorithm = Callable[..., Schedule]

# Every all-reduce: a function of the number of workers first. A new one is a new file and a new
# line here.
ALGORITHMS: dict[str, Algorithm] = {
    "reduce_to_one": reduce_to_one,  # all to rank 0 and back
    "tree": tree,  # binomial tree up, then down
    "double_tree": double_tree,  # half the buffer through each of two binary trees, in pieces
    "ring": ring,  # reduce-scatter and all-gather around a ring
    "halving_doubling": halving_doubling,  # Rabenseifner: swap halves, quarters, ... and back
    "recursive_doubling": recursive_doubling,  # swap everything with partners at 1, 2, 4, ...
    "hierarchical": hierarchical,  # inside each host, across hosts, inside again
    "direct": direct,  # everyone to everyone, in two rounds
    "parameter_server": parameter_server,  # push to k servers, pull from them
}

# What is there to be compared with, and nobody would use.
FOILS: dict[str, Algorithm] = {
    "ring_worst_order": ring_worst_order,  # neighbours on different hosts
}

# The halves on their own.
HALVES: dict[str, Algorithm] = {
    "ring_reduce_scatter": ring_reduce_scatter,
    "ring_all_gather": ring_all_gather,
    "direct_reduce_scatter": direct_reduce_scatter,
    "direct_all_gather": direct_all_gather,
    "tree_reduce": tree_reduce,
    "tree_broadcast": tree_broadcast,
}


def find(algorithm: str | Algorithm) -> Algorithm:
    """The function of a name, or the function itself if one is given.

    Raises SpecError with the nearest name for one that is unknown.
    """
    if callable(algorithm):
        return algorithm
    known = ALGORITHMS | FOILS | HALVES
    if algorithm not in known:
        raise SpecError.unknown("algorithm", algorithm, known)
    return known[algorithm]


def build(
    algorithm: str | Algorithm, workers: int, hosts: int | Sequence[int] = 1, **options: Any
) -> Schedule:
    """The schedule of an algorithm for `workers` workers on `hosts`.

    Raises SpecError where a learner's function returns something else.
    """
    function = find(algorithm)
    name = getattr(function, "__name__", "algorithm")
    knows_hosts = "hosts" in inspect.signature(function).parameters
    schedule = (
        function(workers, hosts=hosts, **options) if knows_hosts else function(workers, **options)
    )
    if not isinstance(schedule, Schedule):
        kind = type(schedule).__name__
        raise SpecError(
            f"{name}({workers})", kind, "must return a Schedule(name, workers, chunks, rounds)"
        )
    if schedule.workers != workers:
        raise SpecError(
            f"{name}({workers}).workers",
            schedule.workers,
            f"a schedule for {workers} workers was asked for",
        )
    return schedule if knows_hosts or hosts == 1 else schedule.placed(hosts)
