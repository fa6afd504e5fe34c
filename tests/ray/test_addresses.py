"""Which cluster a program joins: none at the address, another one than before, one that is gone."""

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.engines.ray import raylets
from tests.ray.helpers import family, standing
from tests.ray.test_raylets import LOCKSTEP, said

ASKS = """
import sys, time
from course_lib import start
from course_lib.engines.ray import cluster
began = time.monotonic()
try:
    start(lambda task: 0, engine="ray:" + sys.argv[1])
except Exception as error:
    print(type(error).__name__, "|", error, "|", time.monotonic() - began)
"""
MOVES = """
from course_lib import start
from course_lib.engines.ray import raylets
from course_lib.errors import SpecError

def go(address=""):
    run = start(lambda task: task.name, workers=1, engine=f"ray:{address}" if address else "ray")
    print(run.wait(60).values, flush=True)

first = raylets.up(nodes=1, cpus=2)
go(first.address)
go()
try:
    go("127.0.0.1:6379")
except SpecError as error:
    print(error.field, first.address in str(error), "restart" in str(error))
first.end()
second = raylets.up(nodes=1, cpus=2)
go()
go(second.address)
import ray
ray.shutdown()
go()
second.end()
"""


@contextlib.contextmanager
def serving(answer: bytes | None) -> Iterator[str]:
    """The address of a server that gives this answer. None: it says nothing; b"": it is gone."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        there, _ = server.accept()
        there.recv(100)
        there.sendall(answer or b"")
        there.close()

    if answer == b"":
        server.close()
    elif answer:
        threading.Thread(target=serve, daemon=True).start()
    port = 1 if answer == b"" else server.getsockname()[1]
    with server:
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("answer", [b"", None, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_that_there_is_no_cluster_at_an_address_is_said_soon_and_in_our_words(
    answer: bytes | None,
) -> None:
    """Ray would try for minutes, and print each try."""
    with serving(answer) as address:
        told = said(sys.executable, "-c", ASKS, address)
    name, text, seconds = told.stdout.split(" | ")
    assert name == "Unavailable" and f"no Ray cluster answers at {address}" in text
    assert "lockstep cluster up" in text and told.stderr == ""
    assert float(seconds) < 30  # Ray's first try ends after 40


@pytest.mark.nightly
def test_the_status_of_a_cluster_that_stands_still_is_an_error_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    there = raylets.up(nodes=1, cpus=2)
    try:
        with standing([p for p in family(there) if p.name() == "gcs_server"]):
            told = said(*LOCKSTEP, "cluster", "status")
        assert told.returncode == 2 and told.stdout == ""
        assert f"no Ray cluster answers at {there.address}" in " ".join(told.stderr.split())
        assert "rpc_client" not in told.stderr
    finally:
        there.end()


@pytest.mark.nightly
def test_a_program_stays_with_its_cluster_until_that_is_gone_and_refuses_another(
    tmp_path: Path,
) -> None:
    told = said(sys.executable, "-c", MOVES, LOCKSTEP_HOME=str(tmp_path / "home"))
    runs = ["{'worker:0': 'worker:0'}"] * 5
    assert told.stdout.splitlines() == [*runs[:2], "engine True True", *runs[2:]], told.stderr
