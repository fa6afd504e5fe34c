"""A driver or a node is killed, or a raylet or a whole node stands still for a while, at a random
moment of a run or of its start. Then there is a named error or the run goes on, within ten seconds;
and when all is over, nothing of ours is left. LOCKSTEP_KILLS=50 for more, LOCKSTEP_SEED=7 for those
from the seventh on.
"""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from course_lib.engines.ray import raylets
from course_lib.engines.ray.raylets import Cluster
from tests.helpers import until
from tests.ray.helpers import actors, all_raylets, lose_a_node, ours, runs, standing

SOON = 10.0  # seconds until an error is said, or the run goes on
MOVES = 15.0  # seconds until Ray has given a node up that stands still, and found room on others
GONE = 5.0  # seconds until nothing is left

# It says how far the run is, ten times a second, until it is told to stop or there is an error.
# Told "+", it begins another run then.
DRIVER = """
import os, threading, time
from course_lib import start
from course_lib.errors import LockstepError
from course_lib.record.beats import Beats

def own(task):
    for step in range(100_000):
        task.begin(step)
        time.sleep(0.05)

def say(*words):
    print(time.monotonic(), *words, flush=True)

told = []
threading.Thread(target=lambda: [told.append(os.read(0, 1)) for _ in "12"], daemon=True).start()
strategy, fields = {!r}
say("begins")
what = own if strategy == "own" else strategy
if strategy != "own":
    fields |= dict(framework="torch", steps=100_000, device_ms=20)

def go():
    before = len(told)
    run = start(what, engine="ray", **fields)
    beats = Beats(run.files.beats, run.spec.tasks)
    while len(told) == before and run.state in ("starting", "running"):
        say("at", max(beats.now(task).step for task in run.spec.tasks), run.state)
        time.sleep(0.1)
    if len(told) == before:
        run.wait(5)
    run.stop()

try:
    go()
    if told == [b"+"]:
        say("again")
        go()
    say("stopped")
except LockstepError as error:
    say("error", type(error).__name__, str(error).splitlines()[0])
"""
GROUPS = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False)
from ray.util import placement_group_table
print([group["state"] for group in placement_group_table().values()])
"""
RUNS = [
    ("own", {"workers": 3}),
    ("own", {"workers": 3, "max_restarts": 2}),
    ("multi_worker_mirrored", {"workers": 3}),
    ("multi_worker_mirrored", {"workers": 3, "max_restarts": 2, "checkpoint_every": 20}),
    ("parameter_server", {"workers": 2, "ps": 1}),
    ("parameter_server", {"workers": 2, "ps": 1, "max_restarts": 2}),
]


class Clusters:
    """A cluster of three nodes; a new one when there is but one node left."""

    def __init__(self) -> None:
        self.now: Cluster | None = None

    def get(self) -> Cluster:
        if not self.now or len(all_raylets(self.now)) < 2:
            self.down()
            self.now = raylets.up(nodes=3, cpus=4)
        return self.now

    def down(self) -> None:
        if self.now:
            self.now.end()


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clusters]:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    clusters = Clusters()
    yield clusters
    clusters.down()


class Driver:
    """A process that runs a strategy, and says how it goes in a file: a time and words a line."""

    def __init__(self, strategy: str, fields: dict[str, object], place: Path) -> None:
        command = [sys.executable, "-c", DRIVER.format((strategy, fields))]
        self.said_in = place.with_suffix(".out")
        with self.said_in.open("w") as out, place.with_suffix(".err").open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=errors
            )

    def said(self, word: str, since: float = 0.0) -> list[str]:
        """What it has said since then that begins so."""
        lines = [line.split(" ", 1) for line in self.said_in.read_text().split("\n")[:-1]]
        return [words for at, words in lines if float(at) >= since and words.startswith(word)]

    def goes_on(self, since: float) -> bool:
        """Whether it has made steps since then."""
        steps = [line for line in self.said("at", since) if line.endswith("running")]
        return len(set(steps)) > 1

    def tell(self, byte: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(byte)
        self.process.stdin.flush()


KINDS = ["driver", "node", "raylet", "raylet and driver", "raylet, another run", "frozen node"]


def episode(seed: int, clusters: Clusters, place: Path) -> str:
    """What came of it, in words."""
    dice = random.Random(seed)
    strategy, fields = dice.choice(RUNS)
    what = dice.choice(KINDS)
    there = clusters.get()
    before = actors(there)
    driver = Driver(strategy, fields, place / str(seed))
    story = f"seed {seed}: {strategy} {fields}, {what}"
    try:
        until(lambda: driver.said("begins"), "its begin")
        if not (early := dice.random() < 0.3 and what in KINDS[:4]):
            until(lambda: driver.said("at") and driver.goes_on(0), "the first steps", 60)
        time.sleep(dice.uniform(0, 4))
        at = time.monotonic()
        story += " while it starts" if early else " while it trains"
        paused: list[psutil.Process] = []
        if what == "node":
            lose_a_node(there)
        elif what != "driver":
            frozen = what == "frozen node"  # not the first: that is the driver's own
            paused = [dice.choice(all_raylets(there)[frozen:])]
            paused += paused[0].children(recursive=True) if frozen else []
        restarts, patience, since = "max_restarts" in fields, 20.0 * early, 3.0
        if what == "frozen node":
            patience, since = 3 + MOVES * restarts, SOON
        with standing(paused):
            if "driver" in what:
                time.sleep(dice.uniform(0, 5) if paused else 0)
                driver.process.kill()
                time.sleep(dice.uniform(0, 5) if paused else 0)
                return story
            if what == "raylet, another run":
                driver.tell(b"+")
                until(lambda: driver.said("again"), f"{story}: the end of the first", SOON)
                at, since = time.monotonic(), 0.0
            until(
                lambda: driver.said("error") or driver.goes_on(at + since), story, SOON + patience
            )
            seconds = time.monotonic() - at
            if what == "raylet":
                time.sleep(dice.uniform(0, 5))
        if errors := driver.said("error"):
            assert "node " in errors[0], (story, errors)
            return f"{story}: {seconds:.1f} s, {errors[0]}"
        goes_without = restarts or strategy == "parameter_server"
        assert what != "frozen node" or goes_without, story
        driver.tell(b".")
        until(lambda: driver.said("stopped") or driver.said("error"), f"{story}: the stop", SOON)
        return f"{story}: it went on, {driver.said('')[-1]}"
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.process.wait(0 if driver.process.returncode else SOON)
        driver.process.kill()
        driver.process.wait()
        ended = time.monotonic()
        until(lambda: not ours(there) - before, f"{story}: the end of its processes", GONE)
        until(lambda: not runs(there), f"{story}: the end of its files", GONE)
        while time.monotonic() < ended + GONE:
            time.sleep(0.1)
        command = [sys.executable, "-c", GROUPS, there.address]
        told = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **raylets.environment()},
        )
        assert set(eval(told.stdout.strip().split("\n")[-1])) <= {"REMOVED"}, (story, told)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_after_a_loss_there_is_a_named_error_or_the_run_goes_on(
    clusters: Clusters, tmp_path: Path
) -> None:
    first = int(os.environ.get("LOCKSTEP_SEED", "0"))
    for seed in range(first, first + int(os.environ.get("LOCKSTEP_KILLS", "2"))):
        print(episode(seed, clusters, tmp_path), flush=True)
