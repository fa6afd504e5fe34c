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
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.record.clock import clock
from course_lib.record.events import Dropped, Metric, Phase, Read, Update
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import saving
from course_lib.strategies.memory import record
from course_lib.strategies.tensorflow import checkpoints, models
from course_lib.strategies.tensorflow.graphs import bytes_of
from course_lib.strategies.tensorflow.replicas import KerasStep
from course_lib.strategies.tensorflow.server import (
    PATIENCE,
    POLL,
    await_servers,
    longest_sleep,
    over,
)
from course_lib.strategies.tensorflow.steps import WallClock, bytes_on, pack, unpack, use
from course_lib.workloads import order

PHASES = ("read", "compute", "reduce")
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""What comes of a share if its worker is lost, or the coordinator cancels it."""
TORN = "Unable to parse request"  # gRPC, of a message that the loss of a worker has cut short


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


class ServersStep(KerasStep):
    """The chief's steps of a Keras model whose parameters lie on the ps, in `shards`.

    Laid end to end, its variables are one long vector, which is cut into as many pieces of equal
    length as there are ps. So every ps holds, sends and receives the same number of bytes, however
    unequal the layers are. (In the strategy's scope TensorFlow would put whole variables, or rows
    of them, on the ps in turn.) What is not trained, such as the moving means of batch
    normalisation and frozen weights, lies whole on the first ps: the `others`, in the order of
    `kept`. So does `scaling`, the value of the loss `scale`, in float16.

    `coordinator` hands out steps; `loops` is what the ps do beside them. `of_worker` are the bytes
    that a worker needs in a step, by kind. The model itself is the chief's, which measures with it.
    """

    def __init__(self, task: Task, coordinator: Any) -> None:
        super().__init__(task)
        self.coordinator, self.writers = coordinator, (task.name,)
        self.loops: Future[Any] | None = None
        self.of_worker = dict[str, int]()
        self.shards = list[Shard]()
        parameters = np.concatenate([each.reshape(-1) for each in self.weights()])
        for k, piece in enumerate(np.array_split(parameters, self.spec.ps)):
            with tf.device(f"/job:ps/replica:0/task:{k}/device:CPU:0"):
                values, version = tf.Variable(piece), tf.Variable(0, dtype=tf.int64)
                state = self.optimizer.state_of(values)
            self.shards.append(Shard(f"ps:{k}", values.device, values, version, state))
        every = self.model.non_trainable_variables
        self.kept = [each for each in every if not models.is_seed(each)]
        with tf.device(self.shards[0].device):
            self.others = [tf.Variable(each.numpy()) for each in self.kept]
            self.scaling: Any = tf.Variable(self.scale.value) if self.scale.on else None
        saving.restore(self)

    def cut(self, tensors: Sequence[Any]) -> Any:
        """The piece of each shard, of tensors that are shaped like the model's variables."""
        return tf.split(pack(tensors), [shard.values.shape[0] for shard in self.shards])

    def together(self, pieces: Sequence[Any]) -> list[Any]:
        """Tensors that are shaped like the model's variables, from the piece of each shard."""
        return unpack(tf.concat(pieces, 0), self.variables)

    def fetch(self) -> None:
        """Give the chief's model the values that the ps have now."""
        values = self.together([shard.values.read_value() for shard in self.shards])
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)
        for variable, other in zip(self.kept, self.others, strict=True):
            variable.assign(other.read_value())

    def evaluate(self, samples: int) -> None:
        """Record the metric of the parameters as they are now; meanwhile the workers go on."""
        self.fetch()
        super().evaluate(samples)

    def result(self) -> dict[str, Any]:
        self.fetch()
        return super().result()

    def save(self) -> None:
        """Leave no checkpoint when a step is over: shares of others may be under way."""

    def save_between(self) -> None:
        """Leave a checkpoint, if one is due: all steps so far are over, and no other has begun."""
        super().save()

    # --- what the ps hold ---

    def variables_on(self) -> dict[str, int]:
        return bytes_on([*(shard.values for shard in self.shards), *self.others])

    def state_on(self) -> dict[str, int]:
        return bytes_on(each for shard in self.shards for each in shard.state)

    def held(self) -> dict[str, int]:
        """The chief's own: the model that it measures with."""
        return {"parameters": bytes_of(self.variables), "buffers": bytes_of(self.others)}

    def record_memory(self, gradients: int) -> None:
        """Record what workers and ps hold. A worker has the values that it has pulled, a ps so many
        gradients when it makes an update.
        """
        for k in range(self.spec.workers):
            record(self.task, f"worker:{k}", 0, 0, self.held() | self.of_worker)
        for k, shard in enumerate(self.shards):
            piece = bytes_of([shard.values])
            held = {"parameters": piece, "gradients": gradients * piece}
            held |= {"optimizer_state": bytes_of(shard.state)}
            held |= {"buffers": bytes_of(self.others)} if k == 0 else {}
            record(self.task, shard.task, 0, 0, held)

    def _slots(self) -> Iterator[tuple[Any, ...]]:
        """The pieces on all ps: of the variables, and of each part of the optimizer's state."""
        return zip(*([shard.values, *shard.state] for shard in self.shards), strict=True)

    def _others(self) -> Iterator[tuple[str, Any]]:
        """The variables that are not trained, by name: one replica's."""
        every = enumerate(self.model.non_trainable_variables)
        names = (f"other {i} of 0" for i, each in every if not models.is_seed(each))
        return zip(names, self.others, strict=True)

    def save_state(self, part: Path) -> None:
        self.updates = int(self.shards[0].version)
        slots = (self.together([piece.read_value() for piece in slot]) for slot in self._slots())
        values = checkpoints.named(slots) | dict(self._others())
        copies = {name: tf.Variable(value) for name, value in values.items()}
        checkpoints.write(part, checkpoints.ALIKE, copies)

    def load_state(self, part: Path) -> None:
        kept = checkpoints.read(part.parent)
        for k, slot in enumerate(self._slots()):
            for i, whole in enumerate(self.variables):
                whole.assign(kept[f"variable {i} slot {k}"])  # which compares their shapes
            for variable, piece in zip(slot, self.cut(self.variables), strict=True):
                variable.assign(piece)
        for name, variable in self._others():
            variable.assign(kept[name])
        for shard in self.shards:
            shard.version.assign(self.updates)
        if self.scaling is not None:
            self.scaling.assign(self.scale.value)


def connect(task: Task) -> ServersStep:
    """Join the cluster as its chief: the steps of the run, a shard of its model on each ps."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    use("cpu")
    await_servers(task)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    _copy_once_from_each(task.spec.workers)
    return ServersStep(task, coordinator)


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


# --- all steps ---


def train(chief: ServersStep, program: Callable[..., Any], per_update: int = 1) -> dict[str, Any]:
    """Have all steps done and record them; what the chief returns (see `outcome`).

    `program` is that of a step; a ps makes an update of `per_update` gradients. Steps may be over
    out of turn. Where a checkpoint is due, no further step is handed out before all are over.
    """
    spec, shares_of = chief.spec, defaultdict[int, list[ShareDone]](list)
    losses = dict[int, float]()
    chief.record_memory(per_update)
    for stretch in between_checkpoints(spec, chief.number + 1):
        for share in hand_out(chief, program, stretch):
            step, shares = share.step, shares_of[share.step]
            shares.append(share)
            _record_share(chief, share)
            if len(shares) % per_update == 0:
                _record_update(chief, shares[-per_update:])
            if len(shares) == spec.workers:
                # `fsum` rounds once, so it does not depend on who was done first
                divisor = math.fsum(each.divisor for each in shares) or 1
                losses[step] = math.fsum(each.loss for each in shares) / divisor
                chief.number = step
                chief.done(losses[step])
                del shares_of[step]
        if stretch:
            chief.number, chief.loss = stretch[-1], losses[stretch[-1]]
            chief.save_between()
    if chief.loops:  # they end with the last step
        chief.loops.result(PATIENCE)
    result = chief.result()
    over(chief.task).touch()
    return result


def between_checkpoints(spec: RunSpec, first: int) -> list[range]:
    """The steps from `first` on, divided where a checkpoint is due."""
    ends = [step for step in range(first + 1, spec.steps) if saving.due(spec, step)]
    return [range(*pair) for pair in itertools.pairwise([first, *ends, spec.steps])]


def hand_out(chief: ServersStep, program: Any, steps: range) -> Iterator["ShareDone"]:
    """Have the program of each of these steps run once for every share of its batch, by whichever
    worker is free.

    The coordinator repeats a share whose worker was lost in the middle of it. If the worker is lost
    later, before its report has arrived, the coordinator gives up and cancels all shares. These are
    handed out again here.

    Yields what came of them, as it comes. Raises TimeoutError if nothing comes for `PATIENCE`, and
    any error of a step or of the chief's loops.
    """
    workers, wall, heard = chief.spec.workers, WallClock(), clock()
    shares: Iterator[tuple[int, int]] = itertools.product(steps, range(workers))
    ahead = 2 * workers  # for each worker one under way, and one to go on with
    pool = ThreadPoolExecutor(ahead, "lockstep-fetch")
    # one thread, so that steps are put in line in their order
    line = ThreadPoolExecutor(1, "lockstep-line")
    pending: dict[Future[Any], tuple[int, int]] = {}
    try:
        while True:
            for _, work in zip(range(len(pending), ahead), shares, strict=False):
                share = tf.constant([*work, chief.ahead], tf.int64)
                value = line.submit(chief.coordinator.schedule, program, args=(share,))
                pending[pool.submit(_fetch, value)] = work
            if not pending:
                return
            for future in _finished(chief, pending):
                work = pending.pop(future)
                try:
                    values, heard = future.result(), clock()
                except tf.errors.OpError as error:
                    lost = isinstance(error, LOST) or TORN in error.message
                    if not lost or clock() - heard > PATIENCE:
                        raise
                    shares = itertools.chain([work], shares)
                    time.sleep(POLL)
                    continue
                yield ShareDone.of(values, len(chief.shards), wall.offset())
    finally:
        for threads in (line, pool):
            threads.shutdown(wait=False, cancel_futures=True)


def _fetch(value: Future[Any]) -> Any:
    return value.result().fetch()


def _finished(chief: ServersStep, pending: dict[Future[Any], tuple[int, int]]) -> list[Future[Any]]:
    """Wait for any of the pending shares; those that are done."""
    task, loops = chief.task, chief.loops
    task.begin(min(pending.values())[0])
    task.enter("wait")
    futures = [*pending, *([loops] if loops and not loops.done() else [])]
    done, _ = wait(futures, PATIENCE, FIRST_COMPLETED)
    if not done:  # nothing wrong if devices are emulated that take so long
        longest = longest_sleep(task)
        done, _ = wait(futures, longest, FIRST_COMPLETED)
        if not done:
            late = f"no worker has finished its share of a step for {PATIENCE + longest:g} s"
            raise TimeoutError(f"{late}; step {task.step} is not complete")
    if loops and loops.done():
        loops.result()
    return [future for future in done if future in pending]


# --- what a step reports, and what is recorded of it ---


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

    @classmethod
    def of(cls, report: np.ndarray, shards: int, offset: float) -> "ShareDone":
        """Take a `report` apart; `offset` leads from its wall-clock times to the trace's clock."""
        step, share, worker, loss, divisor = report[:5].tolist()
        times, read, applied, scaled = np.split(report[5:], np.cumsum([4, shards, 4 * shards]))
        applied = applied.reshape(shards, 4) + np.array([0, 0, offset, offset])
        lists = (each.tolist() for each in (times + offset, read, applied, scaled))
        return cls(int(step), int(share), f"worker:{worker:.0f}", loss, divisor, *lists)


def report(scalars: Sequence[Any], updates: Sequence[Any]) -> Any:
    """In the graph: what a step tells the chief, as one float64 vector, which is one message.

    `scalars`: step, share and worker; the sum and the count whose quotient is the mean loss; when
    the step began, had pulled, had computed and had pushed; and the version read of each shard.
    `updates`: of each shard [version written, gradients, begun, ended]; and, in float16, what
    became of the loss scale.
    """
    return tf.concat([tf.stack([tf.cast(each, tf.float64) for each in scalars]), *updates], 0)


def _record_share(chief: ServersStep, share: ShareDone) -> None:
    """Record what a worker did: it pulled, computed, and pushed until its gradients were applied;
    which examples it read, if the run asks for it; and, in float16, what it saw of its gradients.
    """
    spec, task, who, step = chief.spec, chief.task, share.worker, share.step
    for what, span in zip(PHASES, itertools.pairwise(share.times), strict=True):
        task.recorder.add(Phase(who, step, what, *span))
    if spec.record_examples:
        train, ahead = chief.workload.train, chief.ahead
        for epoch, of in order.pieces(spec, train, step, share.share, spec.workers, ahead=ahead):
            task.recorder.add(Read(who, step, epoch, of.tolist(), share.times[1]))
    if chief.scale.on:
        _adjust(chief, share)
        chief.scaling.assign(chief.scale.value)


def _adjust(chief: ServersStep, share: ShareDone) -> None:
    """Record what a worker saw of its gradients in float16, and adjust the loss scale to it."""
    scale, who, when = chief.scale, share.worker, share.times[2]
    samples = (share.step + 1) * chief.spec.batch + chief.ahead
    at, used, norm, zeros = share.scaled
    while at >= used:
        metrics = scale.seen(norm if at == used else math.inf, zeros, at)
        if metrics["overflow"]:
            chief.task.recorder.add(Dropped(who, share.step, "overflow", when))
        for name, value in metrics.items():
            chief.task.recorder.add(Metric(who, name, float(value), share.step, samples, when))
        at /= 2
    if not math.isfinite(norm):
        scale.check(share.step)


def _record_update(chief: ServersStep, shares: Sequence[ShareDone]) -> None:
    """Record what the ps did with the gradients of these shares: one update of each shard."""
    step, whose = shares[0].step, " ".join(share.worker for share in shares)
    for k, shard in enumerate(chief.shards):
        written, gradients, begun, ended = shares[0].applied[k]
        # not after the update: another worker may have pushed the same gradients, and been lost
        read = int(min(written - 1, *(share.read[k] for share in shares)))
        chief.task.recorder.add(Phase(shard.task, step, "apply", begun, ended))
        made = (shard.device, read, int(written), ended, int(gradients), whose)
        chief.task.recorder.add(Update(shard.task, step, f"shard {k}", *made))
