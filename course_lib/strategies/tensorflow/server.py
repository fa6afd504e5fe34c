"""Parameter servers (ps) in TensorFlow: the processes that serve, the steps of a model whose
parameters lie on them in shards, and the chief, which hands out the steps and records what the
others did.

A worker or a ps runs TensorFlow's server: it carries out whatever part of a graph is placed on it.
Only the chief runs a program. It puts a step for each share of each batch into a queue, and every
worker takes the next one when it is done with the last. An operation in a graph of the chief's may
call Python: a function of the process that runs it, which is known by a name. Every worker has two
of these, one that fetches training examples and one that lets the emulated device time pass.

The trace of workers and ps is measured in the graph of a step: times are stamps, versions are read
from the ps and counted up there. They come back with the step's `report`, and the chief writes them
into the trace in the name of the task that did it. Source:
tensorflow.org/tutorials/distribute/parameter_server_training.
"""

import itertools
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.record.events import Phase, Read, Update, clock
from course_lib.record.rundir import folder_name
from course_lib.strategies import saving
from course_lib.strategies.steps import record
from course_lib.strategies.tensorflow import models, steps
from course_lib.strategies.tensorflow.models import bytes_of
from course_lib.strategies.tensorflow.steps import KerasStep, bytes_on, pack, unpack
from course_lib.workloads import order
from course_lib.workloads.examples import leaves, mapped

PATIENCE = 60.0  # seconds for which the chief waits for those that say nothing
POLL = 0.05  # seconds between two looks at the files of others
EXAMPLES, DEVICE_TIME = "lockstep: examples", "lockstep: device time"
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""What comes of a share if its worker is lost, or the coordinator cancels it."""
TORN = "Unable to parse request"  # gRPC, of a message that the loss of a worker has cut short


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
    failures = list[Exception]()
    functions = {EXAMPLES: partial(fetch, task, failures), DEVICE_TIME: partial(sleep, task)}
    script_ops._py_funcs._funcs.update(functions)  # which holds no function by itself
    server = tf.distribute.Server(cluster, job_name=task.job, task_index=task.index, config=options)
    serving(task, task.name).touch()
    while not over(task).exists():
        time.sleep(POLL)
        if failures:
            raise failures[0]
    del server  # it serves for as long as it is held


def over(task: Task) -> Path:
    """The file that says that the chief is done."""
    return task.files.meetings / "over"


def serving(task: Task, name: str) -> Path:
    """The file that says that a task's server is up."""
    task.files.meetings.mkdir(parents=True, exist_ok=True)
    return task.files.meetings / f"serving-{folder_name(name)}"


def await_servers(task: Task) -> None:
    """Wait until the servers of all other tasks are up."""
    deadline = clock() + PATIENCE
    servers = [name for name in task.spec.tasks if name != task.name]
    while missing := [name for name in servers if not serving(task, name).exists()]:
        if clock() > deadline:
            raise TimeoutError(f"no server after {PATIENCE:g} s on {', '.join(missing)}")
        time.sleep(POLL / 10)


# --- what a worker does in Python, and a graph of the chief's that asks for it ---


def on_worker(name: str, inputs: Sequence[Any], kinds: Sequence[Any]) -> Any:
    """In the graph: the results, with these types, of the worker's function of this name."""
    with tf.device("/device:CPU:0"):
        return tf.raw_ops.PyFunc(input=inputs, token=name, Tout=kinds)


def fetch(task: Task, failures: list[Exception], work: np.ndarray) -> list[np.ndarray]:
    """Fetch the training examples of a share of a step's batch: the arrays of inputs and targets,
    one after the other. What a dataset raises is left in `failures`: the worker fails with it, and
    the chief, for which TensorFlow makes another error of it, does so later.
    """
    spec, train = task.spec, workloads.load(task.spec).train
    step, share, ahead = map(int, work)
    drawn = np.random.SeedSequence([spec.seed, step, share]).generate_state(2)
    random.seed(int(drawn[0])), np.random.seed(drawn[1])  # a dataset may draw
    pieces = order.pieces(spec, train, step, share, spec.workers, ahead=ahead)
    try:
        examples = train.take(np.concatenate([indices for _, indices in pieces]))
    except Exception as error:
        failures.append(error)
        time.sleep(100 * POLL)
        raise
    return list(leaves(examples).values())


def examples(spec: Any, work: Any) -> Any:
    """In the graph: inputs and targets of the share that `work` is, [step, share, ahead]."""
    like = workloads.load(spec).train.take([0])
    kinds = [each.dtype for each in leaves(like).values()]
    arrays = iter(on_worker(EXAMPLES, [work], kinds))  # in the order of the leaves
    count = spec.per_worker_batch
    return mapped(lambda one: tf.ensure_shape(next(arrays), (count, *one.shape[1:])), like)


def sleep(task: Task, step: np.ndarray, busy: np.ndarray) -> float:
    """Sleep for the emulated device time of a step, longer if the task is slowed or has jitter:
    `Task.pace` for a step that was `busy` for some seconds. Returns the time.
    """
    times, late = task.jitter.of_step(task.spec.seed, task.name, int(step))
    device = task.slow_factor * times * task.spec.device_ms / 1000
    time.sleep(device + (task.slow_factor - 1) * float(busy) + late)
    return time.time()


def device_time(step: Any, since: Any, until: Any) -> Any:
    """In the graph: let the device time pass of a step that computed from `since` to `until`."""
    (later,) = on_worker(DEVICE_TIME, [step, until - since], [tf.float64])
    return tf.ensure_shape(later, [])


# --- the model, in shards ---


class Shard(NamedTuple):
    """The part of one ps: a piece of the parameters, its `values`, the optimizer's `state` for
    them, and a `version` that counts their updates.
    """

    task: str
    values: Any
    version: Any
    state: list[Any]


class ServersStep(KerasStep):
    """The chief's steps of a Keras model whose parameters lie on the ps, in `shards`.

    Laid end to end, its variables are one long vector, which is cut into as many pieces of equal
    length as there are ps. So every ps holds, sends and receives the same number of bytes, however
    unequal the layers are. (In the strategy's scope TensorFlow would put whole variables, or rows
    of them, on the ps in turn.) What is not trained, such as the moving means of batch
    normalisation and frozen weights, lies whole on the first ps: the `others`, by their number
    among the model's variables that are not trained; `kept` are the chief's own.

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
            self.shards.append(Shard(f"ps:{k}", values, version, state))
        every = enumerate(self.model.non_trainable_variables)
        self.kept = {i: each for i, each in every if not models.is_seed(each)}
        with tf.device(self.shards[0].values.device):
            self.others = {i: tf.Variable(each.numpy()) for i, each in self.kept.items()}
        self.restore()

    def cut(self, tensors: Sequence[Any]) -> Any:
        """The piece of each shard, of tensors that are shaped like the model's variables."""
        return tf.split(pack(tensors), [shard.values.shape[0] for shard in self.shards])

    def together(self, pieces: Sequence[Any]) -> list[Any]:
        """Tensors that are shaped like the model's variables, from the piece of each shard."""
        return unpack(tf.concat(pieces, 0), self.variables)

    def fetch(self) -> None:
        """Give the chief's model the values that the ps have now."""
        values = self.together([shard.values.read_value() for shard in self.shards])
        theirs = [*values, *(other.read_value() for other in self.others.values())]
        for variable, value in zip([*self.variables, *self.kept.values()], theirs, strict=True):
            variable.assign(value)

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
        return bytes_on([*(shard.values for shard in self.shards), *self.others.values()])

    def state_on(self) -> dict[str, int]:
        return bytes_on(each for shard in self.shards for each in shard.state)

    def memory(self) -> dict[str, int]:
        """The chief's own: the model that it measures with."""
        return {"parameters": bytes_of(self.variables), "buffers": bytes_of(self.others.values())}

    def record_memory(self, gradients: int) -> None:
        """Record what workers and ps hold. A worker has the values that it has pulled, a ps so many
        gradients when it makes an update.
        """
        for k in range(self.spec.workers):
            record(self.task, f"worker:{k}", 0, 0, self.memory() | self.of_worker)
        others = bytes_of(self.others.values())  # on the first ps
        for k, shard in enumerate(self.shards):
            piece, state = bytes_of([shard.values]), bytes_of(shard.state)
            kinds = {"parameters": piece, "gradients": gradients * piece, "optimizer_state": state}
            record(self.task, shard.task, 0, 0, kinds | ({} if k else {"buffers": others}))

    def _slots(self) -> Iterator[tuple[Any, ...]]:
        """The pieces on all ps: of the variables, and of each part of the optimizer's state."""
        return zip(*([shard.values, *shard.state] for shard in self.shards), strict=True)

    def save_state(self, part: Path) -> None:
        self.updates = int(self.shards[0].version)
        slots = (self.together([piece.read_value() for piece in slot]) for slot in self._slots())
        others = {f"other {i} of 0": each for i, each in self.others.items()}
        steps.save_variables(part, steps.ALIKE, steps.named(slots) | others)

    def load_state(self, part: Path) -> None:
        kept = steps.load_variables(part.parent)
        for k, slot in enumerate(self._slots()):
            for i, whole in enumerate(self.variables):
                whole.assign(kept[f"variable {i} slot {k}"])  # which compares their shapes
            for variable, piece in zip(slot, self.cut(self.variables), strict=True):
                variable.assign(piece)
        for i, variable in self.others.items():
            variable.assign(kept[f"other {i} of 0"])
        for shard in self.shards:
            shard.version.assign(self.updates)


def connect(task: Task) -> ServersStep:
    """Join the cluster as its chief: the steps of the run, a shard of its model on each ps."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    steps.use("cpu")
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


# --- the chief hands out steps ---


def train(chief: ServersStep, program: Callable[..., Any], per_update: int = 1) -> dict[str, Any]:
    """Have all steps done and record them; what the chief returns (see `TrainingStep.result`).

    `program` is that of a step; a ps makes an update of `per_update` gradients. Steps may be over
    out of turn. Where a checkpoint is due, no further step is handed out before all are over.
    """
    spec, shares_of, losses = chief.spec, defaultdict[int, list[ShareDone]](list), {}
    chief.record_memory(per_update)
    ends = [step for step in range(chief.number + 2, spec.steps) if saving.due(spec, step)]
    for stretch in itertools.pairwise([chief.number + 1, *ends, spec.steps]):
        for share in hand_out(chief, program, range(*stretch)):
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
        if losses:
            chief.number = stretch[1] - 1
            chief.loss = losses[chief.number]
            chief.save_between()
    if chief.loops:  # they end with the last step
        chief.loops.result(PATIENCE)
    result = chief.result()
    over(chief.task).touch()
    return result


def hand_out(chief: ServersStep, program: Any, numbers: range) -> Iterator[Any]:
    """Have the program of each of these steps run once for every share of its batch, by whichever
    worker is free.

    The coordinator repeats a share whose worker was lost in the middle of it. If the worker is lost
    later, before its report has arrived, the coordinator gives up and cancels all shares. These are
    handed out again here.

    Yields what came of them, as it comes. Raises TimeoutError if nothing comes for `PATIENCE`, and
    any error of a step or of the chief's loops.
    """
    workers, heard = chief.spec.workers, clock()
    shares: Iterator[tuple[int, int]] = itertools.product(numbers, range(workers))
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
                pending[pool.submit(lambda it: it.result().fetch(), value)] = work
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
                yield ShareDone(values, len(chief.shards), steps.clock_offset())
    finally:
        for threads in (line, pool):
            threads.shutdown(wait=False, cancel_futures=True)


def _finished(chief: ServersStep, pending: dict[Future[Any], tuple[int, int]]) -> list[Future[Any]]:
    """Wait for any of the pending shares; those that are done."""
    task, loops = chief.task, chief.loops
    task.begin(min(pending.values())[0])
    task.enter("wait")
    futures = [*pending, *([loops] if loops and not loops.done() else [])]
    spec = chief.spec  # nothing is wrong if devices are emulated that take so long
    seconds = PATIENCE + max(spec.slow.values(), default=1) * spec.device_ms / 1000
    done, _ = wait(futures, seconds, FIRST_COMPLETED)
    if not done:
        late = f"no worker has finished its share of a step for {seconds:g} s"
        raise TimeoutError(f"{late}; step {task.step} is not complete")
    if loops and loops.done():
        loops.result()
    return [future for future in done if future in pending]


# --- what a step reports, and what is recorded of it ---


class ShareDone:
    """The outcome of a `share` of a step: who computed it, its loss as a sum and what that is to be
    divided by, its times, the version `read` of each shard, and the updates `applied`: a row
    [version written, gradients, begun, ended] for each shard.

    It is taken from a `report`; `offset` leads from its wall-clock times to the trace's clock.
    """

    def __init__(self, report: np.ndarray, shards: int, offset: float) -> None:
        self.step, self.share, worker = map(int, report[:3])
        self.worker, (self.loss, self.divisor) = f"worker:{worker}", report[3:5].tolist()
        times, read, applied = np.split(report[5:], np.cumsum([4, shards]))
        applied = applied.reshape(shards, 4) + np.array([0, 0, offset, offset])
        self.times, self.read = (times + offset).tolist(), read.tolist()
        self.applied = applied.tolist()


def report(scalars: Sequence[Any], updates: Sequence[Any]) -> Any:
    """In the graph: what a step tells the chief, as one float64 vector, which is one message.

    `scalars`: step, share and worker; the sum and the count whose quotient is the mean loss; when
    the step began, had pulled, had computed and had pushed; and the version read of each shard.
    `updates`: of each shard [version written, gradients, begun, ended].
    """
    return tf.concat([tf.stack([tf.cast(each, tf.float64) for each in scalars]), *updates], 0)


def _record_share(chief: ServersStep, share: ShareDone) -> None:
    """Record what a worker did: it pulled, computed, and pushed until its gradients were applied;
    and which examples it read, if the run asks for it.
    """
    spec, add, who, step = chief.spec, chief.task.recorder.add, share.worker, share.step
    spans = itertools.pairwise(share.times)
    for what, span in zip(("read", "compute", "reduce"), spans, strict=True):
        add(Phase(who, step, what, *span))
    if spec.record_examples:
        train, ahead = chief.workload.train, chief.ahead
        for epoch, of in order.pieces(spec, train, step, share.share, spec.workers, ahead=ahead):
            add(Read(who, step, epoch, of.tolist(), share.times[1]))


def _record_update(chief: ServersStep, shares: Sequence[ShareDone]) -> None:
    """Record what the ps did with the gradients of these shares: one update of each shard."""
    step, whose = shares[0].step, " ".join(share.worker for share in shares)
    for k, shard in enumerate(chief.shards):
        written, gradients, begun, ended = shares[0].applied[k]
        # not after the update: another worker may have pushed the same gradients, and been lost
        read = int(min(written - 1, *(share.read[k] for share in shares)))
        chief.task.recorder.add(Phase(shard.task, step, "apply", begun, ended))
        made = (shard.values.device, read, int(written), ended, int(gradients), whose)
        chief.task.recorder.add(Update(shard.task, step, f"shard {k}", *made))
