"""A Ray cluster: what Ray is asked. It has the machines, and finds room for the tasks of a run: a
placement group with a bundle for each task, or for each host. On each node that has bundles there
is an actor of ours (`node.py`).
"""

import contextlib
import functools
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
import ray.exceptions
from ray._private.services import canonicalize_bootstrap_address as _canonical
from ray._private.services import get_node_to_connect_for_driver
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util import scheduling_strategies as scheduling

from course_lib.engines.ray import raylets
from course_lib.engines.ray.node import RayNode
from course_lib.errors import SpecError, Unavailable
from course_lib.spec.run_spec import RunSpec
from course_lib.text import count

HELLO = 5.0  # seconds for a cluster to greet
ROOM = 8.0  # seconds for which Ray may look for room
GIVE_BACK = 2.0  # seconds to wait until Ray has what was reserved
SILENT = 8.0  # seconds after which a node that does not answer is lost

WHAT = "a run on a Ray cluster"
ADVICE = "`ray status` says how the cluster is."
T = TypeVar("T")

_actors: dict[str, Any] = {}  # by Ray's id of the node
_meeting = threading.Lock()
_names: dict[str, str] = {}  # as what the cluster at an address was asked for


def connect(address: str | None) -> None:
    """Join the cluster, unless this process has joined one that is still there. Without an address:
    that of RAY_ADDRESS, that of `lockstep cluster up`, or one that Ray finds here. Raises
    `Unavailable`; and `SpecError` if this process has joined another one.
    """
    if ray.is_initialized():
        joined = getattr(ray.get_runtime_context(), "gcs_address", "")
        if isinstance(_trouble(joined), ConnectionRefusedError):
            ray.shutdown()  # it is gone
        elif address in (None, joined, _names.get(joined)) or _canonical(address) == joined:
            return
        else:
            why = f"this program has joined the Ray cluster at {joined}, and can be in one only: "
            why += "take engine='ray' without an address, or restart the kernel or program"
            raise SpecError("engine", f"ray:{address}", why)
    ours = raylets.meant(address)
    address = ours.address if ours else address or os.environ.get("RAY_ADDRESS")
    # Ray would warn of what it will change some day, and print what raylets say of lost workers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # and, 60 seconds after its cluster is gone, end this process
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "1000000")
    printing: Any = ray._private.worker
    asking: Any = ray._raylet
    printing.listen_error_messages = lambda *_: None
    before = signal.getsignal(signal.SIGTERM)
    try:
        at = _canonical(address or "auto") or "local"
        if error := _trouble(at):
            raise error
        node = get_node_to_connect_for_driver(asking.GcsClient(address=at))
        # of which Ray would wait 30 seconds for an answer, and then end this process
        if _trouble(f"{node.node_manager_address}:{node.node_manager_port}"):
            why = f"its node {node.node_manager_address}, which this program is on, does not answer"
            raise Unavailable(WHAT, why, f"Start the run again when that node answers. {ADVICE}")
        ray.init(address=at, namespace="lockstep", configure_logging=False, log_to_driver=False)
        _names[at] = address or ""
        _actors.clear()  # of before, if a program has left its cluster
    except (OSError, ValueError, ray.exceptions.RayError) as error:
        why = f"no Ray cluster answers at {address or 'this machine'} ({error})"
        cure = "Give the address of one that is up, or start one: lockstep cluster up."
        raise Unavailable(WHAT, why, cure) from None
    except RuntimeError as error:  # another version of Ray or Python, says Ray
        cure = "Install here what the cluster has."
        raise Unavailable(WHAT, " ".join(str(error).split()), cure) from None
    with contextlib.suppress(ValueError, TypeError):  # only the main thread may
        signal.signal(signal.SIGTERM, before)  # Ray's prints a stack of C++


def _trouble(at: str) -> OSError | None:
    """Return the error at an address that is to be a Ray cluster's; None if a server of its kind,
    gRPC, answers. Ray itself would try for minutes, and print each try. gRPC speaks HTTP/2 (RFC
    9113): a client sends a preface and its settings, and a server's first frame has its own.
    """
    host, _, port = at.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), port), HELLO) as there:
            there.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            known = there.recv(9)[3:4] == b"\4" or os.environ.get("RAY_USE_TLS")
            return None if known else ConnectionError("another server is there")
    except OSError as error:
        return error


def alive() -> list[tuple[str, str, float]]:
    """Name, address and CPUs of each node that is there."""
    return [
        (node["NodeName"], node["NodeManagerAddress"], node["Resources"].get("CPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    ]


def state(address: str) -> tuple[list[tuple[str, str, float]], float]:
    """Join a cluster; name, address and CPUs of each node, and how many CPUs are free."""
    connect(address)
    return sorted(alive()), free("CPU")


def stands(id: str | None) -> bool:
    """Return whether a node is there, and our actor on it answers, if there is one."""
    if not any(node["NodeID"] == id and node["Alive"] for node in ray.nodes()):
        return False
    with contextlib.suppress(ray.exceptions.RayError):
        if actor := _actors.get(id or ""):
            ray.get(actor.clock.remote(), timeout=1)
        return True
    return False


def in_time(ask: Callable[[], T], seconds: float) -> T | None:
    """Return Ray's answer, or None after so many seconds: for a lost cluster it waits for ever."""
    answer = list[T]()

    def hear() -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            answer.append(ask())

    asking = threading.Thread(target=hear, daemon=True)
    asking.start()
    asking.join(seconds)
    return answer[0] if answer else None


def give_back(group: Any) -> None:
    in_time(lambda: remove_placement_group(group), GIVE_BACK)


def free(what: str) -> float:
    """Return how much of a resource is free on all nodes together."""
    return float(ray.available_resources().get(what, 0))


def place(
    spec: RunSpec, gpus: bool, together: bool = False
) -> tuple[Any, RunSpec, dict[str, str], list[list[str]]]:
    """Have Ray find room for the tasks: the placement group, the run with the host of each task,
    the node of each, by Ray's id, and the tasks of each bundle. A task wants a CPU, a worker with
    `gpus` also a GPU.

    Each task is a bundle of its own, and they are spread over the nodes. If the run has several
    hosts, each host is a bundle, so that its tasks stay together; if all have to be `together`,
    they are one.
    """
    hosted = len(spec.all_hosts) > 1 or bool(spec.placement)
    crews = [[t for t, h in spec.places.items() if h == host] for host in spec.all_hosts]
    crews = crews if hosted or together else [[task] for task in spec.tasks]
    bundles = [{"CPU": 1.0 * len(crew)} for crew in crews]
    for crew, bundle in zip(crews, bundles, strict=True):
        if workers := gpus * sum(task.startswith("worker") for task in crew):
            bundle["GPU"] = 1.0 * workers
    group = placement_group(bundles, strategy="SPREAD")
    try:
        if not group.wait(ROOM):
            raise _not_placed(group, crews)
    except BaseException as error:
        give_back(group)
        if "does not exist" not in str(error):
            raise
        why = "Ray has given up the node of this program, and forgotten what it has asked for"
        raise Unavailable(WHAT, why, f"Restart the kernel or program. {ADVICE}") from None
    where = placement_group_table(group)["bundles_to_node_id"]
    ids = {task: where[i] for i, crew in enumerate(crews) for task in crew}
    if not hosted:
        order = list(dict.fromkeys(ids[task] for task in spec.tasks if "worker" in task))
        order += [i for i in dict.fromkeys(ids.values()) if i not in order]
        if len(order) > 1:
            placement = {task: order.index(ids[task]) for task in spec.tasks}
            spec = spec.placed(placement)
    return group, spec, ids, crews


def actor_on(id: str) -> Any:
    """The actor on a node; it stays for later runs."""
    with _meeting:
        if actor := _actors.get(id):
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.clock.remote(), timeout=SILENT)
                return actor
        at = scheduling.NodeAffinitySchedulingStrategy(id, soft=False)
        groups = {"orders": 1, "hear": 64, "clock": 1}
        remote: Any = ray.remote  # its types know nothing of groups
        made = remote(num_cpus=0, concurrency_groups=groups, scheduling_strategy=at)(RayNode)
        here = _line(ray.util.get_node_ip_address()).getsockname()[:2]
        _actors[id] = actor = made.remote(here)
        return actor


@functools.cache
def _line(host: str) -> socket.socket:
    """Return a socket to which actors connect, to see when this process is gone."""
    family = socket.getaddrinfo(host, 0)[0][0]  # IPv4 or IPv6
    line = socket.create_server((host, 0), family=family, backlog=1024)
    os.register_at_fork(after_in_child=line.close)
    return line


class Seat:
    """An actor that takes the GPUs of a bundle for as long as a run lasts, as Ray tells nobody else
    which of a node's they are. It ends with its placement group.
    """

    def gpus(self) -> list[str]:
        return [str(gpu) for gpu in ray.get_gpu_ids()]


def take_gpus(
    group: Any, crews: Sequence[Sequence[str]], timeout: float
) -> tuple[list[Any], dict[str, str]]:
    """The actors that hold the GPUs of these crews, one crew in each bundle of the group, and the
    GPU of each worker, as its node counts them (`gpu:1`). Raises `Unavailable`.
    """
    remote: Any = ray.remote  # its types do not know that a method has one
    workers = [[task for task in crew if task.startswith("worker")] for crew in crews]
    seats = dict[int, Any]()
    for i, crew in enumerate(workers):
        if crew:
            at = scheduling.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i)
            made = remote(num_cpus=0, num_gpus=len(crew), scheduling_strategy=at)(Seat)
            seats[i] = made.remote()
    try:
        reserved = ray.get([seat.gpus.remote() for seat in seats.values()], timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        why = f"Ray has not said within {timeout:g} s which they are"
        raise Unavailable("GPUs of this Ray cluster", why, "`ray status` says how it is.") from None
    taken = [zip(workers[i], gpus, strict=True) for i, gpus in zip(seats, reserved, strict=True)]
    devices = {task: f"gpu:{gpu}" for pairs in taken for task, gpu in pairs}
    return list(seats.values()), devices


def _not_placed(group: Any, crews: list[list[str]]) -> Unavailable:
    """Return the error for a run without room: there is none, or Ray does not give it to us."""
    stats = in_time(lambda: placement_group_table(group)["stats"], GIVE_BACK) or {}
    if stats.get("scheduling_state") == "QUEUED":  # until a first try has ended
        why = f"Ray has found room, but a node that has it does not answer within {ROOM:g} s"
        return Unavailable(WHAT, why, "Start the run again when Ray has given that node up.")
    tasks, together = sum(map(len, crews)), max(map(len, crews))
    wants = f"{count(tasks, 'task')} want a CPU each, {together} of them on one node"
    why = f"{wants}; the cluster has {free('CPU'):g} CPUs free on {count(len(alive()), 'node')}"
    return Unavailable(WHAT, why, "Wait, or take fewer workers.")
