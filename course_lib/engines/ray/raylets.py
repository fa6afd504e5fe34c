"""A Ray cluster on this machine: several raylets, each a node to Ray. All are at 127.0.0.1; or, if
the links between them are to be slow, each is in a network namespace of its own, with a link that
Linux holds to its rate. Then a driver has to be in the first node's namespace, see `enter`.

    shell --- lockstep cluster up
                  keeper --- holder --- gcs_server, raylets --- their workers

The holder ends with the shell. Whoever wants to use the cluster must know its token, which is in
this user's home; Ray's ports are open at 127.0.0.1 or inside the namespaces only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import psutil

from course_lib import hardware
from course_lib.cluster import keeper, nursery
from course_lib.cluster.pipes import Channel, ready
from course_lib.errors import SpecError, Unavailable
from course_lib.hardware.machine import network_parts
from course_lib.network import namespaces
from course_lib.network.hosts import Hosts
from course_lib.network.layout import LOOPBACK
from course_lib.record import rundir
from course_lib.record.files import leave, private
from course_lib.spec.fields import Link

PATIENCE = 300.0  # seconds until all nodes are there
TRIES = 3
OUR_STORE = 80_000_000  # bytes of a node's object store; Ray wants 75 MB at least
_CURE = "See what else this machine does, or ask for fewer nodes."
_WHAT = "a Ray cluster on this machine"
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray would warn of what it will change some day
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "40",
    # A dead node is given up after 3 questions, 1.5 s and not 15, one that stands still after 7.5 s
    # and not 65; one that is only busy answers at once
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_prestart_worker_first_driver": "false",  # a worker a core, of which we use one
    "RAY_START_HOOK": f"{__name__}.narrow",
}


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up. `nodes`: their addresses; `links`: in words; `holder`: the process that
    holds it, `born` then, and what that has of the first node's namespace: a descriptor, and the
    namespace's number. None: all are at 127.0.0.1.
    """

    address: str
    nodes: list[str]
    cpus: float
    links: str
    holder: int
    born: float
    namespace: tuple[int, int] | None = None

    @property
    def lives(self) -> bool:
        try:
            return psutil.Process(self.holder).create_time() == self.born
        except psutil.NoSuchProcess:
            return False

    @property
    def reached(self) -> bool:
        """Return whether this process can reach the nodes."""
        here = Path("/proc/self/ns/net")
        return not self.namespace or here.stat().st_ino == self.namespace[1]

    def enter(self, command: list[str]) -> NoReturn:
        """Become another program, which can reach the nodes."""
        if not shutil.which(command[0]):
            raise SpecError("command", command[0], "a program that is on the PATH")
        os.environ.update(environment(), RAY_ADDRESS=self.address)
        if self.namespace and not self.reached:
            where = str(self.holder), str(self.namespace[0])
            command = [sys.executable, "-I", "-S", namespaces.__file__, *where, *command]
        os.execvp(command[0], command)

    def end(self) -> None:
        """End the cluster, and return when it is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            holder = psutil.Process(self.holder)
            holder.terminate()
            holder.wait(30)


def environment() -> dict[str, str]:
    """Return the variables that a process needs for a cluster of ours. The token stays the same
    from one cluster to the next, as Ray reads it once in each process.
    """
    token = rundir.runs().parent / "ray-token"
    if not token.exists():
        leave(token, secrets.token_hex(32).encode())
    return {**SETTINGS, "RAY_AUTH_TOKEN_PATH": str(token)}


def meant(address: str | None) -> Cluster | None:
    """This user's cluster, if one is up and `address` (None: whichever there is) is its own. What
    Ray has to know for it is in this process's environment then; Ray reads that once, when it is
    loaded. Raises `Unavailable` if that was too early, or if its nodes cannot be reached from here.
    """
    there = current()
    if there and (address or os.environ.get("RAY_ADDRESS")) in (None, there.address):
        if not there.reached:
            why = "its nodes have a network of their own, and this process is outside it"
            cure = "Run this in `lockstep cluster shell`, or bring a cluster up without --mbit."
            raise Unavailable("the Ray cluster", why, cure)
        if "ray" not in sys.modules:
            os.environ.update(environment())
        elif os.environ.get("RAY_AUTH_MODE") != "token":
            why = "it asks for a token, and Ray was loaded here before the cluster was up"
            raise Unavailable("the Ray cluster", why, "Restart the kernel, or this program.")
        return there
    return None


def current() -> Cluster | None:
    """This user's cluster, if one is up."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        cluster = Cluster(**json.loads(_file().read_bytes()))
        return cluster if cluster.lives else None
    return None


def up(
    nodes: int = 3,
    cpus: float = 2,
    mbit: float | None = None,
    shell: int = 0,
    gpus: int = 0,
    began: Callable[[int], object] = int,
) -> Cluster:
    """Start a cluster, which ends with the process `shell` (0: this one). Each node says that it
    has these `gpus`, to try out what Ray does with them; `began` is told its number when its start
    begins. Returns when all nodes are there. Raises `Unavailable`.
    """
    if there := current():
        cure = "`lockstep cluster status` says how it is, `lockstep cluster down` ends it."
        raise Unavailable("another Ray cluster", f"one is up at {there.address}", cure)
    environment()
    links, shaped = "not slowed", False
    if mbit:
        rate = network_parts(hardware.probe().private_network)["rate"]
        shaped, links = rate.ok, f"{mbit:g} Mbit/s for each node, imposed by Linux"
        if not shaped:
            links += f", as {rate.why}"
    plan: dict[str, Any] = {"nodes": nodes, "cpus": cpus, "gpus": gpus, "links": links}
    plan |= {"mbit": mbit if shaped else None, "shell": shell or os.getpid()}
    _, channel = nursery.popen("ray", "engines.ray.raylets", json.dumps(plan))
    with contextlib.closing(channel):
        deadline = time.monotonic() + PATIENCE
        while ready(channel, deadline - time.monotonic()):
            for message in (messages := channel.receive()) or ():
                if "unavailable" in message:
                    raise Unavailable(*message["unavailable"])
                if "up" in message:
                    return Cluster(**message["up"])
                began(message["node"])
            if messages is None:
                why = f"it ended at its start. {nursery.last_words('ray')}"
                raise Unavailable(_WHAT, why, "Look at that.")
    raise Unavailable(_WHAT, f"not all of its nodes were there within {PATIENCE:g} s", _CURE)


def _file() -> Path:
    return rundir.home() / "cluster.json"


# --- the holder ---


def begin(lifeline: int | None, fd: str, text: str) -> NoReturn:
    """Hold a cluster, as a process of its own, until it is told to end or its shell is gone."""
    channel, plan = Channel(socket.socket(fileno=int(fd))), json.loads(text)
    os.setsid()  # what the terminal sends to its processes is not for us
    # short, as there will be sockets in it
    place = tempfile.mkdtemp(prefix="lockstep-ray-", dir="/tmp")

    def clear(_status: int = 0) -> None:
        shutil.rmtree(place, ignore_errors=True)
        if not (other := current()) or other.holder == os.getpid():
            _file().unlink(missing_ok=True)

    keeper.watch_over(lifeline, clear)
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        shell = psutil.Process(plan["shell"])
        cluster = _raylets(place, channel, plan)
        leave(_file(), json.dumps(asdict(cluster)).encode())
        channel.send(up=asdict(cluster))
        channel.close()
        gcs = next(p for p in psutil.Process().children(recursive=True) if p.name() == "gcs_server")
        while keeper.lives(shell) and keeper.lives(gcs):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)  # bury the dead
            time.sleep(0.5)
    except Unavailable as error:
        channel.send(unavailable=error.parts)
    except (psutil.NoSuchProcess, EOFError):
        pass  # nobody is left to tell
    finally:
        keeper.end_descendants()
        clear()
        os._exit(0)


def _terminated(*_: object) -> NoReturn:
    raise EOFError


def _raylets(place: str, channel: Channel, plan: dict[str, Any]) -> Cluster:
    """Start all nodes, one after the other, as each start takes all that two cores have."""
    count, hosts = plan["nodes"], None
    if plan["mbit"]:
        namespaces.make_private()
        names = {f"node:{i}": i for i in range(count)}
        links = dict.fromkeys(range(count), Link(mbit=plan["mbit"]))
        hosts = Hosts(names, links, rate=True, delay=False)
    nodes = list(hosts.addresses.values()) if hosts else [LOOPBACK] * count
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    log = open(Path(place, "start.log"), "ab", opener=private)  # noqa: SIM115
    variables = {**os.environ, **environment(), "TMPDIR": place}
    variables |= {} if hosts else {"LOCKSTEP_LOOPBACK": "1"}
    share = psutil.virtual_memory().available // (2 * count)

    def node(i: int, *arguments: str) -> bool:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments]
        command += [f"--node-ip-address={nodes[i]}", f"--node-name=node-{i}"]
        command += [f"--num-cpus={plan['cpus']:g}", f"--num-gpus={plan['gpus']}"]
        command += [f"--memory={share}"]
        command += [f"--object-store-memory={OUR_STORE}", "--include-log-monitor=false"]
        with hosts.inside(f"node:{i}") if hosts else contextlib.nullcontext():
            starting = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        while starting.poll() is None:
            if channel.gone:
                raise EOFError
            time.sleep(0.05)
        return not starting.returncode

    # written so, as Ray takes 127.0.0.1 for the machine's address towards others
    address = f"{nodes[0] if hosts else '[::ffff:127.0.0.1]'}:{port}"
    head = ["--head", f"--port={port}", f"--temp-dir={place}"]
    head += ["--include-dashboard=false", "--no-monitor"]
    for i in range(count):
        channel.send(node=i)
        # a raylet that a busy machine keeps waiting for 15 seconds dies (ray-project/ray#65983)
        if not any(node(i, *([f"--address={address}"] if i else head)) for _ in range(TRIES)):
            last = Path(place, "start.log").read_text(errors="replace").strip().split("\n")[-1]
            raise Unavailable(_WHAT, f"Ray does not start: {last}", _CURE)
    me, namespace = psutil.Process(), None
    if hosts:
        fd = hosts.namespaces["node:0"]
        namespace = fd, os.fstat(fd).st_ino
    return Cluster(address, nodes, plan["cpus"], plan["links"], me.pid, me.create_time(), namespace)


def narrow(params: Any, head: bool) -> None:
    """Called by `ray start` with what it will do. A node at 127.0.0.1 listens there and nowhere
    else; at other addresses Ray listens on all interfaces. Nor is a server for Ray's other kind of
    client needed.
    """
    if "LOCKSTEP_LOOPBACK" in os.environ:  # Ray's options take it for the outer address
        params.node_ip_address = LOOPBACK
    params.ray_client_server_port = None
