"""The chief of a cluster with parameter servers (ps): it hands out the steps, and records what the
others did.

Only the chief runs a program of ours. It puts a step for each share of each batch into a queue, and
every worker takes the next one when it is done with the last. What the trace tells of workers and
ps is therefore measured in the graph of a step: times are stamps, versions are read from the ps and
counted up there. They come back with the step's `report`, and the chief writes them into the trace
in the name of the task that did it. Source:
tensorflow.org/tutorials/distribute/parameter_server_training.
"""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.record.clock import clock
from course_lib.record.events import Dropped, Metric, Phase, Read, Update
from course_lib.spec.jitter import draws
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import saving
from course_lib.strategies.precision import LossScale
from course_lib.strategies.steps import due, outcome
from course_lib.strategies.tensorflow import models
from course_lib.strategies.tensorflow.checkpoints import save_shards
from course_lib.strategies.tensorflow.memory import count_cluster
from course_lib.strategies.tensorflow.server import PATIENCE, POLL, Model, Speed, over
from course_lib.strategies.tensorflow.steps import WallClock, bytes_on, matmul_flops
from course_lib.workloads import order

PHASES = ("read", "compute", "reduce")
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""What comes of a share if its worker is lost, or the coordinator cancels it."""
TORN = "Unable to parse request"  # gRPC, of a message that the loss of a worker has cut short


class ShareDone(NamedTuple):
    """What came of a `share` of a step: who computed it, its loss as a sum and what that is to be
    divided by, its times, the version `read` of each shard, and the updates `applied`: a row
    [version written, gradients, begun, ended] for each shard. In float16, `scaled` is [loss scale
    asked for, scale used, norm, share of zeros].
    """

    step: int
    share: int
    worker: str
    loss: float
    divisor: float
    times: list[float]
    read: list[float]
    applied: list[list[float]]
    scaled: list[float]


def train(task: Task, model: Model, program: Any, per_update: int = 1) -> dict[str, Any]:
    """Have all steps done and record them; what the chief returns (see `outcome`).

    `program` is that of a step; a ps makes an update of `per_update` gradients.

    The metric, where it is due, is that of the parameters as the chief finds them on the ps when a
    step is complete; meanwhile the workers go on. Where a checkpoint is due, no further step is
    handed out before all are done and it is written: so it holds all gradients of the steps before
    it, and none of a later one.
    """
    spec, workload = task.spec, workloads.load(task.spec)
    steps: defaultdict[int, list[ShareDone]] = defaultdict(list)
    losses = {model.steps_done - 1: model.loss}
    count_cluster(task, model, per_update)

    def shares_done() -> Iterator[ShareDone]:
        for stretch in between_checkpoints(spec, model.steps_done):
            yield from hand_out(task, model, program, stretch)
            if stretch and saving.due(spec, stretch.stop):
                save_shards(task, model, stretch.stop, losses[stretch.stop - 1])

    for count, share in enumerate(shares_done(), model.steps_done * spec.workers + 1):
        step, shares = share.step, steps[share.step]
        samples = count * spec.per_worker_batch + model.ahead
        shares.append(share)
        _record_share(task, workload, share, model.ahead)
        if model.scale.on:
            _adjust(task, model.scale, share, samples)
            model.scaling.assign(model.scale.value)
        if len(shares) % per_update == 0:
            _record_updates(task, model, shares[-per_update:])
        if len(shares) == spec.workers:
            # `fsum` rounds once, so it does not depend on who was done first
            divisor = math.fsum(each.divisor for each in shares)
            losses[step] = math.fsum(each.loss for each in shares) / (divisor or 1)
            task.metric("loss", losses[step], step, samples)
            if due(spec, step + 1):
                accuracy = workload.measure(model.outputs())
                task.metric(workload.metric_name, accuracy, step, samples)
            del steps[step]
            task.at_step_end()
    if model.loops:  # they end with the last step
        model.loops.result(PATIENCE)
    found = _result(task, model, losses[spec.steps - 1])
    over(task).touch()
    return found


def _result(task: Task, model: Model, loss: float) -> dict[str, Any]:
    outputs, workload = model.outputs(), workloads.load(task.spec)
    if task.spec.keep_model:  # before the metric, which may fail
        task.files.leave_weights(task.name, models.named_weights_of(model.keras))
    held = bytes_on([shard.values for shard in model.shards] + model.others)
    state = bytes_on(variable for shard in model.shards for variable in shard.state)
    found = outcome(task, outputs, models.weights_of(model.keras), loss)
    found |= {"variables_on": held, "optimizer_state_on": state}
    if workload.sample:
        found["sample"] = workload.sample(outputs)
    return found | {"matmul_flops": matmul_flops()}


def _record_share(task: Task, workload: workloads.Workload, share: ShareDone, ahead: int) -> None:
    """Record what a worker did: it pulled, computed, and pushed until its gradients were applied;
    and which examples it read, if the run asks for it.
    """
    spec, who, step = task.spec, share.worker, share.step
    for what, span in zip(PHASES, itertools.pairwise(share.times), strict=True):
        task.recorder.add(Phase(who, step, what, *span))
    if spec.record_examples:
        own = spec.sampler == "per_worker"
        k = int(who.removeprefix("worker:")) if own else share.share
        for epoch, read in order.pieces(spec, workload.train, step, k, spec.workers, ahead=ahead):
            task.recorder.add(Read(who, step, epoch, read.tolist(), share.times[1]))


def _adjust(task: Task, scale: LossScale, share: ShareDone, samples: int) -> None:
    """Record what a worker saw of its gradients in float16, and adjust the loss scale to it."""
    at, used, norm, zeros = share.scaled
    while at >= used:
        found = scale.seen(norm if at == used else math.inf, zeros, at)
        if found["overflow"]:
            task.recorder.add(Dropped(share.worker, share.step, "overflow", share.times[2]))
        for name, value in found.items():
            where = share.step, samples, share.times[2]
            task.recorder.add(Metric(share.worker, name, float(value), *where))
        at /= 2
    if not math.isfinite(norm):
        scale.check(share.step)


# --- the shares of all steps, as the workers take them ---


def work_of(
    spec: RunSpec, workload: workloads.Workload, step: int, share: int, ahead: int = 0
) -> np.ndarray:
    """What the worker that takes a share is told, as one float64 vector, which is one message:
    step, share, what is drawn for its delays, and the indices of its examples.

    Who takes it is not known yet. So the draws of all workers are there, and, if each worker has
    its own part of the data, the examples of all.
    """
    drawn = [draws(spec.seed, f"worker:{k}", step) for k in range(spec.workers)]
    shares = range(spec.workers) if spec.sampler == "per_worker" else [share]
    cut = (order.pieces(spec, workload.train, step, k, spec.workers, ahead=ahead) for k in shares)
    indices = (each for pieces in cut for _, each in pieces)
    return np.concatenate([[step, share], np.ravel(drawn), *indices])


def taken(spec: RunSpec, work: Any, worker: Any) -> tuple[Any, Any, Any, Any]:
    """In the graph: step, share, draws and indices of a `work_of` that this worker has taken. If
    each worker has its own part of the data, its share is that with its own number.
    """
    drawn, indices = tf.split(work[2:], [3 * spec.workers, -1])
    shares = tf.reshape(tf.cast(indices, tf.int64), [-1, spec.per_worker_batch])
    number, share = tf.unstack(tf.cast(work[:2], tf.int64))
    own = spec.sampler == "per_worker"
    mine = (tf.cast(worker, tf.int64), shares[worker]) if own else (share, shares[0])
    return number, mine[0], tf.reshape(drawn, [-1, 3])[worker], mine[1]


def report(scalars: Sequence[Any], updates: Sequence[Any]) -> Any:
    """In the graph: what a step tells the chief, as one float64 vector, which is one message.

    `scalars`: the worker; the sum and the count whose quotient is the mean loss; when the step
    began, had pulled, had computed and had pushed; and the version read of each shard. `updates`:
    of each shard [version written, gradients, begun, ended]; and, in float16, what became of the
    loss scale.
    """
    return tf.concat([tf.stack([tf.cast(each, tf.float64) for each in scalars]), *updates], 0)


def _parsed(step: int, share: int, values: Any, shards: int, offset: float) -> ShareDone:
    """Take a `report` apart; `offset` leads from its wall-clock times to the trace's clock."""
    cuts = [7, 7 + shards, 7 + 5 * shards]
    (worker, loss, count, *times), read, applied, scaled = np.split(values, cuts)
    applied = applied.reshape(shards, 4) + np.array([0, 0, offset, offset])
    who = f"worker:{worker:.0f}"
    lists = (each.tolist() for each in (read, applied, scaled))
    moments = [float(time + offset) for time in times]
    return ShareDone(step, share, who, float(loss), float(count), moments, *lists)


def between_checkpoints(spec: RunSpec, first: int) -> list[range]:
    """The steps from `first` on, divided where a checkpoint is due."""
    ends = [step for step in range(first + 1, spec.steps) if saving.due(spec, step)]
    return [range(*pair) for pair in itertools.pairwise([first, *ends, spec.steps])]


def hand_out(task: Task, model: Model, program: Any, steps: range) -> Iterator[ShareDone]:
    """Have the program of each of these steps run once for every share of its batch, by whichever
    worker is free.

    The coordinator repeats a share whose worker was lost in the middle of it. If the worker is lost
    later, before its report has arrived, the coordinator gives up and cancels all shares. These are
    handed out again here.

    Yields what came of them, as it comes. Raises TimeoutError if nothing comes for `PATIENCE`, and
    any error of a step or of the model's loops.
    """
    spec, workload, wall, heard = task.spec, workloads.load(task.spec), WallClock(), clock()
    shares: Iterator[tuple[int, int]] = itertools.product(steps, range(spec.workers))
    ahead = 2 * spec.workers  # for each worker one under way, and one to go on with
    pool = ThreadPoolExecutor(ahead, "lockstep-fetch")
    # one thread, so that steps are put in line in their order
    line = ThreadPoolExecutor(1, "lockstep-line")
    pending: dict[Future[Any], tuple[int, int]] = {}
    try:
        while True:
            for _, (n, share) in zip(range(len(pending), ahead), shares, strict=False):
                work = tf.constant(work_of(spec, workload, n, share, model.ahead), tf.float64)
                value = line.submit(model.coordinator.schedule, program, args=(work,))
                pending[pool.submit(_fetch, value)] = n, share
            if not pending:
                return
            for future in _finished(task, model, pending):
                n, share = pending.pop(future)
                try:
                    values, heard = future.result(), clock()
                except tf.errors.OpError as error:
                    lost = isinstance(error, LOST) or TORN in error.message
                    if not lost or clock() - heard > PATIENCE:
                        raise
                    shares = itertools.chain([(n, share)], shares)
                    time.sleep(POLL)
                    continue
                yield _parsed(n, share, values, len(model.shards), wall.offset())
    finally:
        for threads in (line, pool):
            threads.shutdown(wait=False, cancel_futures=True)


def _fetch(value: Future[Any]) -> Any:
    return value.result().fetch()


def _finished(
    task: Task, model: Model, pending: dict[Future[Any], tuple[int, int]]
) -> list[Future[Any]]:
    """Wait for any of the pending shares; those that are done."""
    task.begin(min(pending.values())[0])
    task.enter("wait")
    loops = model.loops
    futures = [*pending, *([loops] if loops and not loops.done() else [])]
    done, _ = wait(futures, PATIENCE, FIRST_COMPLETED)
    if not done:  # nothing wrong if devices are emulated that take so long
        workers = [name for name in task.spec.tasks if name.startswith("worker")]
        longest = max(Speed.of(task, name).most(task.spec.device_ms / 1000) for name in workers)
        done, _ = wait(futures, longest, FIRST_COMPLETED)
        if not done:
            late = f"no worker has finished its share of a step for {PATIENCE + longest:g} s"
            raise TimeoutError(f"{late}; step {task.step} is not complete")
    if loops and loops.done():
        loops.result()
    return [future for future in done if future in pending]


def _record_updates(task: Task, model: Model, shares: Sequence[ShareDone]) -> None:
    """Record what the ps did with the gradients of these shares: one update of each shard."""
    step, whose = shares[0].step, " ".join(share.worker for share in shares)
    for k, shard in enumerate(model.shards):
        written, gradients, begun, ended = shares[0].applied[k]
        # not after the update: another worker may have pushed the same gradients, and been lost
        read = int(min(written - 1, *(share.read[k] for share in shares)))
        task.recorder.add(Phase(shard.task, step, "apply", begun, ended))
        made = (shard.device, read, int(written), ended, int(gradients), whose)
        task.recorder.add(Update(shard.task, step, f"shard {k}", *made))
