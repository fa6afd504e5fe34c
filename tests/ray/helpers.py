"""What the tests of runs on a Ray cluster ask of it, and do to it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from course_lib.cluster.keeper import lives
from course_lib.engines.ray.raylets import Cluster
from tests.helpers import words_of


def family(there: Cluster) -> list[psutil.Process]:
    return psutil.Process(there.holder).children(recursive=True)


def actors(there: Cluster) -> set[psutil.Process]:
    """Ours, of all drivers."""
    return {p for p in family(there) if lives(p) and "RayNode" in " ".join(words_of(p))}


def all_raylets(there: Cluster) -> list[psutil.Process]:
    """The oldest, that of the head, first."""
    found = [p for p in family(there) if p.name() == "raylet" and lives(p)]
    return sorted(found, key=psutil.Process.create_time)


def runs(there: Cluster) -> list[Path]:
    """The folders of runs on its nodes."""
    return list(Path(all_raylets(there)[0].environ()["TMPDIR"]).glob("lockstep-node-*"))


def lose_a_node(there: Cluster) -> None:
    """Kill the last raylet, and all below it."""
    last = all_raylets(there)[-1]
    for process in [last, *last.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def ours(there: Cluster) -> set[psutil.Process]:
    """All our processes on its nodes: actors, zygotes, nodes of runs, tasks."""
    mine = "course_lib.cluster.pipes", "RayNode"
    return {
        process
        for process in family(there)
        if lives(process) and any(word in " ".join(words_of(process)) for word in mine)
    }


@contextlib.contextmanager
def standing(processes: list[psutil.Process]) -> Iterator[None]:
    """They stand still during the block."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
