"""What `task.watch` costs a loop of a learner's own: the time of a step that is watched and of one
that is not, in turn, in one process, of two equal models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.cluster.task import Task, clock
from tests.benchmarks import tracing
from tests.benchmarks.harness import Options, Rows

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
