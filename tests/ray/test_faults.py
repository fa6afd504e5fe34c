"""What is lost in the middle of a run: the driver, a node, the whole cluster."""

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from course_lib.cluster import raylets
from course_lib.cluster.keeper import lives
from course_lib.cluster.raylets import Cluster
from tests.helpers import until, words_of

DRIVER = """
from course_lib import start
def begin(workers):
    fields = dict(framework="torch", steps=100_000, device_ms=20, engine="ray")
    run = start("multi_worker_mirrored", workers=workers, **fields)
    run.wait_step(5, timeout=90)
    print("goes", flush=True)
    return run
"""
WAIT = """
try:
    run.wait(60)
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0], flush=True)
"""


@contextlib.contextmanager
def driver(script: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", DRIVER + textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as it:
        try:
            yield it
        finally:
            it.kill()


def said(it: subprocess.Popen[str]) -> str:
    assert it.stdout
    return it.stdout.readline().strip()


def family(there: Cluster) -> list[psutil.Process]:
    return psutil.Process(there.holder).children(recursive=True)


def runs(there: Cluster) -> list[Path]:
    """The folders of runs on its nodes."""
    return list(Path("/tmp").glob("lockstep-ray-*/lockstep-node-*"))


def test_nothing_is_left_on_any_node_of_a_driver_that_is_killed(cluster: str) -> None:
    """Its processes end at once; its files go when the next driver comes."""
    there = raylets.found()
    assert there and there.address == cluster
    with driver("begin(3)\ninput()") as it:
        before = runs(there)
        assert said(it) == "goes"
        ours = [p for p in family(there) if "course_lib.cluster.pipes" in " ".join(words_of(p))]
        assert len(ours) >= 9  # a zygote, a node's process and a task on each
        assert len(runs(there)) - len(before) == 3
        it.kill()
        until(lambda: not any(map(lives, ours)), "the end of its processes", 15)
    left = set(runs(there)) - set(before)
    with driver("begin(3).stop()") as it:
        assert said(it) == "goes"
        assert not left & set(runs(there))
        assert it.wait(60) == 0


def test_a_node_that_is_lost_ends_the_run_in_words_and_the_next_one_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does the loss of the cluster, which does not take the driver along."""
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    there = raylets.up(nodes=2, cpus=2)
    try:
        script = f"run = begin(2){WAIT}run = begin(1){WAIT}"
        with driver(script) as it:
            assert said(it) == "goes"
            all_raylets = [p for p in family(there) if p.name() == "raylet"]
            second = max(all_raylets, key=psutil.Process.create_time)
            for process in [second, *second.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            lost = said(it)
            assert lost.startswith("TaskFailed worker:") and lost.endswith("was lost"), lost
            assert said(it) == "goes"
            next(p for p in family(there) if p.name() == "gcs_server").kill()
            lost = said(it)
            assert lost.startswith("TaskFailed worker:0") and lost.endswith("was lost"), lost
            assert it.wait(60) == 0
    finally:
        raylets.down(there)
