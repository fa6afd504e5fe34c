"""Steps for the workers of a cluster with parameter servers (ps), and the chief that hands them
out.

Only the chief runs a program. A step is one graph, and TensorFlow cuts it where it goes from one
task to another:

    pull       ps -> worker    versions and values of the variables
    compute    worker          gradients of a share of a batch
    push       worker -> ps    what becomes of them there is all that the strategies differ in

The chief puts a step for each share of each batch into a queue, and every worker takes the next one
when it is done with the last. No program of ours runs on workers and ps, so what the trace tells of
them is measured in the graph: times are stamps (see `stamps`), versions are read from the ps and
counted up there. They come back with the step's result, and the chief writes them down in the name
of the task that did it. Sources: tensorflow.org/tutorials/distribute/parameter_server_training; Li
et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.record.events import Phase, Update
from course_lib.strategies.evaluation import evaluate
from course_lib.strategies.tensorflow.server import PATIENCE, Model, Shard, factor_of, serving
from course_lib.strategies.tensorflow.stamps import WallClock, after, hold
from course_lib.workloads.tensorflow import accuracy, loss_of

# --- a step, as one graph ---

Push = Callable[[Shard, Any, Any], Any]
"""In the graph, `push(shard, step, gradients)` hands a ps the gradients of its parts, as one
vector: one message. Gives float64 [version written, gradients, begun, ended] of the update that
they went into: how many did, and from when to when the ps was at it."""


def make_step(task: Task, model: Model, push: Push) -> Any:
    """The program of a step: `step(work)` with `work` [number, indices of the examples]; gives a
    float64 vector that `_answer` takes apart.
    """
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
        return tf.concat(
            [tf.stack([tf.cast(scalar, tf.float64) for scalar in scalars]), *updates], 0
        )

    return step.get_concrete_function(tf.TensorSpec([1 + task.spec.per_worker_batch], tf.int64))


def pull(model: Model) -> tuple[list[Any], list[Any]]:
    """The version of each shard, and the values of the model's variables.

    The version is read first. Nothing locks more than one variable, so of an update that goes on
    meanwhile some parts may be read and others not.
    """
    versions, pieces = [], []
    for shard in model.shards:
        versions.append(shard.version.read_value())
        with tf.device(shard.device), tf.control_dependencies(versions[-1:]):
            values = pack([part.read_value() for part in shard.parts])
        pieces += [
            (index, rows.start, value)
            for (index, rows), value in zip(shard.places, unpack(values, shard.parts), strict=True)
        ]
    pieces.sort(key=lambda piece: piece[:2])
    return versions, [
        tf.concat([value for i, _, value in pieces if i == index], 0)
        for index in range(pieces[-1][0] + 1)
    ]


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
    """Sleep for the emulated device time of a step that computed from `since` to `until`, longer on
    a worker that is slowed; the time after it.

    What `Task.pace` is elsewhere, in a graph. TensorFlow has no operation that sleeps, but a
    dataset that does so before each of its elements.
    """
    with tf.control_dependencies([until]):
        factor = tf.io.read_file(
            tf.strings.join([str(serving(task, "worker:")), tf.strings.as_string(worker)])
        )
    factor = tf.strings.to_number(factor, tf.float64)
    seconds = factor * task.spec.device_ms / 1000 + (factor - 1) * (until - since)

    def sleep() -> Any:
        kind: dict[str, Any] = {"output_types": [tf.int64], "output_shapes": [[]]}
        one = tf.data.experimental.to_variant(tf.data.Dataset.range(1))
        slow = tf.raw_ops.SleepDataset(
            input_dataset=one, sleep_microseconds=tf.cast(seconds * 1e6, tf.int64), **kind
        )
        # to find its end would take another sleep
        once = tf.raw_ops.TakeDataset(input_dataset=slow, count=1, **kind)
        return tf.raw_ops.DatasetToSingleElement(dataset=once, **kind)[0]

    return after(tf.cond(seconds > 0, sleep, lambda: tf.constant(0, tf.int64)))


# --- the chief ---


class Applied(NamedTuple):
    """An update on a ps: the version that it made, of how many gradients, and from when to when the
    ps was at it.
    """

    written: int
    gradients: int
    begun: float
    ended: float


class Answer(NamedTuple):
    """What came of a share of a step: who computed it, its loss and times; for each shard the
    version `read`, and what was `applied`.
    """

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
    """Take a vector of `make_step` apart; `offset` leads from its wall-clock times to the trace's
    clock.
    """
    worker, loss, *times = values[:6]
    begun, pulled, computed, pushed = (time + offset for time in times)
    read, updates = [int(version) for version in values[6 : 6 + shards]], values[6 + shards :]
    applied = [
        Applied(int(a), int(b), c + offset, d + offset)
        for a, b, c, d in zip(*(updates[i::4] for i in range(4)), strict=True)
    ]
    return Answer(
        step, f"worker:{worker:.0f}", loss, begun, pulled, computed, pushed, read, applied
    )


def hand_out(
    task: Task, coordinator: Any, model: Model, step: Any, beside: Future[Any] | None = None
) -> Iterator[Answer]:
    """Have each step done once for every share of its batch, by whichever worker is free; the
    answers as they come.

    Raises TimeoutError if none comes for `PATIENCE`, and what goes wrong in a step or in what goes
    on `beside` them.
    """
    spec, workload, wall = task.spec, workloads.load(task.spec), WallClock()
    shares = ((n, share) for n in range(spec.steps) for share in range(spec.workers))
    ahead = 2 * spec.workers  # for each worker one under way, and one to go on with
    pool = ThreadPoolExecutor(ahead, "lockstep-fetch")
    # one thread, so that steps are put in line in their order
    line = ThreadPoolExecutor(1, "lockstep-line")
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
                yield _answer(
                    pending.pop(future), future.result().tolist(), len(model.shards), wall.offset()
                )
    finally:
        for threads in (line, pool):
            threads.shutdown(wait=False, cancel_futures=True)


def _fetch(value: Future[Any]) -> Any:
    return value.result().fetch()


def _finished(
    task: Task, pending: dict[Future[Any], int], beside: Future[Any] | None
) -> list[Future[Any]]:
    """Wait for any of the pending shares; those that are done."""
    task.step = min(pending.values())
    futures = [*pending, *([beside] if beside and not beside.done() else [])]
    done, _ = wait(futures, PATIENCE, FIRST_COMPLETED)
    if not done:  # nothing wrong if devices are emulated that take so long
        longest = (
            max(factor_of(task, name) for name in task.spec.tasks if name.startswith("worker"))
            * task.spec.device_ms
            / 1000
        )
        done, _ = wait(futures, longest, FIRST_COMPLETED)
        if not done:
            raise TimeoutError(
                f"no worker has finished its share of a step for {PATIENCE + longest:g} s; step {task.step} is not complete"
            )
    if beside and beside.done():
        beside.result()
    return [future for future in done if future in pending]


def by_step(
    task: Task, model: Model, answers: Iterable[Answer]
) -> Iterator[tuple[float, list[Answer]]]:
    """The mean loss and the answers of each step, as soon as all shares of it are there. The loss
    is in the trace then.

    The test accuracy, where it is due, is that of the variables as the chief then finds them on the
    ps; meanwhile the workers go on.
    """
    workload = workloads.load(task.spec)
    found: dict[int, list[Answer]] = {}
    for count, answer in enumerate(answers, 1):
        found.setdefault(answer.step, []).append(answer)
        if len(found[answer.step]) == task.spec.workers:
            whole = found.pop(answer.step)
            loss = sum(share.loss for share in whole) / len(whole)
            task.metric("loss", loss, answer.step, count * task.spec.per_worker_batch)
            evaluate(
                task,
                answer.step,
                count * task.spec.per_worker_batch,
                lambda: accuracy(model.keras, workload),
            )
            yield loss, whole


def tell_worker(task: Task, answer: Answer) -> None:
    """Write into the trace what a worker did: it pulled, computed, and pushed until its gradients
    were applied.
    """
    times = [answer.begun, answer.pulled, answer.computed, answer.pushed]
    for what, (start, end) in zip(
        ("read", "compute", "reduce"), itertools.pairwise(times), strict=True
    ):
        task.recorder.add(Phase(answer.worker, answer.step, what, start, end))


def tell_ps(
    task: Task,
    model: Model,
    step: int,
    read: Sequence[int],
    applied: Sequence[Applied],
    workers: Iterable[str],
) -> None:
    """Write into the trace what the ps did with gradients of these workers, for which these
    versions were read.
    """
    whose = " ".join(workers)
    for shard, version, a in zip(model.shards, read, applied, strict=True):
        name = f"shard {shard.task.partition(':')[2]}"
        task.recorder.add(Phase(shard.task, step, "apply", a.begun, a.ended))
        task.recorder.add(
            Update(
                shard.task,
                step,
                name,
                shard.device,
                version,
                a.written,
                a.ended,
                a.gradients,
                whose,
            )
        )
