"""What both kinds of training with parameter servers (ps) are made of: servers, a model in shards, a step as one graph, a chief that hands out steps.

Only the chief runs a program. Workers and ps run TensorFlow's server, which carries out whatever part of a graph is placed on it. A step is one
graph, and TensorFlow cuts it where it goes from one task to another:

    pull       ps -> worker    version and values of the variables
    compute    worker          gradients of a share of a batch
    push       worker -> ps    what becomes of them there is all that the strategies differ in

The chief puts a step for each share of each batch into a queue, and every worker takes the next one when it is done with the last. No program of
ours runs on workers and ps, so what the trace tells of them is measured in the graph: times are stamps (see `stamps`), versions are read from
the ps and counted up there. They come back with the step's result, and the chief writes them down in the name of the task that did it.
Sources: tensorflow.org/tutorials/distribute/parameter_server_training; Li et al., "Scaling Distributed Machine Learning with the Parameter
Server", OSDI 2014.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task, clock, meetings
from course_lib.strategies.tensorflow.devices import use
from course_lib.strategies.tensorflow.stamps import WallClock, after, hold
from course_lib.trace import Phase, Update
from course_lib.workloads.model import digest
from course_lib.workloads.tensorflow import accuracy, build, loss_of, variables_of

PATIENCE = 60.0  # seconds without a word from anybody after which the chief gives up
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
        inter_op_parallelism_threads=task.spec.workers + 1,  # with fewer, steps that wait could take all threads from those they wait for
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


def _serving(task: Task, name: str) -> Path:
    """The file by which a server is known to be up. It holds the task's slow factor: orders reach the process, but only files reach a graph."""
    return meetings(task.run_dir) / f"serving-{name.replace(':', '-')}"


def _say(task: Task, factor: float) -> float:
    file = _serving(task, task.name)
    file.parent.mkdir(exist_ok=True)
    draft = file.with_suffix(".new")
    draft.write_text(str(factor))
    draft.replace(file)  # in one piece, as somebody may be reading
    return factor


# --- the model, in shards ---


@dataclass(frozen=True)
class Shard:
    """What one ps holds: some of the `parts` that the model's variables are cut into, and a `version` that counts their updates.

    `places` says of each part which variable it is of, and which rows. `name` is what the trace calls all parts together.
    """

    task: str
    device: str
    name: str
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
    """Join the cluster as its chief: the coordinator, and the run's model, with every variable cut into a part for each ps.

    TensorFlow deals parts out to the ps in turn, whatever their size. As many equal parts of each variable as there are ps make the bytes equal too.
    """
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    use("cpu")
    spec, workload = task.spec, workloads.load(task.spec)
    _await_servers(task)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(spec.ps)
    strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        keras = build(workload, spec.seed)
    return coordinator, Model(keras, _shards(variables_of(keras)), spec.learning_rate or workload.learning_rate)


def _await_servers(task: Task) -> None:
    deadline = clock() + PATIENCE
    servers = [name for name in task.spec.tasks if name != task.name]
    while missing := [name for name in servers if not _serving(task, name).exists()]:
        if clock() > deadline:
            raise TimeoutError(f"no server after {PATIENCE:g} s on {', '.join(missing)}")
        time.sleep(POLL / 10)


def _shards(variables: list[Any]) -> list[Shard]:
    """The parts of all variables by the device that they lie on."""
    found: dict[str, list[tuple[Any, tuple[int, slice]]]] = {}
    for index, variable in enumerate(variables):
        first = 0
        for part in getattr(variable, "variables", [variable]):  # one that was not cut is its own only part
            found.setdefault(part.device, []).append((part, (index, slice(first, first + part.shape[0]))))
            first += part.shape[0]
    shards = []
    for device in sorted(found):
        parts, places = zip(*found[device], strict=True)
        where = tf.DeviceSpec.from_string(device)
        name = "all" if len(found) == 1 else f"shard {where.task} of {len(found)}"
        with tf.device(device):
            version = tf.Variable(0, dtype=tf.int64, trainable=False)
        shards.append(Shard(f"{where.job}:{where.task}", device, name, list(parts), list(places), version))
    return shards


def result(task: Task, model: Model, loss: float) -> dict[str, Any]:
    """The chief's result: final_loss, test_accuracy, digest, parameters and variables_on (bytes by device)."""
    workload = workloads.load(task.spec)
    return {
        "final_loss": loss,
        "test_accuracy": accuracy(model.keras, workload),
        "digest": digest([tf.convert_to_tensor(variable).numpy() for variable in variables_of(model.keras)]),
        "parameters": workload.parameters,
        "variables_on": {shard.device: sum(part.dtype.size * part.shape.num_elements() for part in shard.parts) for shard in model.shards},
    }


# --- a step, as one graph ---

Push = Callable[[Shard, Any, Any], Any]
"""In the graph, `push(shard, step, gradients)` hands a ps the gradients of its parts, as one vector: one message. Gives float64
[version written, gradients, begun, ended] of the update that they went into: how many did, and from when to when the ps was at it."""


def make_step(task: Task, model: Model, push: Push) -> Any:
    """The program of a step: `step(work)` with `work` [number, indices of the examples]; gives a float64 vector that `_answer` takes apart."""
    workload = workloads.load(task.spec)

    @tf.function(autograph=False)  # no loops or conditions on tensors need translating
    def step(work: Any) -> Any:
        number, indices = work[0], work[1:]
        begun = tf.timestamp()
        images, labels = tf.gather(workload.x_train, indices), tf.gather(workload.y_train, indices)
        versions, values = pull(model)
        pulled = after([begun, images, labels, *values])
        loss, gradients = compute(model, hold(values, pulled), images, labels)
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        computed = nap(task, worker, pulled, after([loss, *gradients]))
        gradients = hold(gradients, computed)
        updates = [push(shard, number, pack(shard.cut(gradients))) for shard in model.shards]
        scalars = [worker, loss, begun, pulled, computed, after(updates), *versions]
        return tf.concat([tf.stack([tf.cast(scalar, tf.float64) for scalar in scalars]), *updates], 0)

    return step.get_concrete_function(tf.TensorSpec([1 + task.spec.per_worker_batch], tf.int64))


def pull(model: Model) -> tuple[list[Any], list[Any]]:
    """The version of each shard, and the values of the model's variables.

    The version is read first. Nothing locks more than one variable, so of an update that goes on meanwhile some parts may be read and others not.
    """
    versions, pieces = [], []
    for shard in model.shards:
        versions.append(shard.version.read_value())
        with tf.device(shard.device), tf.control_dependencies(versions[-1:]):
            values = pack([part.read_value() for part in shard.parts])
        pieces += [(index, rows.start, value) for (index, rows), value in zip(shard.places, unpack(values, shard.parts), strict=True)]
    pieces.sort(key=lambda piece: piece[:2])
    return versions, [tf.concat([value for i, _, value in pieces if i == index], 0) for index in range(pieces[-1][0] + 1)]


def pack(tensors: Iterable[Any]) -> Any:
    """Tensors as one vector: one message instead of many."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def unpack(vector: Any, shapes: Sequence[Any]) -> list[Any]:
    """What `pack` made one of, in the shapes of these tensors."""
    pieces = tf.split(vector, [like.shape.num_elements() for like in shapes])
    return [tf.reshape(piece, like.shape) for piece, like in zip(pieces, shapes, strict=True)]


def compute(model: Model, values: list[Any], images: Any, labels: Any) -> tuple[Any, list[Any]]:
    """The loss, and its gradients, of the model with these values in place of its variables."""
    with tf.GradientTape() as tape:
        tape.watch(values)
        logits, _ = model.keras.stateless_call(values, [], images, training=True)
        loss = loss_of(logits, labels)
    return loss, tape.gradient(loss, values)


def nap(task: Task, worker: Any, since: Any, until: Any) -> Any:
    """Sleep for the emulated device time of a step that computed from `since` to `until`, longer on a worker that is slowed; the time after it.

    TensorFlow has no operation that sleeps, but a dataset that does so before each of its elements.
    """
    with tf.control_dependencies([until]):
        factor = tf.io.read_file(tf.strings.join([str(_serving(task, "worker:")), tf.strings.as_string(worker)]))
    factor = tf.strings.to_number(factor, tf.float64)
    seconds = factor * task.spec.device_ms / 1000 + (factor - 1) * (until - since)

    def sleep() -> Any:
        kind: dict[str, Any] = {"output_types": [tf.int64], "output_shapes": [[]]}
        one = tf.data.experimental.to_variant(tf.data.Dataset.range(1))
        slow = tf.raw_ops.SleepDataset(input_dataset=one, sleep_microseconds=tf.cast(seconds * 1e6, tf.int64), **kind)
        once = tf.raw_ops.TakeDataset(input_dataset=slow, count=1, **kind)  # to find its end would take another sleep
        return tf.raw_ops.DatasetToSingleElement(dataset=once, **kind)[0]

    return after(tf.cond(seconds > 0, sleep, lambda: tf.constant(0, tf.int64)))


# --- the chief ---


class Applied(NamedTuple):
    """An update on a ps: the version that it made, of how many gradients, and from when to when the ps was at it."""

    written: int
    gradients: int
    begun: float
    ended: float


class Answer(NamedTuple):
    """What came of a share of a step: who computed it, its loss and times; for each shard the version `read`, and what was `applied`."""

    step: int
    worker: str
    loss: float
    begun: float
    pulled: float
    computed: float
    pushed: float
    read: list[int]
    applied: list[Applied]


def _answer(step: int, values: list[float], shards: int, offset: float) -> Answer:
    """Take a vector of `make_step` apart; `offset` leads from its wall-clock times to the trace's clock."""
    (worker, loss), times, read, updates = values[:2], values[2:6], values[6 : 6 + shards], values[6 + shards :]
    applied = [Applied(int(a), int(b), c + offset, d + offset) for a, b, c, d in zip(*(updates[i::4] for i in range(4)), strict=True)]
    return Answer(step, f"worker:{worker:.0f}", loss, *(t + offset for t in times), [int(v) for v in read], applied)  # type: ignore[call-arg]


def hand_out(task: Task, coordinator: Any, model: Model, step: Any, beside: Sequence[Future[Any]] = ()) -> Iterator[Answer]:
    """Have each step done once for every share of its batch, by whichever worker is free; the answers as they come.

    Raises TimeoutError if none comes for `PATIENCE`, and what goes wrong in a step or in what goes on `beside` them.
    """
    spec, workload, wall = task.spec, workloads.load(task.spec), WallClock()
    shares = ((n, share) for n in range(spec.steps) for share in range(spec.workers))
    ahead = 2 * spec.workers  # for each worker one under way, and one to go on with
    line, pool = (
        ThreadPoolExecutor(1, "lockstep-line"),
        ThreadPoolExecutor(ahead, "lockstep-fetch"),
    )  # one line, so that steps keep their order
    pending: dict[Future[Any], int] = {}
    try:
        while True:
            for _, (n, share) in zip(range(len(pending), ahead), shares, strict=False):
                indices = workload.batch(n, spec.seed, spec.batch, share, spec.workers)
                work = tf.constant([n, *indices], tf.int64)  # one tensor: one message
                value = line.submit(coordinator.schedule, step, args=(work,))
                pending[pool.submit(_fetch, value)] = n
            if not pending:
                return
            for future in _finished(task, pending, beside):
                yield _answer(pending.pop(future), future.result().tolist(), len(model.shards), wall.offset())
    finally:
        for threads in (line, pool):
            threads.shutdown(wait=False, cancel_futures=True)


def _fetch(value: Future[Any]) -> Any:
    return value.result().fetch()


def _finished(task: Task, pending: dict[Future[Any], int], beside: Sequence[Future[Any]]) -> list[Future[Any]]:
    """Wait for any of the pending shares; those that are done."""
    task.step = min(pending.values())
    slowest = max(float(_serving(task, name).read_text()) for name in task.spec.tasks if name.startswith("worker"))
    patience = PATIENCE + slowest * task.spec.device_ms / 1000
    done, _ = wait([*pending, *(other for other in beside if not other.done())], patience, FIRST_COMPLETED)
    for other in beside:
        if other.done():
            other.result()
    if not done:
        raise TimeoutError(
            f"no worker has finished its share of a step for {patience:g} s; the first that is missing is of step {task.step}"
        )
    return [future for future in done if future in pending]


def by_step(task: Task, answers: Iterable[Answer]) -> Iterator[tuple[float, list[Answer]]]:
    """The mean loss and the answers of each step, as soon as all shares of it are there. The loss is in the trace then."""
    found: dict[int, list[Answer]] = {}
    for count, answer in enumerate(answers, 1):
        found.setdefault(answer.step, []).append(answer)
        if len(found[answer.step]) == task.spec.workers:
            whole = found.pop(answer.step)
            loss = sum(share.loss for share in whole) / len(whole)
            task.metric("loss", loss, answer.step, count * task.spec.per_worker_batch)
            yield loss, whole


def tell_worker(task: Task, answer: Answer, push: str) -> None:
    """Write into the trace what a worker did; `push` is what to call the time from its gradients to the update."""
    times = [answer.begun, answer.pulled, answer.computed, answer.pushed]
    for what, start, end in zip(("read", "compute", push), times, times[1:], strict=False):
        task.recorder.add(Phase(answer.worker, answer.step, what, start, end))


def tell_ps(task: Task, model: Model, step: int, read: Sequence[int], applied: Sequence[Applied]) -> None:
    """Write into the trace what the ps did with gradients for which these versions were read."""
    for shard, version, a in zip(model.shards, read, applied, strict=True):
        task.recorder.add(Phase(shard.task, step, "apply", a.begun, a.ended))
        task.recorder.add(Update(shard.task, step, shard.name, shard.device, version, a.written, a.ended, a.gradients))
