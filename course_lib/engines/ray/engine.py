"""Runs on a Ray cluster: Ray finds room for the tasks (`cluster.py`), and each node's actor
starts them. The supervisor is a thread of this process, so all ends with it.

    notebook kernel: Run --- supervisor ===Ray=== actor --- zygote --- node's process --- tasks
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.util import placement_group_table

from course_lib.cluster.node import Report
from course_lib.cluster.pipes import Channel, pair
from course_lib.cluster.supervisor import Supervisor
from course_lib.engines import Engine
from course_lib.engines.ray import cluster
from course_lib.engines.ray.link import BEGIN, Link, RayNodeOf, answers, check_versions, nodes_of
from course_lib.engines.ray.parcels import Parcel, own_code
from course_lib.engines.ray.remote import Away
from course_lib.errors import Unavailable
from course_lib.hardware import Machine
from course_lib.hardware.limits import Gpu, cuda_frameworks
from course_lib.hardware.machine import Capability
from course_lib.record.events import own
from course_lib.record.rundir import Reason, RunDir
from course_lib.spec.run_spec import RunSpec
from course_lib.text import count

ANSWER = 5.0  # seconds that Ray may take to say where tasks are
MOVE = 30.0  # seconds that it may take to give a node up and find room on others
ASKED = 8  # times that a clock is read before a run; the quickest answer counts

_RESTART = "a new start on the Ray cluster"


class RayEngine(Engine):
    """The cluster at an address (None: the one that is here), and room on it for one run.

    `spec`: the run with its tasks placed. Raises `Unavailable` if there is no such cluster, no
    room, or a node has other versions than this process. `release` gives the room back.
    """

    def __init__(self, spec: RunSpec, address: str | None, together: bool = False) -> None:
        cluster.connect(address)
        # one for each worker, or none
        gpus = spec.framework in cuda_frameworks() and cluster.free("GPU") >= spec.workers
        self.group, self.spec, ids, self.crews = cluster.place(spec, gpus, together)
        self._devices: Mapping[str, str] = {}
        self._moving = 0.0  # since when Ray looks for another node
        try:
            if gpus:
                self._seats, self._devices = cluster.take_gpus(self.group, self.crews, BEGIN)
            self.nodes = nodes_of(ids)
            check_versions(self.nodes)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        group, self.group = self.group, None
        if group:
            cluster.give_back(group)

    def machine(self, here: Machine) -> Machine:
        """Return what Ray has reserved for the workers; no more is known of the nodes."""
        gpus = (Gpu("reserved by Ray", 0),) * len(self._devices)
        why = "a private network is of one machine too: whoever reaches the nodes can reach the "
        why += "ports of its tasks, as well as Ray's own"
        none = Reason("device", "cpu", "The cluster has none free that it can use; it needs none.")
        where = "; ".join(f"{', '.join(node.tasks)} on {node.name}" for node in self.nodes)
        settled = [
            Reason("cores", "1 thread a worker", "Ray has reserved a node's CPU for each task."),
            *([] if gpus else [none]),
            Reason("memory", "not reserved", "Each node has to have it."),
            Reason("nodes", count(len(self.nodes), "node"), f"Ray has placed {where}."),
        ]
        return replace(
            here,
            cores=self.spec.workers,
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

                def reach(selector: Any, report: Report, tasks: Sequence[str]) -> dict[str, Away]:
                    nodes = self._moved(tasks) if supervisor.nodes else self.nodes
                    nodes_by_task = dict[str, Away]()
                    for node, opened in zip(nodes, self._open(files, nodes, timeout), strict=True):
                        ours, theirs = pair()
                        Link(node, files, theirs)
                        away = Away(node.name, opened, ours, selector, report)
                        nodes_by_task |= dict.fromkeys(node.tasks, away)
                    return nodes_by_task

                supervisor = Supervisor(channel, files, reach)
                supervisor.supervise(more)
        except Unavailable as error:
            channel.post(unavailable=error.parts)
        except Exception as error:
            what = "the run on the Ray cluster"
            why = f"{type(error).__name__}: {error}"
            channel.post(unavailable=(what, why, cluster.ADVICE))
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

        def moved() -> list[RayNodeOf]:
            where = placement_group_table(self.group)["bundles_to_node_id"]
            if not all(cluster.stands(where.get(i)) for i in mine):
                return []
            return nodes_of({task: where[i] for i in mine for task in self.crews[i]}, self.nodes)

        names = ", ".join(node.name for node in self.nodes if set(node.tasks) & set(tasks))
        if (nodes := cluster.in_time(moved, ANSWER)) is None:
            why = f"{names} was lost, and Ray does not answer"
            raise Unavailable(_RESTART, why, cluster.ADVICE)
        if nodes:
            check_versions(nodes)
            self.nodes, self._moving = [*self.nodes, *nodes], 0.0
        elif own() > self._moving + MOVE:
            why = f"{names} was lost, and Ray has no other for {', '.join(tasks)}"
            raise Unavailable(_RESTART, why, "Ask for less, or add a node.")
        return nodes

    def _open(
        self, files: RunDir, nodes: list[RayNodeOf], timeout: float
    ) -> list[Mapping[str, str]]:
        """Get nodes ready for a run; the addresses of the tasks of each."""
        for node in nodes:
            for _ in range(ASKED):
                node.read_clock()
            node.note_clock(files)
        folders, code = own_code(files.facts.sys_path, files.facts.cwd)
        described = (path for place in files.described() for path in (place, *place.rglob("*")))
        there = [
            Parcel(str(path.relative_to(files.path)), None, path.read_bytes())
            for path in described
            if path.is_file()
        ]
        record = ray.put([*there, *code])  # once to each node
        calls = []
        for node in nodes:
            facts = {"address": node.address, "offset": node.offset, "sys_path": folders}
            run = node.run, record, {**facts, "temporary": True}, node.tasks
            calls.append(node.actor.open.remote(*run, timeout, str(files.path)))
        opened = answers(nodes, calls, timeout + cluster.SILENT)
        if self.spec.checkpoint_every or self.spec.resume:
            blind = [n.name for n, (_, shared) in zip(nodes, opened, strict=True) if not shared]
            if blind:
                why = f"tasks write them together, and {blind[0]} does not see {files.path}"
                cure = "Give the run a run_dir in a folder that all nodes share."
                raise Unavailable("checkpoints on this Ray cluster", why, cure)
        return [addresses for addresses, _ in opened]
