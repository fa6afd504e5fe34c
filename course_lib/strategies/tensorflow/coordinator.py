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
from typing import Any

import numpy as np
import tensorflow as tf

from course_lib.record.events import Phase, Read, Update, clock
from course_lib.strategies import saving
from course_lib.strategies.tensorflow.server import PATIENCE, POLL, ServersStep, over
from course_lib.strategies.tensorflow.steps import clock_offset
from course_lib.workloads import order

LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
"""What comes of a share if its worker is lost, or the coordinator cancels it."""
TORN = "Unable to parse request"  # gRPC, of a message that the loss of a worker has cut short


def train(chief: ServersStep, program: Callable[..., Any], per_update: int = 1) -> dict[str, Any]:
    """Have all steps done and record them; what the chief returns (see `outcome`).

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


def hand_out(chief: ServersStep, program: Any, steps: range) -> Iterator[Any]:
    """Have the program of each of these steps run once for every share of its batch, by whichever
    worker is free.

    The coordinator repeats a share whose worker was lost in the middle of it. If the worker is lost
    later, before its report has arrived, the coordinator gives up and cancels all shares. These are
    handed out again here.

    Yields what came of them, as it comes. Raises TimeoutError if nothing comes for `PATIENCE`, and
    any error of a step or of the chief's loops.
    """
    workers, heard = chief.spec.workers, clock()
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
                yield ShareDone(values, len(chief.shards), clock_offset())
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
