"""The processes that serve in a cluster with parameter servers (ps) in TensorFlow.

A worker or a ps runs TensorFlow's server: it carries out whatever part of a graph is placed on it.
Only the chief runs a program. But an operation in a graph of the chief's may call Python: a
function of the process that runs it, which is known by a name. Every worker has two of these, one
that fetches training examples and one that lets the emulated device time pass.
"""

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.record import files
from course_lib.record.clock import clock
from course_lib.record.rundir import folder_name
from course_lib.workloads import order
from course_lib.workloads.trees import leaves, mapped, numbered

PATIENCE = 60.0  # seconds for which the chief waits for those that say nothing
POLL = 0.05  # seconds between two looks at the files of others
EXAMPLES, DEVICE_TIME = "lockstep: examples", "lockstep: device time"


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
    functions = {EXAMPLES: examples_of(task), DEVICE_TIME: device_time_of(task)}
    script_ops._py_funcs._funcs.update(functions)  # which holds no function by itself
    server = tf.distribute.Server(cluster, job_name=task.job, task_index=task.index, config=options)
    say(task, 0.0)
    while not over(task).exists():
        time.sleep(POLL)
    del server  # it serves for as long as it is held


def over(task: Task) -> Path:
    """The file that says that the chief is done."""
    return task.files.meetings / "over"


def serving(task: Task, name: str) -> Path:
    """The file that says that a task's server is up, and for how many seconds it slept last."""
    return task.files.meetings / f"serving-{folder_name(name)}"


def say(task: Task, seconds: float) -> None:
    """Say that this task is up, and sleeps for so long in a step."""
    task.files.meetings.mkdir(parents=True, exist_ok=True)
    files.leave(serving(task, task.name), str(seconds).encode())


def await_servers(task: Task) -> None:
    """Wait until the servers of all other tasks are up."""
    deadline = clock() + PATIENCE
    servers = [name for name in task.spec.tasks if name != task.name]
    while missing := [name for name in servers if not serving(task, name).exists()]:
        if clock() > deadline:
            raise TimeoutError(f"no server after {PATIENCE:g} s on {', '.join(missing)}")
        time.sleep(POLL / 10)


def longest_sleep(task: Task) -> float:
    """The longest that a task sleeps in a step, in seconds, as they say."""
    return max(float(serving(task, t).read_text()) for t in task.spec.tasks if t != task.name)


# --- what a worker does in Python, and a graph of the chief's that asks for it ---


def on_worker(name: str, inputs: Sequence[Any], kinds: Sequence[Any]) -> Any:
    """In the graph: the results, with these types, of the worker's function of this name."""
    with tf.device("/device:CPU:0"):
        return tf.raw_ops.PyFunc(input=inputs, token=name, Tout=kinds)


def examples_of(task: Task) -> Callable[..., Any]:
    """The function that fetches the training examples of a share of a step's batch: the arrays of
    inputs and targets, one after the other.
    """
    spec, train = task.spec, workloads.load(task.spec).train

    def fetch(work: np.ndarray) -> list[np.ndarray]:
        step, share, ahead = map(int, work)
        drawn = np.random.SeedSequence([spec.seed, step, share]).generate_state(2)
        random.seed(int(drawn[0])), np.random.seed(drawn[1])  # a dataset may draw
        pieces = order.pieces(spec, train, step, share, spec.workers, ahead=ahead)
        return list(leaves(train.take(np.concatenate([indices for _, indices in pieces]))).values())

    return fetch


def examples(spec: Any, work: Any) -> tuple[Any, Any]:
    """In the graph: inputs and targets of the share that `work` is, [step, share, ahead]."""
    like = workloads.load(spec).train.take([0])
    kinds = list(leaves(like).values())
    arrays = on_worker(EXAMPLES, [work], [each.dtype for each in kinds])

    def shaped(array: np.ndarray, number: int) -> Any:
        return tf.ensure_shape(arrays[number], (spec.per_worker_batch, *array.shape[1:]))

    batch: tuple[Any, Any] = mapped(shaped, like, numbered(like))
    return batch


def device_time_of(task: Task) -> Callable[..., Any]:
    """The function that sleeps for the emulated device time of a step, longer if the task is slowed
    or has jitter: `Task.pace` for a step that was `busy` for some seconds. It returns the time.
    """

    def sleep(step: np.ndarray, busy: np.ndarray) -> float:
        factor, device_seconds = task.slow_factor, task.spec.device_ms / 1000
        times, late = task.jitter.of_step(task.spec.seed, task.name, int(step))
        seconds = factor * times * device_seconds + (factor - 1) * float(busy) + late
        if seconds > PATIENCE / 2:
            say(task, seconds)
        time.sleep(seconds)
        return time.time()

    return sleep


def device_time(step: Any, since: Any, until: Any) -> Any:
    """In the graph: let the device time pass of a step that computed from `since` to `until`."""
    (later,) = on_worker(DEVICE_TIME, [step, until - since], [tf.float64])
    return tf.ensure_shape(later, [])
