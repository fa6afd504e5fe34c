"""The chief of a cluster with parameter servers (ps): it hands out the steps, and records what the
others did.

Only the chief runs a program of ours. It puts a step for each share of each batch into a queue, and
every worker takes the next one when it is done with the last. What the trace tells of workers and
ps is therefore measured in the graph of a step: times are stamps, versions are read from the ps and
counted up there. They come back with the step's `report`, and the chief writes them into the trace
in the name of the task that did it. Source:
tensorflow.org/tutorials/distribute/parameter_server_training.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.record.events import Phase, Update
from course_lib.strategies.steps import due
from course_lib.strategies.tensorflow.server import PATIENCE, Model, factor_of
from course_lib.strategies.tensorflow.steps import WallClock
from course_lib.workloads.tensorflow import accuracy


class Applied(NamedTuple):
    """An update on a ps: the version that it made, of how many gradients, and from when to when the
    ps was at it.
    """

    written: int
    gradients: int
    begun: float
    ended: float


class ShareDone(NamedTuple):
    """What came of a share of a step: who computed it, its loss and times; for each shard the
    version `read`, and what was `applied`.
    """

    step: int
    worker: str
    loss: float
    times: list[float]
    read: list[int]
    applied: list[Applied]


def report(
    worker: Any, loss: Any, times: Sequence[Any], versions: Sequence[Any], updates: Sequence[Any]
) -> Any:
    """In the graph: what a step tells the chief, as one float64 vector, which is one message.

    `times`: when it began, had pulled, had computed and had pushed. `updates`: of each shard
    [version written, gradients, begun, ended].
    """
    scalars = [worker, loss, *times, *versions]
    return tf.concat([tf.stack([tf.cast(each, tf.float64) for each in scalars]), *updates], 0)


def _parsed(step: int, values: list[float], shards: int, offset: float) -> ShareDone:
    """Take a `report` apart; `offset` leads from its wall-clock times to the trace's clock."""
    worker, loss, times = values[0], values[1], [time + offset for time in values[2:6]]
    read, updates = [int(version) for version in values[6 : 6 + shards]], values[6 + shards :]
    applied = [
        Applied(int(a), int(b), c + offset, d + offset)
        for a, b, c, d in zip(*(updates[i::4] for i in range(4)), strict=True)
    ]
    return ShareDone(step, f"worker:{worker:.0f}", loss, times, read, applied)


def hand_out(
    task: Task, coordinator: Any, model: Model, program: Any, beside: Future[Any] | None = None
) -> Iterator[ShareDone]:
    """Have the program of a step run once for every share of its batch, by whichever worker is
    free.

    Yields what came of them, as it comes, with what the workers did in the trace. Raises
    TimeoutError if none comes for `PATIENCE`, and what goes wrong in a step or in what goes on
    `beside` them.
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
                value = line.submit(coordinator.schedule, program, args=(work,))
                pending[pool.submit(_fetch, value)] = n
            if not pending:
                return
            for future in _finished(task, pending, beside):
                values = future.result().tolist()
                done = _parsed(pending.pop(future), values, len(model.shards), wall.offset())
                _record_worker(task, done)
                yield done
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
        workers = [name for name in task.spec.tasks if name.startswith("worker")]
        slowest = max(factor_of(task, name) for name in workers)
        longest = slowest * task.spec.device_ms / 1000
        done, _ = wait(futures, longest, FIRST_COMPLETED)
        if not done:
            raise TimeoutError(
                f"no worker has finished its share of a step for {PATIENCE + longest:g} s; "
                f"step {task.step} is not complete"
            )
    if beside and beside.done():
        beside.result()
    return [future for future in done if future in pending]


def _record_worker(task: Task, done: ShareDone) -> None:
    """A worker pulled, computed, and pushed until its gradients were applied."""
    phases = ("read", "compute", "reduce")
    for what, (start, end) in zip(phases, itertools.pairwise(done.times), strict=True):
        task.recorder.add(Phase(done.worker, done.step, what, start, end))


def record_updates(task: Task, model: Model, shares: Sequence[ShareDone]) -> None:
    """Record what the ps did with the gradients of these shares: one update of each shard."""
    whose = " ".join(share.worker for share in shares)
    for k, (shard, a) in enumerate(zip(model.shards, shares[0].applied, strict=True)):
        step, read = shares[0].step, min(share.read[k] for share in shares)
        name = f"shard {shard.task.partition(':')[2]}"
        task.recorder.add(Phase(shard.task, step, "apply", a.begun, a.ended))
        made = (shard.device, read, a.written, a.ended, a.gradients, whose)
        task.recorder.add(Update(shard.task, step, name, *made))


class Ledger:
    """Which shares of which steps are done; the mean `losses` of the complete steps."""

    def __init__(self, task: Task, model: Model) -> None:
        self.task, self.model = task, model
        self.losses: dict[int, float] = {}
        self._count = 0
        self._open: defaultdict[int, list[ShareDone]] = defaultdict(list)

    def add(self, share: ShareDone) -> list[ShareDone]:
        """All shares of a step, if this one completes it; else none.

        The step's loss is in the trace then. The test accuracy, where it is due, is that of the
        variables as the chief then finds them on the ps; meanwhile the workers go on.
        """
        spec, step = self.task.spec, share.step
        self._count += 1
        self._open[step].append(share)
        if len(self._open[step]) < spec.workers:
            return []
        shares, samples = self._open.pop(step), self._count * spec.per_worker_batch
        self.losses[step] = sum(each.loss for each in shares) / len(shares)
        self.task.metric("loss", self.losses[step], step, samples)
        if due(spec, step + 1):
            right = accuracy(self.model.keras, workloads.load(spec))
            self.task.metric("accuracy", right, step, samples)
        return shares
