"""Parameter servers (ps) in TensorFlow: the processes that serve, and a model whose parameters
lie on them in shards.

A worker or a ps runs TensorFlow's server: it carries out whatever part of a graph is placed on it.
Only the chief runs a program.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.record import files
from course_lib.record.clock import clock
from course_lib.record.rundir import RunDir, folder_name
from course_lib.strategies.memory import Census
from course_lib.strategies.precision import LossScale
from course_lib.strategies.tensorflow import checkpoints, examples, models
from course_lib.strategies.tensorflow.optimizer import Optimizer
from course_lib.strategies.tensorflow.steps import after, pack, unpack, use
from course_lib.workloads.workload import Outputs

PATIENCE = 60.0  # seconds for which the chief waits for those that say nothing
POLL = 0.05  # seconds between two looks at the files of others

# --- workers and parameter servers ---


def serve(task: Task) -> None:
    """Be a server of the cluster until the chief is done."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"  # a peer that is gone is an error at once
    if _reader(task, task.name) == task.name:
        keras.utils.set_random_seed(task.spec.seed)  # a dataset may draw
        examples.write(task.files.temporary(task.name), workloads.load(task.spec).train)
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
    while not over(task).exists():
        if said != (speed := Speed(task.slow_factor, *task.jitter)):
            said = _say(task, speed)
        time.sleep(POLL)
    del server  # it serves for as long as it is held


def over(task: Task) -> Path:
    """The file that says that the chief is done."""
    return task.files.meetings / "over"


def serving(record: RunDir, name: str) -> Path:
    """The file that says that a server is up. It holds the task's `Speed`: a call of `slow` or
    `jitter` reaches the process, but a graph can only read files. And it says where the record lies
    on the task's machine, for the graphs that read it there.
    """
    return record.meetings / f"serving-{folder_name(name)}"


def records(task: Task) -> dict[str, RunDir]:
    """Each worker, and the record where that worker sees it; their servers are up."""
    workers = [name for name in task.spec.tasks if name.startswith("worker:")]
    told = {name: serving(task.files, name).read_text() for name in workers}
    paths = {name: text.partition("\n")[2] for name, text in told.items()}
    return {name: RunDir(path, task.files.gathered) for name, path in paths.items()}


def folders(task: Task) -> list[Path]:
    """Where each worker finds the training examples: a worker of each host has written them."""
    return [its.temporary(_reader(task, name)) for name, its in records(task).items()]


def _reader(task: Task, name: str) -> str:
    """The first worker on the host of a task, which writes the examples for all on it; "" if there
    is none.
    """
    places = task.spec.places
    there = [t for t, host in places.items() if t.startswith("worker:") and host == places[name]]
    return there[0] if there else ""


class Speed(NamedTuple):
    """A task's slow factor, and the numbers of its `Jitter`."""

    factor: float
    sigma: float
    mean: float
    chance: float
    delay: float

    @classmethod
    def of(cls, task: Task, name: str) -> Speed:
        """That of another task, whose server is up."""
        return cls(*map(float, serving(task.files, name).read_text().partition("\n")[0].split()))

    def most(self, seconds: float) -> float:
        """How long device time of so many seconds may take; longer once in three million steps."""
        return self.factor * math.exp(5 * self.sigma) * seconds + 15 * self.mean + self.delay


def _say(task: Task, speed: Speed) -> Speed:
    task.files.meetings.mkdir(parents=True, exist_ok=True)
    said = f"{' '.join(map(str, speed))}\n{task.run_dir}"
    files.leave(serving(task.files, task.name), said.encode())
    return speed


def device_time(task: Task, worker: Any, draws: Any, since: Any, until: Any) -> Any:
    """Sleep for the emulated device time of a step that computed from `since` to `until`, longer on
    a worker that is slowed or has jitter; the time after it. `draws`: what `jitter.draws` drew for
    this worker and step.

    It is `Task.pace` for a graph, which runs on a worker where no Python of ours runs. TensorFlow
    has no operation that sleeps, only a dataset that does so before each element; TensorFlow's own
    tests have a function for it, and here it is asked for its one element.
    """
    with tf.control_dependencies([until]):
        paths = [str(serving(its, name)) for name, its in records(task).items()]
        told = tf.io.read_file(tf.gather(paths, worker))
    numbers = tf.ensure_shape(tf.strings.split(told)[: len(Speed._fields)], [len(Speed._fields)])
    speed = Speed(*tf.unstack(tf.strings.to_number(numbers, tf.float64)))
    normal, exponential, uniform = tf.unstack(draws)
    device = speed.factor * tf.exp(speed.sigma * normal) * task.spec.device_ms / 1000
    late = speed.mean * exponential + speed.delay * tf.cast(uniform < speed.chance, tf.float64)
    seconds = device + (speed.factor - 1) * (until - since) + late

    def sleep() -> Any:
        slow = testing.sleep(tf.cast(seconds * 1e6, tf.int64))
        # `take`, as to find the end of a dataset would take another sleep
        return tf.data.Dataset.range(1).apply(slow).take(1).get_single_element()

    return after(tf.cond(seconds > 0, sleep, lambda: tf.constant(0, tf.int64)))


# --- the model, in shards ---


@dataclass(frozen=True)
class Shard:
    """What one ps holds: a piece of the parameters, its `values`, the optimizer's `state` for them,
    and a `version` that counts their updates.
    """

    task: str
    device: str
    values: Any
    version: Any
    state: list[Any]


class Model:
    """A Keras model whose parameters lie on the ps, and the `coordinator` that can hand out steps.

    Laid end to end, its variables are one long vector, which is cut into as many pieces of equal
    length as there are ps. So every ps holds, sends and receives the same number of bytes, however
    unequal the layers are. What is not trained, such as the moving means of batch normalisation and
    frozen weights, lies whole on the first ps: the `others`, in the order of `kept`. So does
    `scaling`, the value of the loss `scale`, in float16. `steps_done`: before it went on from a
    checkpoint; `loss`: that of the last of these; `ahead`: see `TrainingStep`. `loops`: what
    the ps do beside the steps.

    In the strategy's scope TensorFlow would put whole variables, or rows of them, on the ps in
    turn. Pieces of one vector make the bytes on all ps equal, as they are in PyTorch's page.
    """

    def __init__(self, task: Task, coordinator: Any) -> None:
        spec, self.coordinator = task.spec, coordinator
        self.keras = models.build(workloads.load(spec), spec.seed, spec.precision)
        self.optimizer, self.census, self.scale = Optimizer(spec), Census(task), LossScale(spec)
        self.shards, self.loss = list[Shard](), math.nan
        self.steps_done = self.ahead = 0
        self.loops: Future[Any] | None = None
        parameters = np.concatenate([each.reshape(-1) for each in models.weights_of(self.keras)])
        for k, piece in enumerate(np.array_split(parameters, spec.ps)):
            with tf.device(f"/job:ps/replica:0/task:{k}/device:CPU:0"):
                values, version = tf.Variable(piece), tf.Variable(0, dtype=tf.int64)
                state = self.optimizer.state_of(values)
            self.shards.append(Shard(f"ps:{k}", values.device, values, version, state))
        with tf.device(self.shards[0].device):
            self.others = [tf.Variable(each.numpy()) for each in self.kept]
            self.scaling: Any = tf.Variable(self.scale.value) if self.scale.on else None

    def cut(self, tensors: Sequence[Any]) -> Any:
        """The piece of each shard, of tensors that are shaped like the model's variables."""
        return tf.split(pack(tensors), [shard.values.shape[0] for shard in self.shards])

    def together(self, pieces: Sequence[Any]) -> list[Any]:
        """Tensors that are shaped like the model's variables, from the piece of each shard."""
        return unpack(tf.concat(pieces, 0), models.variables_of(self.keras))

    def outputs(self) -> Outputs:
        """The outputs of the Keras model, which is given the values that the shards have now."""
        values = self.together([shard.values.read_value() for shard in self.shards])
        for variable, value in zip(models.variables_of(self.keras), values, strict=True):
            variable.assign(value)
        for variable, other in zip(self.kept, self.others, strict=True):
            variable.assign(other.read_value())
        return partial(models.outputs_of, self.keras)

    @property
    def kept(self) -> list[Any]:
        """The Keras variables that are not trained, without the states of random numbers."""
        return [each for each in self.keras.non_trainable_variables if not models.is_seed(each)]


def connect(task: Task) -> Model:
    """Join the cluster as its chief: the run's model, a shard of it on each ps."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    use("cpu")
    _await_servers(task)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    _copy_once_from_each(task.spec.workers)
    model = Model(task, coordinator)
    checkpoints.load_shards(task, model)
    return model


def _await_servers(task: Task) -> None:
    deadline = clock() + PATIENCE
    servers = [name for name in task.spec.tasks if name != task.name]
    while missing := [name for name in servers if not serving(task.files, name).exists()]:
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
