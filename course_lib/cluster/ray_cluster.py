"""Runs on a Ray cluster. Ray has the machines, and finds room for the tasks: a placement group with
a bundle for each task, or for each host. On each node that has bundles, an actor of ours starts the
tasks (`ray_node.py`). The supervisor is a thread of this process, so all ends with it.

    notebook kernel: Run --- supervisor ===Ray=== actor --- zygote --- node's process --- tasks
"""

import contextlib
import math
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import ray
import ray.exceptions
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from course_lib.clock import own
from course_lib.cluster import own_code, ray_gpus, raylets
from course_lib.cluster.node import Listener
from course_lib.cluster.pipes import Channel, pair
from course_lib.cluster.ray_node import RayNode, versions
from course_lib.cluster.remote import Away
from course_lib.cluster.supervisor import Supervisor
from course_lib.errors import Unavailable
from course_lib.hardware import Machine
from course_lib.hardware.limits import Gpu, cuda_frameworks
from course_lib.hardware.machine import Capability
from course_lib.record.beats import Beats
from course_lib.record.events import Clock, to_line
from course_lib.record.parcels import Parcel, Parcels
from course_lib.record.planned import Reason
from course_lib.record.rundir import RunDir
from course_lib.spec import RunSpec
from course_lib.text import count

ROOM = 8.0  # seconds for which Ray may look for room
BEGIN = 60.0  # seconds for an actor to begin, on a busy node
ANSWER = 5.0  # seconds that Ray may take to say where tasks are
MOVE = 30.0  # seconds that it may take to give a node up and find room on others
GIVE_BACK = 2.0  # seconds to wait until Ray has what was reserved
SILENT = 8.0  # seconds after which a node that does not answer is lost
ASKED = 8  # times that a clock is read before a run; the quickest answer counts
EVERY = 1.0  # seconds between two readings of a clock during a run
DRIFT = 1e-4  # seconds a second by which clocks may drift apart, more than any quartz does

_WHAT = "a run on a Ray cluster"
_LOOK = "`ray status` says how the cluster is."
_AGAIN = "a new start on the Ray cluster"
T = TypeVar("T")

_actors: dict[str, Any] = {}  # by Ray's id of the node
_meeting = threading.Lock()


@dataclass
class RayNodeOf:
    """A node of a run: Ray's id of it, what we call it, its actor, its address and its tasks; `run`
    is the name of these tasks' part of the run there.
    `offset`: what its clock lacked to the driver's when it was last read (`at`), at most `unsure`
    seconds wrong.
    """

    id: str
    name: str
    actor: Any
    address: str
    tasks: list[str] = field(default_factory=list)
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    offset: float = 0.0
    unsure: float = math.inf
    at: float = 0.0

    def read_clock(self) -> None:
        """Read its clock, and keep what is the better of that and of what we knew. The reading lies
        between question and answer, so half of that time is the bound of the error (Cristian 1989,
        "Probabilistic clock synchronization").
        """
        asked = own()
        [theirs] = _answers([self], [self.actor.clock.remote()], SILENT)
        came = own()
        unsure = (came - asked) / 2
        self.unsure += DRIFT * (came - self.at)
        if unsure <= self.unsure:
            self.offset, self.unsure = (asked + came) / 2 - theirs, unsure
        self.at = came

    def note_clock(self, files: RunDir) -> None:
        with files.clocks.open("ab") as file:
            for task in self.tasks:
                file.write(to_line(Clock(task, self.offset, self.unsure, self.at)))


class RayEngine:
    """The cluster at `address` (None: the one that is here), and room on it for one run.

    `spec`: the run with its tasks placed. Raises `Unavailable` if there is no such cluster, no
    room, or a node has other versions than this process. `release` gives the room back.
    """

    def __init__(self, spec: RunSpec, together: bool = False) -> None:
        connect(spec.address)
        self.group, self.spec, ids, self.crews = place(spec, together)
        self._devices: Mapping[str, str] = {}
        self._moving = 0.0  # since when Ray looks for another node
        try:
            if spec.task_gpus:
                self._seats, self._devices = ray_gpus.taken(self.group, spec, self.crews, BEGIN)
            self.nodes = _nodes(ids)
            check_versions(self.nodes)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        group, self.group = self.group, None
        if group:
            _in_time(lambda: remove_placement_group(group), GIVE_BACK)

    def machine(self, here: Machine) -> Machine:
        """What Ray has reserved for the workers; no more is known of the nodes."""
        spec, threads = self.spec, max(1, round(self.spec.task_cpus))
        gpus = (Gpu("reserved by Ray", 0),) * (spec.task_gpus * len(self._devices))
        why = "a private network is of one machine too: whoever reaches the nodes can reach the "
        why += "ports of its tasks, as well as Ray's own"
        memory = f"{spec.task_memory_mb} MB" if spec.task_memory_mb else "not reserved"
        none = Reason("device", "cpu", "task_gpus reserves no GPU; this run needs none.")
        where = "; ".join(f"{', '.join(node.tasks)} on {node.name}" for node in self.nodes)
        settled = [
            Reason(
                "cores",
                f"{count(threads, 'thread')} a worker",
                f"Ray has reserved {spec.task_cpus:g} of a node's CPUs for each task.",
            ),
            *([] if gpus else [none]),
            Reason("memory", memory, "For each task; Ray has found the room."),
            Reason("nodes", count(len(self.nodes), "node"), f"Ray has placed {where}."),
        ]
        return replace(
            here,
            cores=threads * spec.workers,
            memory_total=0,
            gpus=gpus,
            cuda_frameworks=cuda_frameworks() if gpus else (),
            private_network=Capability(False, why),
            others=(),
            nodes=tuple(node.name for node in self.nodes),
            devices=self._devices,
            settled=tuple(settled),
        )

    def supervisor(self, framework: str, start_method: str, timeout: float) -> Channel:
        """A channel to a supervisor that waits for its order to start."""
        ours, theirs = pair()
        name = "lockstep-supervisor"
        args = Channel(theirs), timeout
        threading.Thread(target=self._supervise, args=args, name=name, daemon=True).start()
        return ours

    def last_words(self, framework: str) -> str:
        return "Its nodes are those of a Ray cluster: `ray status` says how that is."

    def _supervise(self, channel: Channel, timeout: float) -> None:
        try:
            if orders := channel.receive():
                first, *more = orders
                files = RunDir(first["start"])
                links: list[Link] = []

                def connect(selector: Any, told: Listener, tasks: Sequence[str]) -> dict[str, Away]:
                    nodes = self._moved(tasks) if links else self.nodes
                    for link in links if nodes else ():
                        if set(link.node.tasks) & set(tasks):
                            link.close()
                    found = dict[str, Away]()
                    for node, opened in zip(nodes, self._open(files, nodes, timeout), strict=True):
                        link = Link(node, files)
                        links.append(link)
                        away = Away(node.name, opened, link.channel, selector, told)
                        found |= dict.fromkeys(node.tasks, away)
                    return found

                try:
                    Supervisor(channel, files, connect).supervise(more)
                finally:
                    for link in links:
                        link.close()
        except Unavailable as error:
            channel.post(unavailable=error.parts)
        except Exception as error:
            what = "the run on the Ray cluster"
            why = f"{type(error).__name__}: {error}"
            channel.post(unavailable=(what, why, _LOOK))
        finally:
            channel.settle()
            channel.close()
            self.release()

    def _moved(self, tasks: Sequence[str]) -> list[RayNodeOf]:
        """The nodes to which Ray has moved these tasks, as theirs are lost; none as long as it has
        not. Raises `Unavailable` if that takes too long.
        """
        mine = {i for i, crew in enumerate(self.crews) if set(crew) & set(tasks)}
        self._moving = self._moving or own()

        def look() -> list[RayNodeOf]:
            where = placement_group_table(self.group)["bundles_to_node_id"]
            if not all(_stands(where.get(i)) for i in mine):
                return []
            return _nodes({task: where[i] for i in mine for task in self.crews[i]}, self.nodes)

        names = ", ".join(node.name for node in self.nodes if set(node.tasks) & set(tasks))
        if (found := _in_time(look, ANSWER)) is None:
            why = f"{names} was lost, and Ray does not answer"
            raise Unavailable(_AGAIN, why, _LOOK)
        if found:
            check_versions(found)
            self.nodes, self._moving = [*self.nodes, *found], 0.0
        elif own() > self._moving + MOVE:
            why = f"{names} was lost, and Ray has no other for {', '.join(tasks)}"
            raise Unavailable(_AGAIN, why, "Ask for less, or add a node.")
        return found

    def _open(
        self, files: RunDir, nodes: list[RayNodeOf], timeout: float
    ) -> list[Mapping[str, str]]:
        """Get nodes ready for a run; the addresses of the tasks of each."""
        for node in nodes:
            for _ in range(ASKED):
                node.read_clock()
            node.note_clock(files)
        folders, code = own_code.carried(files.facts.sys_path, files.facts.cwd)
        described = (path for place in files.described() for path in (place, *place.rglob("*")))
        there = [
            Parcel(str(path.relative_to(files.path)), None, path.read_bytes())
            for path in described
            if path.is_file()
        ]
        record = ray.put([*there, *code])  # once to each node
        calls = [
            node.actor.open.remote(
                node.run,
                record,
                {
                    "address": node.address,
                    "offset": node.offset,
                    "sys_path": folders,
                    "temporary": True,
                },
                node.tasks,
                timeout,
                str(files.path),
            )
            for node in nodes
        ]
        opened = _answers(nodes, calls, timeout + SILENT)
        if self.spec.checkpoint_every or self.spec.resume:
            blind = [n.name for n, (_, shared) in zip(nodes, opened, strict=True) if not shared]
            if blind:
                why = f"tasks write them together, and {blind[0]} does not see {files.path}"
                cure = "Give the run a run_dir in a folder that all nodes share."
                raise Unavailable("checkpoints on this Ray cluster", why, cure)
        return [addresses for addresses, _ in opened]


class Link:
    """The channel of an `Away` joined to the node's actor, from which the record comes as well."""

    def __init__(self, node: RayNodeOf, files: RunDir) -> None:
        self.node, self.files, self.run = node, files, node.run
        self.channel, self._theirs = pair()
        self._parcels = Parcels(files)
        self._beats = Beats(files.beats, files.spec.tasks)
        for what in (self._bring, self._send):
            name = f"lockstep-{node.name}"
            threading.Thread(target=what, name=name, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            self.node.actor.close.remote(self.run)

    def _send(self) -> None:
        """Pass the supervisor's orders on."""
        with contextlib.suppress(OSError):
            while lines := self._theirs.recv(1 << 20):
                self.node.actor.order.remote(self.run, lines, [])

    def _bring(self) -> None:
        """Bring what the node tells, until it is gone."""
        due = (heard := own()) + EVERY
        try:
            while True:
                hear = self.node.actor.hear.remote(self.run)
                said, parcels, beats = ray.get(hear, timeout=SILENT)
                heard = own()
                self._parcels.keep(parcels)
                for task, slot in beats.items():
                    self._beats.lay(task, slot)
                if said is None:
                    break
                if said:
                    self._theirs.sendall(said)
                if notices := self._parcels.new():
                    self.node.actor.order.remote(self.run, b"", notices)
                if own() > due:
                    self.node.read_clock()
                    self.node.note_clock(self.files)
                    due = own() + EVERY
                    line = b'{"do": "clock", "offset": %r}\n' % self.node.offset
                    self.node.actor.order.remote(self.run, line, [])
        except (OSError, Unavailable, ray.exceptions.RayError):  # it is lost, or we are
            with contextlib.suppress(OSError):
                self._theirs.sendall(b'{"until": %.3f}\n' % (heard - self.files.facts.origin))
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)


def connect(address: str | None) -> None:
    """Join the cluster, unless this process has joined one. Without an address: that of
    RAY_ADDRESS, that of `lockstep cluster up`, or one that Ray finds here. Raises `Unavailable`.
    """
    if ray.is_initialized():
        return
    ours = raylets.meant(address)
    address = ours.address if ours else address or os.environ.get("RAY_ADDRESS")
    # Ray would warn of what it will change some day, and print what raylets say of lost workers
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    printing: Any = ray._private.worker
    printing.listen_error_messages = lambda *_: None
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address or "auto",
            namespace="lockstep",
            configure_logging=False,
            log_to_driver=False,
        )
    except (ConnectionError, ray.exceptions.RayError) as error:
        why = f"no Ray cluster answers at {address or 'this machine'} ({error})"
        raise Unavailable(_WHAT, why, "Start one: lockstep cluster up.") from None
    except RuntimeError as error:  # another version of Ray or Python, says Ray
        cure = "Install here what the cluster has."
        raise Unavailable(_WHAT, " ".join(str(error).split()), cure) from None
    with contextlib.suppress(ValueError, TypeError):  # only the main thread may
        signal.signal(signal.SIGTERM, before)  # Ray's prints a stack of C++


def alive() -> list[tuple[str, str, float]]:
    """Name, address and CPUs of each node that is there."""
    return [
        (node["NodeName"], node["NodeManagerAddress"], node["Resources"].get("CPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    ]


def _stands(id: str | None) -> bool:
    """Whether a node is there, and our actor on it answers, if there is one."""
    if not any(node["NodeID"] == id and node["Alive"] for node in ray.nodes()):
        return False
    with contextlib.suppress(ray.exceptions.RayError):
        if actor := _actors.get(id or ""):
            ray.get(actor.clock.remote(), timeout=1)
        return True
    return False


def _in_time(ask: Callable[[], T], seconds: float) -> T | None:
    """What Ray says within so many seconds; it waits for ever for a cluster that is gone."""
    said = list[T]()

    def hear() -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            said.append(ask())

    asking = threading.Thread(target=hear, daemon=True)
    asking.start()
    asking.join(seconds)
    return said[0] if said else None


def free(what: str) -> float:
    """How much of something is free on all nodes together."""
    return float(ray.available_resources().get(what, 0))


def place(
    spec: RunSpec, together: bool = False
) -> tuple[Any, RunSpec, dict[str, str], list[list[str]]]:
    """Have Ray find room for the tasks: the placement group, the run with the host of each task,
    the node of each, by Ray's id, and the tasks of each bundle.

    Each task is a bundle of its own, and they are spread over the nodes. If the run has several
    hosts, each host is a bundle, so that its tasks stay together; if all have to be `together`,
    they are one.
    """
    hosted = len(spec.all_hosts) > 1 or bool(spec.placement)
    crews = [[t for t, h in spec.places.items() if h == host] for host in spec.all_hosts]
    crews = crews if hosted or together else [[task] for task in spec.tasks]
    bundles = [_bundle(spec, crew) for crew in crews]
    group = placement_group(bundles, strategy="SPREAD")
    try:
        if not group.wait(ROOM):
            raise _not_placed(group, spec, crews)
    except BaseException:
        _in_time(lambda: remove_placement_group(group), GIVE_BACK)
        raise
    where = placement_group_table(group)["bundles_to_node_id"]
    ids = {task: where[i] for i, crew in enumerate(crews) for task in crew}
    if not hosted:
        order = list(dict.fromkeys(ids[task] for task in spec.tasks if "worker" in task))
        order += [i for i in dict.fromkeys(ids.values()) if i not in order]
        if len(order) > 1:
            placement = {task: order.index(ids[task]) for task in spec.tasks}
            spec = RunSpec(**{**spec.model_dump(), "placement": placement})
    return group, spec, ids, crews


def _bundle(spec: RunSpec, crew: list[str]) -> dict[str, float]:
    """What some tasks of a run want together."""
    workers = sum(task.startswith("worker") for task in crew)
    wanted = {
        "CPU": spec.task_cpus * len(crew) or 0.001,  # Ray wants something in each bundle
        "GPU": spec.task_gpus * workers,
        "memory": spec.task_memory_mb * 2**20 * len(crew),
    }
    return {what: much for what, much in wanted.items() if much}


def check_versions(nodes: list[RayNodeOf]) -> None:
    """Raise `Unavailable` if a node has other versions than this process."""
    ours = versions()
    found = _answers(nodes, [node.actor.versions.remote() for node in nodes], BEGIN)
    for node, theirs in zip(nodes, found, strict=True):
        for what, version in ours.items():
            if theirs.get(what) != version:
                has = f"{node.name} has {what} {theirs.get(what, 'not at all')}"
                cure = f"Install the same there: {what} {version}."
                raise Unavailable(_WHAT, f"{has}, this is {version}", cure)


def _answers(nodes: Sequence[RayNodeOf], calls: Sequence[Any], timeout: float) -> list[Any]:
    """What the nodes answer to their calls. Raises `Unavailable` with the one that does not."""
    found = []
    for node, call in zip(nodes, calls, strict=True):
        cure = "`ray status` says how the cluster is."
        try:
            found.append(ray.get(call, timeout=timeout))
            continue
        except ray.exceptions.RayTaskError as error:
            why = f"{node.name} refused: {error.cause}"
        except ray.exceptions.GetTimeoutError:
            why = f"{node.name} does not answer within {timeout:g} s"
        except ray.exceptions.RayError:
            why = f"{node.name} was lost"
            cure = "Start the run again: Ray will do without that node."
        raise Unavailable(_WHAT, why, cure)
    return found


def _nodes(ids: Mapping[str, str], known: Sequence[RayNodeOf] = ()) -> list[RayNodeOf]:
    """The nodes of these tasks, each with its actor, and named as those that are `known`."""
    names = {node.id: node.name for node in known}
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    places: dict[str, RayNodeOf] = {}
    for task, id in ids.items():
        if id not in places:
            name = names.setdefault(id, f"node {len(names)} ({addresses[id]})")
            places[id] = RayNodeOf(id, name, _actor(id), addresses[id])
        places[id].tasks.append(task)
    return list(places.values())


def _actor(id: str) -> Any:
    """The actor on a node; it stays for later runs."""
    with _meeting:
        if actor := _actors.get(id):
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.clock.remote(), timeout=SILENT)
                return actor
        at = NodeAffinitySchedulingStrategy(id, soft=False)
        groups = {"orders": 1, "hear": 64, "clock": 1}
        remote: Any = ray.remote  # its types know nothing of groups
        made = remote(num_cpus=0, concurrency_groups=groups, scheduling_strategy=at)(RayNode)
        _actors[id] = actor = made.remote()
        return actor


def _not_placed(group: Any, spec: RunSpec, crews: list[list[str]]) -> Unavailable:
    """Why a run has no room: there is none, or there is, and it does not become ours."""
    stats = _in_time(lambda: placement_group_table(group)["stats"], GIVE_BACK) or {}
    if stats.get("scheduling_state") == "QUEUED":  # until a first try has ended
        why = f"Ray has found room, but a node that has it does not answer within {ROOM:g} s"
        return Unavailable(_WHAT, why, "Start the run again when Ray has given that node up.")
    cure = "Wait, or ask for less, such as task_cpus=0.5."
    return Unavailable(_WHAT, _no_room(spec, crews), cure)


def _no_room(spec: RunSpec, crews: list[list[str]]) -> str:
    cpus = "1 CPU" if spec.task_cpus == 1 else f"{spec.task_cpus:g} CPUs"
    wants = f"{count(len(spec.tasks), 'task')} want {cpus} each"
    has = f"{free('CPU'):g} CPUs"
    if spec.task_gpus:
        wants += f" and each worker {count(spec.task_gpus, 'GPU')}"
        has += f" and {free('GPU'):g} GPUs"
    if spec.task_memory_mb:
        wants += f" and {spec.task_memory_mb} MB"
        has += f" and {free('memory') / 2**20:.0f} MB"
    if len(crews) < len(spec.tasks):
        wants += f", {max(map(len, crews))} of them on one node"
    return f"{wants}; the cluster has {has} free on {count(len(alive()), 'node')}"
