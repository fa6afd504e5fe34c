"""What watching costs a learner's own code: of `task.watch`, the time of a step that is watched and
of one that is not, in turn, in one process, of two equal models; the same of a collective call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from course_lib import start
from course_lib.cluster.task import Task
from course_lib.record.events import clock
from tests.benchmarks import clusters, tracing
from tests.benchmarks.harness import Aim, Options, Rows, turns

CALLS = 20  # collective calls in a step
MORE = 5.0  # microseconds that watching may add to one

Step = Callable[[], object]


def rows(options: Options) -> Rows:
    """A small model in each framework, whose step takes 1 to 2 ms; in PyTorch also under DDP."""
    length = 50 if options.quick else 200
    for name, framework, steps in (
        ("PyTorch", "torch", torch_steps),
        ("DDP", "torch", ddp_steps),
        ("tf.function", "tensorflow", tensorflow_steps),
    ):
        work = in_turns(steps, length)
        what = f"watching a {name} loop"
        yield tracing.row(what, "not watched", framework, 1, work, length, options)

    def pairs() -> Iterator[tuple[float, float]]:
        run = start(in_turns(all_reduces, length), framework="torch", workers=1)
        moments = run.wait(clusters.LONGEST).values["worker:0"]
        for watched, bare in tracing.in_pairs(moments, length):
            yield 1000 * watched / CALLS, 1000 * bare / CALLS + MORE

    peer = f"not watched, and {MORE:g} us"
    yield turns("an all_reduce of one rank, watched", "us", pairs, peer, Aim("at most", 1), options)


def in_turns(steps: Callable[[Task], tuple[Step, Step]], length: int) -> Callable[[Task], Any]:
    """`length` watched steps, as many others, and so on; the moments at which stretches ended."""

    def run(task: Task) -> list[float]:
        pair, moments = steps(task), []
        for stretch in range(tracing.STRETCHES):
            step = pair[stretch % 2]
            for _ in range(length):
                step()
            task.recorder.flush()
            moments.append(clock())
        return moments

    return run


def torch_steps(task: Task, wrap: Callable[[Any], Any] = lambda model: model) -> tuple[Step, Step]:
    import torch
    from torch import nn

    def loop(watched: bool) -> Step:
        layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        model = wrap(nn.Sequential(*layers, nn.Linear(256, 10)))
        optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
        inputs, targets = torch.randn(64, 256), torch.randint(0, 10, [64])
        if watched:
            task.watch(model, optimizer)

        def step() -> None:
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            optimizer.step()

        return step

    return loop(True), loop(False)


def ddp_steps(task: Task) -> tuple[Step, Step]:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    return torch_steps(task, DistributedDataParallel)


def all_reduces(task: Task) -> tuple[Step, Step]:
    """One rank waits for nobody, so the time of a call is that of Python and gloo. Another thread
    carries it out. Both are held to one core, because to wake one that sleeps takes several times
    as long as the call, and never the same time.
    """
    import torch
    import torch.distributed as dist

    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the threads that begin from here
    dist.init_process_group("gloo")
    numbers, work = torch.ones(10), dist.distributed_c10d.Work
    watched, wait = dist.all_reduce, work.wait

    def calls(all_reduce: Any, wait: Any) -> Step:
        def step() -> None:
            work.wait = wait
            for _ in range(CALLS):
                all_reduce(numbers)

        return step

    bare: Any = watched
    return calls(watched, wait), calls(bare.__wrapped__, wait.__wrapped__)


def tensorflow_steps(task: Task) -> tuple[Step, Step]:
    import keras
    import tensorflow as tf

    def loop(watched: bool) -> Step:
        layers = [keras.layers.Dense(256, "relu"), keras.layers.Dense(256, "relu")]
        model = keras.Sequential([keras.Input([256]), *layers, keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.01)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        inputs, targets = tf.random.normal([64, 256]), tf.zeros([64], tf.int32)

        def train_step(inputs: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(targets, model(inputs, training=True))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        step = tf.function(train_step)
        if watched:
            step = task.watch(model, optimizer).step(step)
        return lambda: float(step(inputs, targets))

    return loop(True), loop(False)
