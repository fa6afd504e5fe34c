"""Real networks: namespaces, links and counters of the kernel, with clusters in them; and what
takes their place where they are not to be had.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from course_lib import hardware, start
from course_lib.collectives import build
from course_lib.errors import SpecError, Stalled, TaskFailed, Unavailable
from course_lib.network.layout import reserve_ports
from course_lib.record import measures
from course_lib.record.events import Lifecycle, Message, Phase, Traffic
from course_lib.spec.fields import Link
from tests.benchmarks import clusters
from tests.conftest import gone_within
from tests.helpers import FOUR_HOSTS, compares_times, greeting, meet, of_times, outer, until

pytestmark = pytest.mark.skipif(
    not hardware.machine.network_parts(hardware.probe().private_network)["hosts"].ok,
    reason=hardware.probe().private_network.why,
)


CAN_LOSE = hardware.machine.network_parts(hardware.probe().private_network)["loss"].ok


@pytest.fixture(params=["hosts", "loopback"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Hosts that are real, and the fallback in which they are not."""
    if request.param == "loopback":
        monkeypatch.setenv("LOCKSTEP_NETWORK", "loopback")
    return str(request.param)


def namespace(pid: int | str = "self") -> str:
    """The network namespace of a process."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def look(task: Any) -> dict[str, Any]:
    """Where a task finds itself."""
    interfaces = psutil.net_if_addrs()
    return {
        "namespace": namespace(),
        "address": task.address,
        "interfaces": {
            name: found[0].address
            for name, found in interfaces.items()
            if found[0].family == socket.AF_INET
        },
        "user": os.getuid(),
        "descriptors": [
            str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()
        ],
    }


# --- where tasks find themselves ---


def test_each_task_is_alone_at_its_address(start_method: str) -> None:
    run = start(look, workers=3, hosts=2)
    found = run.wait(60).result
    assert run.plan.network == "hosts"
    assert [place["address"] for place in found.values()] == [
        "198.18.0.1",
        "198.18.0.2",
        "198.18.1.1",
    ]
    for place in found.values():
        assert place["interfaces"] == {"lo": "127.0.0.1", "eth0": place["address"]}
        assert place["user"] == os.getuid()
        # no task holds a way into another's network
        assert not [name for name in place["descriptors"] if name.startswith("net:")]
    assert len({place["namespace"] for place in found.values()} | {namespace()}) == 4


def test_tasks_on_one_host_share_a_loopback_that_is_theirs_alone(start_method: str) -> None:
    found = start(look, workers=2).wait(60).result
    assert {json.dumps(place["interfaces"]) for place in found.values()} == {'{"lo": "127.0.0.1"}'}
    (theirs,) = {place["namespace"] for place in found.values()}
    assert theirs != namespace()


@pytest.mark.parametrize(
    "server",
    [
        "10.0.0.2",
        "10.255.255.53",
        "192.168.1.1",
        "172.17.0.1",
        "100.100.100.100",
        "169.254.169.254",
    ],
)
def test_a_name_server_out_there_is_not_waited_for(server: str) -> None:
    """PyTorch asks for the name of each peer.

    Where its question seems to have a way out, it waits for an answer for six seconds.
    """

    def ask() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            return line.connect_ex((server, 53))

    assert set(start(ask, workers=2, hosts=2).wait(60).result.values()) == {errno.ENETUNREACH}


def test_two_runs_have_the_same_addresses_and_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    def meet(task: Any) -> bytes:
        if task.index == 0:
            with socket.create_server((task.address, 5000)) as door:
                door.settimeout(30)
                return door.accept()[0].recv(100)
        said = str(task.run_dir).encode()[-100:]
        for _ in range(300):
            with (
                contextlib.suppress(ConnectionRefusedError),
                socket.create_connection(("198.18.0.1", 5000), timeout=30) as line,
            ):
                line.sendall(said)
                return said
            time.sleep(0.05)
        raise TimeoutError("nobody listened")

    runs = [start(meet, workers=2, hosts=2) for _ in range(2)]
    results = [run.wait(60).result for run in runs]
    assert all(result["worker:0"] == result["worker:1"] for result in results)
    assert results[0] != results[1]


PROGRAM = """
import sys
from course_lib import start

def address(task):
    return task.address

if sys.argv[1] == "pretend":  # as if it had been allowed when it was looked at
    from dataclasses import replace
    from course_lib import hardware
    can = hardware.Capability(True, "", parts=("veth", "bridge", "tbf"))
    machine = replace(hardware.probe(), private_network=can)
    hardware.probe = lambda: machine
run = start(address, workers=2, hosts=2)
found = run.wait(60).result
why = [reason.why for reason in run.plan.reasons if reason.what == "network"]
print(run.plan.network, *found.values(), *why)
"""


def as_user(prefix: list[str], argument: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LOCKSTEP_HOME": str(home)}
    return subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM, argument],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )


def test_an_ordinary_user_has_hosts_as_well(home: Path) -> None:
    prefix = (
        ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []
    )
    done = as_user(prefix, "", home)
    assert done.stdout.startswith("hosts 198.18.0.1 198.18.1.1 "), done.stderr


POWERLESS = [
    "setpriv",
    "--bounding-set=-all",
    "--inh-caps=-all",
]  # a root who may do nothing, as in many containers, may not have a namespace


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can give its powers away"
)
def test_where_the_system_refuses_runs_use_loopback_and_say_why(home: Path) -> None:
    done = as_user(POWERLESS, "", home)
    assert done.stdout.startswith("loopback 127.0.0.1 127.0.0.1 "), done.stderr
    assert "(Operation not permitted)" in done.stdout


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can give its powers away"
)
def test_where_the_system_refuses_what_it_allowed_before_the_run_says_so(home: Path) -> None:
    done = as_user(POWERLESS, "pretend", home)
    assert "Unavailable: a network" in done.stderr
    assert "Set LOCKSTEP_NETWORK=loopback" in done.stderr


# --- links ---

LENGTH = 200_000  # of float32, passed on once in each direction by each of two workers


def exchanges(task: Any) -> list[float]:
    """Seconds of the quickest of some exchanges between all workers; again each time another file
    named go lies in the run directory.
    """
    ring = build("ring", task.spec.workers)
    found = []
    with contextlib.closing(task.group(ring)) as group:
        array = np.zeros(LENGTH, np.float32)
        for turn in range(2):
            until(lambda turn=turn: (task.run_dir / f"go{turn}").exists(), "the word to go on")
            spans = []
            for _ in range(3):
                begun = time.monotonic()
                group.execute(ring, array)
                spans.append(time.monotonic() - begun)
            found.append(min(spans))
            (task.run_dir / f"done{turn}-{task.index}").touch()
    return found


def seconds(mbit: float) -> float:
    """What an exchange takes at least: LENGTH / 2 numbers to each worker, twice.

    A link may be half a millisecond ahead of its rate.
    """
    return LENGTH * 4 / (mbit * 125_000) - 1e-3


@compares_times()
def test_an_exchange_takes_as_long_as_its_link_says_and_a_link_can_change_while_a_run_goes_on(
    network: str,
) -> None:
    run = start(exchanges, workers=2, hosts=2, link={"*": Link(mbit=40), 1: Link(mbit=20)})
    assert run.plan.network == network
    (run.run_dir / "go0").touch()
    until(lambda: len(list(run.run_dir.glob("done0-*"))) == 2, "the first exchanges")
    for host in range(2):
        run.link(host, Link(mbit=400))
    until(lambda: len(run.trace.all(Lifecycle, state="linked")) == 2, "the links to change")
    (run.run_dir / "go1").touch()
    for before, after in run.wait(60).result.values():
        assert before >= seconds(20)  # the slower of two links decides
        assert seconds(400) <= after
        with of_times():
            assert after < before / 3
    (change,) = run.trace.all(Lifecycle, "host:1")
    assert (change.state, change.mbit, change.delay_ms) == ("linked", 400, 0)


def test_a_delay_is_imposed_whether_the_kernel_can_or_not(network: str) -> None:
    run = start(exchanges, workers=2, hosts=2, link=Link(delay_ms=30))
    for turn in range(2):
        (run.run_dir / f"go{turn}").touch()
    for spans in run.wait(60).result.values():
        assert min(spans) >= 0.03  # two rounds; the other may have begun the first one earlier


def test_workers_of_one_host_do_not_use_its_link(network: str) -> None:
    run = start(
        exchanges,
        workers=4,
        placement={"worker:2": 1, "worker:3": 1, "worker:0": 0, "worker:1": 0},
        link=Link(mbit=40),
    )
    for turn in range(2):
        (run.run_dir / f"go{turn}").touch()
    run.wait(60)
    sizes = {(e.src, e.dst) for e in run.trace.all(Message)}
    assert sizes == {
        ("worker:0", "worker:1"),
        ("worker:1", "worker:2"),
        ("worker:2", "worker:3"),
        ("worker:3", "worker:0"),
    }
    if network == "hosts":
        sent = {name: traffic.sent for name, traffic in measures.wire_bytes(run.trace).items()}
        # to its neighbour on the host it sends words only; the rest acknowledges what it receives
        assert 10 * sent["worker:0"] < sent["worker:1"] > LENGTH


def keep_exchanging(task: Any) -> int:
    """Exchange until there is a file named enough; how often that was."""
    ring, count = build("ring", 2), 0
    with contextlib.closing(task.group(ring, patience=60)) as group:
        array = np.zeros(2, np.int64)
        while array[0] < 2:  # both have seen it
            array[:] = (task.run_dir / "enough").exists()
            group.execute(ring, array)
            count += 1
    return count


def quiet(run: Any, seconds: float) -> bool:
    """Whether no message is recorded for so long."""
    before = len(run.trace.all(Message))
    time.sleep(seconds)
    return len(run.trace.all(Message)) == before


def test_nothing_reaches_a_host_that_is_cut_off_until_it_is_healed() -> None:
    run = start(keep_exchanging, workers=2, hosts=2).wait_running(60)
    until(lambda: len(run.trace.all(Message)) > 50, "some exchanges")
    run.partition(1)
    until(lambda: run.trace.all(Lifecycle, "host:1", state="cut"), "the cut")
    until(lambda: quiet(run, 0.3), "what was on its way to arrive and to be written down")
    before = len(run.trace.all(Message))
    assert quiet(run, 0.5)
    run.heal(1)
    until(lambda: len(run.trace.all(Message)) > before + 50, "exchanges after the cut")
    (run.run_dir / "enough").touch()
    run.wait(60)
    assert [e.state for e in run.trace.all(Lifecycle, "host:1")] == ["cut", "healed"]


def test_a_host_that_is_cut_off_is_named_when_all_wait_for_it() -> None:
    fields: dict[str, Any] = {"workers": 2, "hosts": 2, "steps": 1_000_000}
    with start("multi_worker_mirrored", framework="torch", **fields) as run:
        until(lambda: run.trace.all(Phase, "worker:0", step=20), "some steps")
        run.partition(1)
        says = r"worker:1, which is cut off with host:1 \(run\.heal\(1\) joins it again\)"
        with pytest.raises(Stalled, match=says) as caught:
            run.wait(60)
        assert caught.value.standing and caught.value.waiting_for["worker:0"].startswith("waits")
        run.heal(1)
        done = max(p.step for p in run.trace.all(Phase))
        until(lambda: run.trace.all(Phase, "worker:0", step=done + 5), "steps after the cut")


def test_orders_that_need_a_network_are_refused_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with start(look, workers=2) as run:
        for order in (lambda: run.link(0, Link(mbit=1)), lambda: run.partition(0)):
            with pytest.raises(SpecError, match="link is between hosts"):
                order()
    monkeypatch.setenv("LOCKSTEP_NETWORK", "loopback")
    with start(look, workers=2, hosts=2) as run:
        for order in (run.partition, run.heal):
            with pytest.raises(
                Unavailable, match=r"the network of this run is loopback.*Unset LOCKSTEP_NETWORK"
            ):
                order(1)
        for lossy in (lambda: run.link(1, Link(loss=0.1)), lambda: run.inject("link host:1=,,.1")):
            with pytest.raises(Unavailable, match=r"loses packets .*lockstep doctor"):
                lossy()
        with pytest.raises(SpecError, match="host=7: "):
            run.link(7, Link())


ORDERS = """
import random
from pyroute2 import IPRoute
from course_lib.network import namespaces
from course_lib.network.hosts import Hosts
from course_lib.spec.run_spec import Link

RATES = [None, 1e-7, 1e-3, 50, 100, 20_000, 34_000, 34_400, 100_000]
LOSS = [0] * 9 + ([0.1] if LOSSY else [0])
chance = random.Random(12)
namespaces.make_private()
for sequence in range(60):
    namespaces.another()  # the hosts of the sequence before have other namespaces
    links = [Link(mbit=chance.choice(RATES)) for _ in range(2)]
    hosts = Hosts({"worker:0": 0, "worker:1": 1}, dict(enumerate(links)), rate=True, delay=DELAY)
    up = [True, True]
    with IPRoute() as routes:
        for _ in range(8):
            host, order = chance.randrange(2), chance.choice(["link", "link", "cut", "heal"])
            if order == "link":
                figures = {"delay_ms": chance.choice([0, 0, 2]), "loss": chance.choice(LOSS)}
                links[host] = Link(mbit=chance.choice(RATES), **figures)
                hosts.change(host, links[host])
            else:
                up[host] = order == "heal"
                hosts.join(host, up[host])
            (line,) = routes.get_links(hosts._index[f"dn{host}"])
            assert (line["flags"] & 1 == 1) == up[host]
            assert line.get_attr("IFLA_GSO_MAX_SEGS") == (1 if links[host].loss else 65535)
            limited = links[host].mbit is not None and links[host].mbit < 34_360
            for end in (f"up{host}", f"dn{host}"):
                there = routes.get_qdiscs(hosts._index[end])
                kinds = {q.get_attr("TCA_KIND") for q in there if q["index"] == hosts._index[end]}
                assert ("tbf" in kinds) == limited, (sequence, links[host], kinds)
    for fd in hosts.descriptors:
        namespaces.os.close(fd)
print("all went on")
"""


def test_any_sequence_of_links_and_cuts_is_possible_after_any_start() -> None:
    parts = hardware.probe().private_network.parts
    if "tbf" not in parts:
        pytest.skip("this kernel has no tbf")
    script = ORDERS.replace("DELAY", str("netem" in parts)).replace("LOSSY", str(CAN_LOSE))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "all went on\n", done.stderr


def test_links_and_cuts_go_on_over_a_run_that_began_without_a_link(network: str) -> None:
    rates = [50, None, 100, 1e-7, 40_000, None, 30]
    with start(look_on, workers=2, hosts=2) as run:
        run.wait_running(60)
        for mbit in rates:
            run.link(0, Link(mbit=mbit))
            if network == "hosts":
                run.partition(0)
                run.link(0, Link(mbit=200))
                run.heal(0)
        run.link(1, Link(mbit=20, delay_ms=3))
        until(lambda: run.trace.all(Lifecycle, "host:1", state="linked"), "the last link")
        found = [e.mbit for e in run.trace.all(Lifecycle, "host:0", state="linked")]
        assert found[:: 2 if network == "hosts" else 1] == rates
        assert (run.state, run.refused) == ("running", [])


def look_on() -> None:
    threading.Event().wait()


@pytest.mark.skipif(not CAN_LOSE, reason="this kernel has no nftables")
def test_each_way_of_a_link_loses_its_share_of_packets_and_a_link_without_loss_none() -> None:
    count = 5000

    def send(task: Any) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.bind((task.address, 5000))
            line.settimeout(0.2)
            other, heard = (f"198.18.{1 - task.index}.1", 5000), b""
            while not heard:  # the question for the other's address may be lost as well
                line.sendto(b"are you there", other)
                with contextlib.suppress(TimeoutError):
                    heard = line.recv(100)
            line.settimeout(20)  # a busy machine empties the queue late
            for number in range(count):
                line.sendto(b"one of many", other)
                if number % 100 == 0:
                    time.sleep(1e-3)  # no queue on the way overflows

    for loss, least, most in ((0.05, 0.93, 0.97), (0.0, 1.0, 1.01)):
        with start(send, workers=2, hosts=2, link={1: Link(loss=loss)}) as run:
            run.wait(60)
            counted = {e.task: e for e in run.trace.all(Traffic)}
        for sender, receiver in (("worker:0", "worker:1"), ("worker:1", "worker:0")):
            assert count <= counted[sender].packets_sent <= 1.01 * count
            arrived = counted[receiver].packets_received / counted[sender].packets_sent
            assert least <= arrived <= most, counted


@pytest.mark.skipif(not CAN_LOSE, reason="this kernel has no nftables")
def test_sums_over_a_link_that_loses_packets_are_exact_and_more_bytes_go_over_the_wire() -> None:
    def add(task: Any) -> bool:
        ring, exact = build("ring", 2), True
        with contextlib.closing(task.group(ring)) as group:
            for step in range(5):
                array = np.full(LENGTH, step + task.index, np.float32)
                group.execute(ring, array)
                exact &= bool((array == 2 * step + 1).all())
        return exact

    sent = []
    for loss in (0.0, 0.05):
        with start(add, workers=2, hosts=2, link={1: Link(loss=loss)}) as run:
            assert run.wait(60).result == {"worker:0": True, "worker:1": True}
            sent.append(sum(e.sent for e in measures.wire_bytes(run.trace).values()))
    assert 1.03 * sent[0] < sent[1]  # at least 5 % of the packets twice, less noise


def test_a_group_that_a_task_leaves_unclosed_stays_until_all_tasks_are_done() -> None:
    def join(task: Any) -> bool:
        group = weakref.ref(task.group(build("ring", 2)))
        gc.collect()
        return group() is not None

    assert start(join, workers=2, hosts=2).wait(60).result == {"worker:0": True, "worker:1": True}


def test_an_order_that_fails_costs_the_order_and_not_the_run() -> None:
    with start(look_on, workers=2, hosts=2).wait_running(60) as run:
        run._order("link", host=1, link={"mbit": -1})  # not possible through link()
        until(lambda: run.refused, "the answer")
        with pytest.warns(UserWarning, match=r"link\(1\) .* mbit=-1"):
            run.link(1, Link(mbit=50))
        until(lambda: run.trace.all(Lifecycle, "host:1", state="linked"), "the next order")
        (refused,) = run.trace.all(Lifecycle, "host:1", state="refused")
        assert "mbit=-1" in refused.why
        assert run.state == "running"


# --- the meter ---

# what headers, acknowledgements and agreements may add, and what a reading within a step may miss
HEADERS = 0.03


@pytest.mark.parametrize(
    ("framework", "all_reduce"), [("tensorflow", "native"), ("torch", "native"), ("torch", "ring")]
)
def test_a_ring_sends_what_its_formula_says_counted_by_the_kernel(
    framework: str, all_reduce: str
) -> None:
    fields = {"framework": framework, "all_reduce": all_reduce, **FOUR_HOSTS}
    run = start("multi_worker_mirrored", **fields)
    result = run.wait(240).result
    formula = 2 * 3 / 4 * 4 * (result["parameters"] + 1)  # float32, the loss among them
    assert result["network"] == "hosts"
    for worker in run.spec.tasks:
        for bytes_per_step in result["wire_bytes_per_step"][worker].values():
            assert bytes_per_step == pytest.approx(formula, rel=HEADERS)


def test_a_parameter_server_moves_as_much_as_all_workers_and_several_share_it() -> None:
    def moved(ps: int) -> tuple[float, list[float]]:
        """Bytes in a step: of all workers together, and of each parameter server."""
        fields: dict[str, Any] = {
            "workers": 3,
            "hosts": 3,
            "ps": ps,
            "workload": "wide",
            "steps": 24,
        }
        found = (
            start("parameter_server", framework="tensorflow", **fields)
            .wait(240)
            .result["wire_bytes_per_step"]
        )
        total = {name: both["sent"] + both["received"] for name, both in found.items()}
        return sum(total[f"worker:{i}"] for i in range(3)), [total[f"ps:{i}"] for i in range(ps)]

    workers, (one,) = moved(1)
    assert one == pytest.approx(workers, rel=0.03)
    both, halves = moved(2)
    for half in halves:
        # a step more or less at both ends, as workers are at different ones
        assert half == pytest.approx(one / 2, rel=0.15)
    assert sum(halves) == pytest.approx(both, rel=0.03)


def test_without_hosts_the_result_says_that_there_was_nothing_to_count() -> None:
    result = start("multi_worker_mirrored", framework="torch", workers=2, steps=5).wait(120).result
    assert (result["network"], result["wire_bytes_per_step"]) == ("private", None)
    assert "over a wire" in result["network_why"]


# --- from outside ---


def listening() -> set[tuple[str, int]]:
    """All TCP doors that can be seen from here, of whatever process."""
    return {tuple(c.laddr) for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


GREETING = b"from inside"


def listening_inside(task: Any) -> tuple[list[tuple[str, int]], bytes]:
    """The same from inside a cluster whose framework has met, and what is heard at a door that
    worker:0 opens for everybody.
    """
    meet(task)
    if task.index == 0:
        threading.Thread(target=greet, daemon=True).start()
    until(lambda: heard(task.addresses["worker"][0]), "the greeting")
    found = sorted(listening())
    (task.run_dir / f"met-{task.index}").touch()
    until(lambda: (task.run_dir / "enough").exists(), "those who look from outside")
    return found, heard(task.addresses["worker"][0])


def greet() -> None:
    with socket.create_server(("", 5999)) as door:
        while True:
            with door.accept()[0] as line:
                line.sendall(GREETING)


def heard(address: str) -> bytes:
    """What is heard from the greeter at the host of an address.

    There are networks in which somebody answers at any address: that is not enough.
    """
    with (
        contextlib.suppress(OSError),
        socket.create_connection((address.split(":")[0], 5999), timeout=0.5) as line,
    ):
        return line.recv(100)
    return b""


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_no_door_of_a_cluster_can_be_seen_or_reached_from_outside(
    framework: str, hosts: int
) -> None:
    run = start(listening_inside, framework=framework, workers=2, hosts=hosts)
    until(lambda: len(list(run.run_dir.glob("met-*"))) == 2, "the workers to meet", 120)
    address = json.loads((run.run_dir / "addresses.json").read_text())["worker"][0]
    outside, reached = listening(), heard(address)
    (run.run_dir / "enough").touch()
    found = run.wait(60).result.values()
    assert {greeting for _, greeting in found} == {GREETING}  # from inside it is heard
    assert reached == b""
    inside = {port for doors, _ in found for _, port in doors}
    assert inside >= {int(address.split(":")[1]), 5999}  # from inside they are seen
    assert not inside & {port for _, port in outside}


def doors(task: Any) -> set[str]:
    """The addresses at which this process listens, once the frameworks have met."""
    meet(task)
    (task.run_dir / f"met-{task.index}").touch()
    until(lambda: (task.run_dir / "enough").exists(), "those who look from outside")
    found = psutil.Process().net_connections("tcp")
    return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}


def test_without_a_private_network_torch_listens_on_loopback_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKSTEP_NETWORK", "loopback")
    run = start(doors, framework="torch", workers=2)
    (run.run_dir / "enough").touch()
    assert set().union(*run.wait(60).result.values()) == {"127.0.0.1"}


def test_without_a_private_network_nobody_outside_reaches_tensorflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKSTEP_NETWORK", "loopback")
    run = start(doors, framework="tensorflow", workers=2)
    until(lambda: len(list(run.run_dir.glob("met-*"))) == 2, "the workers to meet", 120)
    addresses = json.loads((run.run_dir / "addresses.json").read_text())["worker"]
    ports = [int(address.split(":")[1]) for address in addresses]
    places = "127.0.0.1", *outer()
    said = {where: [greeting(where, port) for port in ports] for where in places}
    (run.run_dir / "enough").touch()
    run.wait(60)
    assert all(said.pop("127.0.0.1"))
    assert not any(answer for answers in said.values() for answer in answers)


@contextlib.contextmanager
def plain(framework: str) -> Iterator[psutil.Process]:
    """What the frameworks open by themselves: torchrun, or a tf.distribute.Server."""
    if framework == "torch":
        with clusters.torchrun("torch", 2) as cluster:
            yield cluster.root
        return
    server = (
        "import sys, tensorflow as tf\nserver = tf.distribute.Server({'worker': ['127.0.0.1:' +"
        " sys.argv[1]]}, job_name='worker', task_index=0)\nprint('up',"
        " flush=True)\nsys.stdin.read()"
    )
    with reserve_ports(["worker:0"])["worker:0"] as sock:
        command = [sys.executable, "-c", server, str(sock.getsockname()[1])]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == b"up\n"
            yield psutil.Process(process.pid)
            process.kill()


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_the_same_frameworks_by_themselves_open_doors_on_every_interface(framework: str) -> None:
    with plain(framework) as root:
        open_to_all = [
            c
            for process in (root, *root.children(recursive=True))
            for c in process.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr.ip in ("0.0.0.0", "::")
        ]
    assert open_to_all


# --- nothing is left ---

KERNEL = """
import time
from course_lib import start
from course_lib.spec.run_spec import Link

def work(task):
    while True:
        time.sleep(1)

run = start(work, workers=3, hosts=3, link=Link(mbit=100)).wait_running(60)
open("{flag}", "w").close()
time.sleep(600)
"""


def ways_in() -> list[str]:
    """What keeps a network namespace of ours alive: a process in it, or a descriptor of it, among
    all that came from this process; or a mount.
    """
    found = [
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if " nsfs net:" in line
    ]
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):
            if namespace(process.pid) != namespace():
                found.append(f"{process.pid} is in one")
            found += [
                f"{process.pid} has one open"
                for fd in Path(f"/proc/{process.pid}/fd").iterdir()
                if str(fd.readlink()).startswith("net:")
            ]
    return found


def test_a_killed_kernel_leaves_no_host_behind(home: Path, tmp_path: Path) -> None:
    links, flag = set(psutil.net_if_stats()), tmp_path / "running"
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL.format(flag=flag)],
        env={**os.environ, "LOCKSTEP_HOME": str(home)},
    )
    try:
        until(flag.exists, "the cluster", 60)
        assert (
            len(
                {
                    namespace(child.pid)
                    for child in psutil.Process(kernel.pid).children(recursive=True)
                }
                - {namespace()}
            )
            == 4
        )
        # one for each task, and one for the supervisor, which has them all open
        assert len(ways_in()) > 4
    finally:
        kernel.send_signal(signal.SIGKILL)
        kernel.wait(10)
    assert gone_within(str(home), 30.0) == []
    assert set(psutil.net_if_stats()) == links


@pytest.mark.nightly
def test_twenty_runs_in_a_row_leave_nothing() -> None:
    def work(task: Any) -> None:
        if task.spec.seed == 1 and task.index == 1:
            raise ValueError("on purpose")

    start(work, workers=1).wait(60)  # so that there is a zygote
    links, descriptors = set(psutil.net_if_stats()), psutil.Process().num_fds()
    for i in range(20):
        with start(
            work, workers=3, hosts=3, link=Link(mbit=100), seed=i % 3
        ) as run:  # one that is finished, one that fails, one that is stopped
            if i % 3 == 0:
                run.wait(60)
            elif i % 3 == 1:
                with pytest.raises(TaskFailed):
                    run.wait(60)
    until(lambda: not ways_in(), "all namespaces to be gone")
    assert set(psutil.net_if_stats()) == links
    assert psutil.Process().num_fds() == descriptors
