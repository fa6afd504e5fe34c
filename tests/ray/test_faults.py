"""What is lost in the middle of a run: the driver, a node, the whole cluster."""

import contextlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib import start
from course_lib.cluster.keeper import lives
from course_lib.engines.ray import raylets
from tests.helpers import until, words_of
from tests.ray.helpers import actors, all_raylets, family, lose_a_node, ours, runs, standing

DRIVER = """
from course_lib import start
from course_lib.record.events import Lifecycle
def begin(workers, steps=100_000, **more):
    fields = dict(framework="torch", steps=steps, device_ms=20, engine="ray", **more)
    run = start("multi_worker_mirrored", workers=workers, **fields)
    run.wait_step(5, timeout=90)
    print("goes", flush=True)
    return run
"""
AGAIN = """
import time
began = time.monotonic()
while not run.trace.all(Lifecycle, state="running", attempt=1):
    time.sleep(0.1)
print(time.monotonic() - began, flush=True)
result = run.wait(60).result
print(result["restarts"], *result["parameter_digest"].values(), flush=True)
"""
LOST = r"TaskFailed {} failed in step \d+: its node, .*, was lost, .* recorded after [\d.]+ s"
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


def test_nothing_is_left_on_any_node_of_a_driver_that_is_killed(cluster: str) -> None:
    there = raylets.current()
    assert there and there.address == cluster
    before, others = runs(there), set(family(there))
    with driver("begin(3)\ninput()") as it:
        assert said(it) == "goes"
        new = set(family(there)) - others
        ours = [p for p in new if "course_lib.cluster.pipes" in " ".join(words_of(p))]
        assert len(ours) >= 9  # a zygote, a node's process and a task on each
        assert len(runs(there)) - len(before) == 3
        it.kill()
        until(lambda: not any(map(lives, ours)), "the end of its processes", 5)
        until(lambda: not set(runs(there)) - set(before), "the end of its files", 5)
        until(lambda: not actors(there) - others, "the end of its actors", 5)


def test_nothing_is_left_of_a_driver_that_ends_while_a_raylet_stands_still(cluster: str) -> None:
    """Ray would end the processes of that node, and cannot. The driver's own raylet stays."""
    there = raylets.current()
    assert there and there.address == cluster
    before, others = runs(there), ours(there)
    with driver("begin(3)\ninput()") as it:
        assert said(it) == "goes"
        assert len(runs(there)) - len(before) == 3
        with standing(all_raylets(there)[1:]):
            it.kill()
            until(lambda: not ours(there) - others, "the end of its processes and actors", 5)
            until(lambda: not set(runs(there)) - set(before), "the end of its files", 5)


@pytest.mark.nightly
def test_tasks_run_again_on_other_nodes_while_theirs_still_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    there = raylets.up(nodes=3, cpus=2)
    try:
        with driver(f"run = begin(3, 100, checkpoint_every=20, max_restarts=1){AGAIN}") as it:
            assert said(it) == "goes"
            last = all_raylets(there)[-1]
            with standing([last, *last.children(recursive=True)]):
                assert float(said(it)) < 15  # Ray gives the node up after 7.5
                assert said(it).startswith("1 ")
    finally:
        there.end()


def test_a_run_goes_on_without_a_node_that_is_lost_or_ends_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With restarts left, its tasks start again on other nodes, from the last checkpoint, and end
    with the same weights. The loss of the cluster does not take the driver along.
    """
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    there = raylets.up(nodes=3, cpus=2)
    try:
        script = f"run = begin(3, 250, checkpoint_every=20, max_restarts=1){AGAIN}"
        script += f"run = begin(2){WAIT}run = begin(1){WAIT}"
        with driver(script) as it:
            assert said(it) == "goes"
            lose_a_node(there)
            assert float(said(it)) < 10
            restarts, *digests = said(it).split()
            here = start("multi_worker_mirrored", framework="torch", workers=3, steps=250).wait(60)
            assert (restarts, digests) == ("1", [*here.result["parameter_digest"].values()])
            assert said(it) == "goes"
            lose_a_node(there)
            lost = said(it)
            assert re.match(LOST.format("worker:[01]"), lost), lost
            assert said(it) == "goes"
            next(p for p in family(there) if p.name() == "gcs_server").kill()
            lost = said(it)
            assert re.match(LOST.format("worker:0"), lost), lost
            assert it.wait(60) == 0
    finally:
        there.end()
