"""Parameter servers (ps) in TensorFlow: the processes that serve, and a model whose variables lie
on them in shards.

A worker or a ps runs TensorFlow's server: it carries out whatever part of a graph is placed on it.
Only the chief runs a program.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task, clock, meetings
from course_lib.strategies.tensorflow.devices import use
from course_lib.workloads.model import digest
from course_lib.workloads.tensorflow import accuracy, build, variables_of

PATIENCE = 60.0  # seconds without a word from those it waits for, after which the chief gives up
POLL = 0.05  # seconds between two looks at what others have to say

# --- workers and parameter servers ---


def serve(task: Task) -> None:
    """Be a server of the cluster until the chief is done."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"  # a peer that is gone is an error at once
    kind, _, index = task.device.partition(":")
    options = tf.compat.v1.ConfigProto(
        device_count={} if kind == "gpu" else {"GPU": 0},
        gpu_options=tf.compat.v1.GPUOptions(allow_growth=True, visible_device_list=index),
        intra_op_parallelism_threads=task.threads,
        # with fewer, steps that wait could take all threads from those they wait for
        inter_op_parallelism_threads=task.spec.workers + 1,
    )
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    server = tf.distribute.Server(cluster, job_name=task.job, task_index=task.index, config=options)
    said = None
    while not _over(task).exists():
        if said != task.slow_factor:
            said = _say(task, task.slow_factor)
        time.sleep(POLL)
    del server  # it serves for as long as it is held


def dismiss(task: Task) -> None:
    """The chief's word to all servers that it is done."""
    _over(task).touch()


def _over(task: Task) -> Path:
    return meetings(task.run_dir) / "over"


def serving(task: Task, name: str) -> Path:
    """The file that says that a server is up. In it is the task's slow factor: an order reaches the
    process, a graph can only read files.
    """
    return meetings(task.run_dir) / f"serving-{name.replace(':', '-')}"


def factor_of(task: Task, name: str) -> float:
    """The slow factor of another task, whose server is up."""
    return float(serving(task, name).read_text())


def _say(task: Task, factor: float) -> float:
    file = serving(task, task.name)
    file.parent.mkdir(exist_ok=True)
    draft = file.with_suffix(".new")
    draft.write_text(str(factor))
    draft.replace(file)  # in one piece, as somebody may be reading
    return factor


# --- the model, in shards ---


@dataclass(frozen=True)
class Shard:
    """What one ps holds: some of the `parts` that the model's variables are cut into, and a
    `version` that counts their updates.

    `places` says of each part which variable it is of, and which rows.
    """

    task: str
    device: str
    parts: list[Any]
    places: list[tuple[int, slice]]
    version: Any

    def cut(self, whole: Sequence[Any]) -> list[Any]:
        """Of tensors of the shapes of the model's variables, what belongs to the parts here."""
        return [whole[variable][rows] for variable, rows in self.places]


@dataclass(frozen=True)
class Model:
    """A Keras model whose variables lie in shards on the parameter servers."""

    keras: Any
    shards: list[Shard]
    learning_rate: float


def connect(task: Task) -> tuple[Any, Model]:
    """Join the cluster as its chief: the coordinator, and the run's model, with every variable cut
    into a part for each ps.

    TensorFlow deals parts out to the ps in turn, whatever their size. As many equal parts of each
    variable as there are ps make the bytes equal too, as far as rows divide.
    """
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    use("cpu")
    spec, workload = task.spec, workloads.load(task.spec)
    _await_servers(task)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(spec.ps)
    strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    _copy_once_from_each(spec.workers)
    with strategy.scope():
        keras = build(workload, spec.seed)
    return coordinator, Model(
        keras, _shards(variables_of(keras)), spec.learning_rate or workload.learning_rate
    )


def _await_servers(task: Task) -> None:
    deadline = clock() + PATIENCE
    servers = [name for name in task.spec.tasks if name != task.name]
    while missing := [name for name in servers if not serving(task, name).exists()]:
        if clock() > deadline:
            raise TimeoutError(f"no server after {PATIENCE:g} s on {', '.join(missing)}")
        time.sleep(POLL / 10)


def _copy_once_from_each(workers: int) -> None:
    """Copy something from each worker, one after the other.

    The first copy from a task sets up a function for it, and enters that in a table which other
    copies read without its lock (TensorFlow 2.21, `EagerClusterFunctionLibraryRuntime::Run`). When
    results of several workers come in at once, the chief may crash. Later copies only read.
    """
    for worker in range(workers):
        with tf.device(f"/job:worker/replica:0/task:{worker}"):
            there = tf.zeros([1], tf.float64)
        with tf.device("/job:chief"):
            tf.identity(there)


def _shards(variables: list[Any]) -> list[Shard]:
    """The parts of all variables by the device that they lie on."""
    found: dict[str, list[tuple[Any, tuple[int, slice]]]] = {}
    for index, variable in enumerate(variables):
        first = 0
        # one that was not cut is its own only part
        for part in getattr(variable, "variables", [variable]):
            found.setdefault(part.device, []).append(
                (part, (index, slice(first, first + part.shape[0])))
            )
            first += part.shape[0]
    shards = []
    for device in sorted(found):
        parts, places = zip(*found[device], strict=True)
        where = tf.DeviceSpec.from_string(device)
        with tf.device(device):
            version = tf.Variable(0, dtype=tf.int64, trainable=False)
        shards.append(
            Shard(f"{where.job}:{where.task}", device, list(parts), list(places), version)
        )
    return shards


def result(task: Task, model: Model, loss: float) -> dict[str, Any]:
    """The chief's result: final_loss, test_accuracy, digest, parameters and variables_on (bytes by
    device).
    """
    workload = workloads.load(task.spec)
    return {
        "final_loss": loss,
        "test_accuracy": accuracy(model.keras, workload),
        "digest": digest(
            [tf.convert_to_tensor(variable).numpy() for variable in variables_of(model.keras)]
        ),
        "parameters": workload.parameters,
        "variables_on": {
            shard.device: sum(part.dtype.size * part.shape.num_elements() for part in shard.parts)
            for shard in model.shards
        },
    }
