"""A Ray cluster on this machine: what it opens, who is let in, how it ends."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from course_lib import hardware
from course_lib.cluster.keeper import lives
from course_lib.engines.ray import raylets
from course_lib.errors import SpecError
from course_lib.hardware.machine import network_parts
from course_lib.record.rundir import home
from tests.helpers import until, words_of

LOCKSTEP = [sys.executable, "-m", "course_lib"]
RATE = network_parts(hardware.probe().private_network)["rate"]
JOIN = "import ray; ray.init(address={!r}, log_to_driver=False); print(len(ray.nodes()))"
FARTHEST = """
import sys, time
from course_lib import start
def work(task):
    import psutil, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    data = torch.zeros(250_000)  # a megabyte
    dist.all_reduce(data)
    since = time.monotonic()
    dist.all_reduce(data)
    mine = {one.address for all in psutil.net_if_addrs().values() for one in all}
    return task.address, task.address.split(":")[0] in mine, time.monotonic() - since
run = start(work, framework="torch", workers=4, engine="ray").wait(150)
print(run.values)
"""


def said(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, **environment},
    )


def family(holder: int) -> list[psutil.Process]:
    """The keeper of a cluster, and all below it."""
    keeper = psutil.Process(holder).parent()
    assert keeper
    return [keeper, *keeper.children(recursive=True)]


@contextlib.contextmanager
def leaving_nothing(place: Path) -> Iterator[int]:
    """After the block there is nothing left of the cluster of this home; the holder's pid."""
    file = place / "cluster.json"
    holder: int = json.loads(file.read_text())["holder"]
    everyone = family(holder)
    words = " ".join(word for one in everyone for word in words_of(one))
    files = Path(re.findall(r"/tmp/lockstep-ray-\w+", words)[0])
    assert files.is_dir() and len(everyone) > 4
    yield holder
    until(lambda: not any(map(lives, everyone)), "the end of all processes", 20)
    until(lambda: not files.exists() and not file.exists(), "the end of its files", 10)


def listening(process: psutil.Process) -> set[str]:
    """The addresses at which a process listens; none if it has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = process.net_connections("inet")
        return {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
    return set()


def test_nobody_outside_this_machine_reaches_a_port_of_ray(cluster: str) -> None:
    there = raylets.current()
    assert there and there.address == cluster
    open_to = set[str]().union(*map(listening, family(there.holder)))
    assert open_to and open_to <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_who_does_not_know_the_token_is_not_let_in(cluster: str) -> None:
    command = [sys.executable, "-c", JOIN.format(cluster)]
    known = {**raylets.environment(), "RAY_NUM_REDIS_GET_RETRIES": "2"}  # Ray tries 20 times
    assert said(*command, **known).stdout.strip() == "3"
    token = {"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": "another"}
    for stranger in ({"RAY_AUTH_MODE": "disabled"}, token):
        told = said(*command, **{**known, **stranger})
        assert told.returncode and "3" not in told.stdout.split()


def test_status_says_its_nodes_and_how_many_cpus_are_free(cluster: str) -> None:
    told = json.loads(said(*LOCKSTEP, "cluster", "status", "--json").stdout)
    assert told["address"] == cluster
    assert [cpus for _, _, cpus in told["nodes"]] == [8, 8, 8]
    assert told["free"] <= 24
    again = said(*LOCKSTEP, "cluster", "up")
    assert again.returncode == 2 and "lockstep cluster down" in again.stderr


def test_a_cluster_ends_with_its_shell_and_leaves_nothing(tmp_path: Path) -> None:
    own = {**os.environ, "LOCKSTEP_HOME": str(tmp_path / "home")}
    script = f"{sys.executable} -m course_lib cluster up --nodes 1 && echo is up; read forever"
    stdio: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(["sh", "-c", script], env=own, start_new_session=True, **stdio) as shell:
        assert shell.stdout
        while "is up" not in (line := shell.stdout.readline()):
            assert line
        with leaving_nothing(tmp_path / "home"):
            shell.kill()


@pytest.mark.nightly
@pytest.mark.skipif(not RATE.ok, reason=f"links cannot be shaped: {RATE.why}")
def test_links_between_namespaces_are_as_slow_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring over two nodes sends S bytes from each at least: a megabyte at 20 Mbit/s takes 0.4 s.
    Each task is at an address of its own node. At the end the process is killed that holds the
    cluster.
    """
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    there = raylets.up(nodes=2, cpus=2, mbit=20)
    try:
        outside = said(*LOCKSTEP, "run", "one_device", "--framework", "torch", "--engine", "ray")
        assert outside.returncode == 2 and "lockstep cluster shell" in outside.stderr
        inside = said(*LOCKSTEP, "cluster", "shell", sys.executable, "-c", FARTHEST)
        assert "198.18.0.1" in inside.stdout and "198.18.1.1" in inside.stdout, inside.stderr
        values = eval(inside.stdout)
        assert len(values) == 4 and all(at_home for _, at_home, _ in values.values()), values
        assert max(seconds for _, _, seconds in values.values()) > 0.35
        with leaving_nothing(home()) as holder:
            os.kill(holder, signal.SIGKILL)
    finally:
        there.end()
    assert not raylets.current()


def test_a_shell_for_a_program_that_there_is_not_is_refused_in_a_line() -> None:
    cluster: Any = None  # it is asked only later
    with pytest.raises(SpecError, match="a program that is on the PATH"):
        raylets.Cluster.enter(cluster, ["no-such-program"])
