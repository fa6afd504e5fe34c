"""What tasks on different nodes send is counted by the kernel, connection by connection."""

from typing import Any

import numpy as np
import psutil
import pytest

from course_lib import Workload, start
from course_lib.engines.ray import raylets
from course_lib.network.sockets import _connections, _inodes
from course_lib.record.events import Traffic
from tests.helpers import greeting, meet, outer


def test_a_ring_between_nodes_sends_what_its_formula_says(cluster: str) -> None:
    workers, steps, size = 3, 30, 4 * 1_000_000
    run = start(
        "multi_worker_mirrored",
        framework="torch",
        workload="wide",
        sizes={"parameters": size // 4},
        workers=workers,
        steps=steps,
        all_reduce="ring",
        engine=f"ray:{cluster}",
    ).wait(90)
    said = {reason.what: reason for reason in run.plan.reasons}
    assert "over TCP between the 3 nodes" in said["all-reduce"].why
    for lacks in ("has its own memory", "so measured", "of one machine only", "private network"):
        assert lacks in said["network"].why
    assert run.reality.word == "measured"
    sent = {event.task: event.sent for event in run.trace.all(Traffic)}
    formula = 2 * (workers - 1) / workers * size * steps
    assert set(sent) == set(run.spec.tasks)
    for task, count in sent.items():
        assert 0.97 * formula < count < 1.1 * formula, (task, count, formula)


def test_what_tensorflow_sends_to_another_node_is_counted_and_in_the_result(cluster: str) -> None:
    fields: dict[str, Any] = {"framework": "tensorflow", "workload": "wide", "workers": 2}
    fields |= {"sizes": {"parameters": 250_000}, "steps": 40, "engine": f"ray:{cluster}"}
    run = start("multi_worker_mirrored", **fields).wait(120)
    counted = run.result["wire_bytes_per_step"]
    assert set(counted) == set(run.spec.tasks)
    for task in run.spec.tasks:  # a ring of two sends what it has once
        assert 0.9e6 < counted[task]["sent"] < 1.3e6, counted


def doors(task: Any) -> set[str]:
    """The addresses of this machine at which the servers of a task can be reached."""
    meet(task)
    found = psutil.Process().net_connections("tcp")
    doors = [c.laddr for c in found if c.status == psutil.CONN_LISTEN]
    if task.spec.framework == "torch":
        return {door.ip for door in doors}
    places = "127.0.0.1", *outer()
    return {where for where in places for door in doors if greeting(where, door.port)}


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_tasks_are_reached_at_the_address_of_their_node_only(cluster: str, framework: Any) -> None:
    assert outer()
    run = start(doors, framework=framework, workers=2, engine=f"ray:{cluster}").wait(120)
    assert list(run.values.values()) == [{"127.0.0.1"}] * 2


def two_classes() -> Any:
    import torch

    return torch.nn.Linear(64, 2)


def test_a_learners_arrays_are_sent_once_to_a_node_however_many_tasks_it_has(cluster: str) -> None:
    size = 10_000_000
    numbers = np.random.default_rng(0).normal(size=(size // 256, 64)).astype(np.float32)
    data = numbers, np.zeros(len(numbers), np.int64)
    few = numbers[:100], data[1][:100]
    mine = Workload("mine", train=data, test=few, torch=two_classes, learning_rate=0.1)
    there = raylets.current()
    assert there
    raylets_of_it = psutil.Process(there.holder).children(recursive=True)

    def sent() -> dict[int, int]:
        inodes = {inode for process in raylets_of_it for inode in _inodes(process.pid)}
        return {c.inode: c.counts[0] for c in _connections() if c.inode in inodes}

    before = sent()
    fields: dict[str, Any] = {"framework": "torch", "workload": mine, "workers": 6, "steps": 3}
    run = start("multi_worker_mirrored", global_batch=60, engine=f"ray:{cluster}", **fields)
    run.wait(120)
    assert len(run.spec.all_hosts) == 3
    more = sum(count - before.get(inode, 0) for inode, count in sent().items())
    assert 2 * size < more < 3 * size  # one of the three nodes is that of the driver
