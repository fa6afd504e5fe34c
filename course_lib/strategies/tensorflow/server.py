"""Parameter servers (ps) in TensorFlow: the processes that serve, and a model whose variables lie
on them in shards.

A worker or a ps runs TensorFlow's server: it carries out whatever part of a graph is placed on it.
Only the chief runs a program.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing

from course_lib import workloads
from course_lib.cluster.task import Task, clock
from course_lib.strategies.steps import outcome
from course_lib.strategies.tensorflow.steps import after, pack, unpack, use
from course_lib.workloads.tensorflow import accuracy, build, variables_of

PATIENCE = 60.0  # seconds for which the chief waits for those that say nothing
POLL = 0.05  # seconds between two looks at the files of others

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


def _over(task: Task) -> Path:
    return task.files.meetings / "over"


def serving(task: Task, name: str) -> Path:
    """The file that says that a server is up. It holds the task's slow factor: a call of `slow`
    reaches the process, but a graph can only read files.
    """
    return task.files.meetings / f"serving-{name.replace(':', '-')}"


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


def device_time(task: Task, worker: Any, since: Any, until: Any) -> Any:
    """Sleep for the emulated device time of a step that computed from `since` to `until`, longer on
    a worker that is slowed; the time after it.

    It is `Task.pace` for a graph, which runs on a worker where no Python of ours runs. TensorFlow
    has no operation that sleeps, only a dataset that does so before each element; TensorFlow's own
    tests have a function for it, and here it is asked for its one element.
    """
    with tf.control_dependencies([until]):
        factor = tf.io.read_file(
            tf.strings.join([str(serving(task, "worker:")), tf.strings.as_string(worker)])
        )
    factor = tf.strings.to_number(factor, tf.float64)
    seconds = factor * task.spec.device_ms / 1000 + (factor - 1) * (until - since)

    def sleep() -> Any:
        slow = testing.sleep(tf.cast(seconds * 1e6, tf.int64))
        # `take`, as to find the end of a dataset would take another sleep
        return tf.data.Dataset.range(1).apply(slow).take(1).get_single_element()

    return after(tf.cond(seconds > 0, sleep, lambda: tf.constant(0, tf.int64)))


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

    def cut(self, whole: Sequence[Any]) -> Any:
        """What belongs to the parts here of tensors that are shaped like the model's variables, as
        one vector.
        """
        return pack(whole[variable][rows] for variable, rows in self.places)


@dataclass(frozen=True)
class Model:
    """A Keras model whose variables lie in shards on the parameter servers."""

    keras: Any
    shards: list[Shard]
    learning_rate: float

    def together(self, values: Sequence[Any]) -> list[Any]:
        """The values of the model's variables, from one vector of each shard, as `Shard.cut` makes
        them.
        """
        pieces: list[tuple[int, int, Any]] = []
        for shard, vector in zip(self.shards, values, strict=True):
            parts = unpack(vector, shard.parts)
            pieces += [(i, rows.start, p) for (i, rows), p in zip(shard.places, parts, strict=True)]
        pieces.sort(key=lambda piece: piece[:2])
        variables = itertools.groupby(pieces, key=lambda piece: piece[0])
        return [tf.concat([piece for *_, piece in parts], 0) for _, parts in variables]


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
    """What the chief returns (see `outcome`), and its word to all servers that it is done."""
    workload = workloads.load(task.spec)
    weights = [tf.convert_to_tensor(each).numpy() for each in variables_of(model.keras)]
    held = {
        shard.device: sum(part.dtype.size * part.shape.num_elements() for part in shard.parts)
        for shard in model.shards
    }
    found = outcome(workload, weights, loss, accuracy(model.keras, workload), held)
    _over(task).touch()
    return found
