"""Warm start: from the call to the end of the first all-reduce on the last worker, against torchrun
and multiprocessing's spawn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Row, Rows, compare

Bring = Callable[[str, int], AbstractContextManager[clusters.Cluster]]
"""Brings so many workers of a framework as far as their first all-reduce."""

PEERS: tuple[tuple[str, str, Bring, Aim], ...] = (
    ("torch", "torchrun", clusters.torchrun, Aim("faster", 50)),
    ("torch", "spawn", clusters.spawned, Aim("faster", 20)),
    ("tensorflow", "spawn", clusters.spawned, Aim("faster", 20)),
)


def rows(options: Options) -> Rows:
    """A row for each size and peer."""
    for workers in (2,) if options.quick else (2, 4, 8):
        for framework, what, peer, aim in PEERS:
            yield row(workers, framework, (what, peer), aim, options)


def row(workers: int, framework: str, peer: tuple[str, Bring], aim: Aim, options: Options) -> Row:
    clusters.warm(framework)
    what, bring = peer

    def seconds(how: Bring) -> float:
        with how(framework, workers) as cluster:
            return cluster.seconds

    name = f"start of {workers} tasks, {framework}"
    return compare(
        name, "s", lambda: seconds(clusters.ours), (what, lambda: seconds(bring)), aim, options
    )
