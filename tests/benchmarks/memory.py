"""Memory of a whole cluster after its first all-reduce, warm-forked, against multiprocessing's
spawn.

Counted as PSS, in which a page that several processes share counts once in all: our zygote and
supervisor are in the sum, and so are the peer's parent and its tracker of resources.
"""

from __future__ import annotations

import psutil

from course_lib.cluster import nursery
from course_lib.errors import Unavailable
from tests.benchmarks import clusters
from tests.benchmarks.harness import Aim, Options, Rows, compare

MB = 2**20


def rows(options: Options) -> Rows:
    """A row for each size; TensorFlow, the heavier framework."""
    if not psutil.LINUX:
        raise Unavailable("a fair count of shared memory", "PSS is Linux's", "Measure there.")
    for workers in (2,) if options.quick else (4, 8):
        name = f"memory of {workers} tasks, tensorflow"
        yield compare(
            name,
            "MB",
            lambda n=workers: ours(n),
            ("spawn", lambda n=workers: spawned(n)),
            Aim("at most", 0.5),
            options,
        )


def ours(workers: int) -> float:
    """With zygotes of one framework only, and none of them there while the peer is measured:
    processes of ours must not share pages with it.
    """
    nursery.close()
    clusters.warm("tensorflow")
    try:
        with clusters.ours("tensorflow", workers) as cluster:
            return pss(cluster.root)
    finally:
        nursery.close()


def spawned(workers: int) -> float:
    with clusters.spawned("tensorflow", workers) as cluster:
        return pss(cluster.root)


def pss(root: psutil.Process) -> float:
    """MB of a process and all that came from it."""
    return (
        sum(member.memory_full_info().pss for member in (root, *root.children(recursive=True))) / MB
    )
