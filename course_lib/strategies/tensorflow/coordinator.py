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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from course_lib.record.events import Dropped, Metric, Phase, Read, Update, clock
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import saving
from course_lib.strategies.tensorflow.server import (
    PATIENCE,
    POLL,
    ServersStep,
    longest_sleep,
    over,
)
from course_lib.strategies.tensorflow.steps import WallClock
from course_lib.workloads import order

PHASES = ("read", "compute", "reduce")
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""What comes of a share if its worker is lost, or the coordinator cancels it."""
TORN = "Unable to parse request"  # gRPC, of a message that the loss of a worker has cut short


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
