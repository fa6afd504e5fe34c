"""The training steps of a Keras model: what all of them share, and the step of the replicas that a
process has under a strategy of tf.distribute. What happens in its graph is in `training.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.steps import TrainingStep
from course_lib.strategies.tensorflow import checkpoints, models
from course_lib.strategies.tensorflow.graphs import bytes_of
from course_lib.strategies.tensorflow.models import copies_of, first
from course_lib.strategies.tensorflow.optimizer import Optimizer
from course_lib.strategies.tensorflow.steps import WallClock, bytes_on, matmul_flops
from course_lib.workloads.trees import mapped

BACKWARD = 2 / 3  # of a step's device time: that pass computes twice as much as the forward pass


class KerasStep(TrainingStep):
    """A training step of the workload's Keras model, whose variables lie where the scope of the
    current strategy places them.

    `variables` are those that are trained; `loss_of` is the workload's loss (`models.loss_of`).
    """

    matmul_flops = staticmethod(matmul_flops)

    def __init__(self, task: Task) -> None:
        spec, workload = task.spec, workloads.load(task.spec)
        self.model = models.build(workload, spec.seed, spec.precision)
        self.variables = models.variables_of(self.model)
        self.loss_of, self.optimizer = models.loss_of(workload), Optimizer(spec)
        weights = models.every_copy(weight.value for weight in self.model.weights)
        super().__init__(task, [("all", device) for device in bytes_on(weights)])

    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        inputs, targets = self.workload.train.take(indices)
        return mapped(tf.constant, inputs), mapped(tf.constant, targets)

    def outputs(self, inputs: Any) -> Any:
        return models.outputs_of(self.model, inputs)

    def weights(self) -> list[np.ndarray]:
        return models.weights_of(self.model)

    def named_weights(self) -> dict[str, np.ndarray]:
        return models.named_weights_of(self.model)


class ReplicasStep(KerasStep):
    """A training step of the replicas that this process has under a strategy of tf.distribute.

    `state` holds the optimizer's variables for each trained variable; `count` counts the updates;
    in float16, `scaling` holds the loss scale. All lie wherever the model does.
    """

    def __init__(self, task: Task, strategy: Any) -> None:
        super().__init__(task)
        self.strategy, self._wall = strategy, WallClock()
        self._compiled: Any = None
        # The part of the device time that passes in the graph, while buckets travel: that of the
        # backward pass, or of the last one if a batch is computed in parts.
        in_graph = self.overlaps and self.spec.device_ms > 0
        self.spread = BACKWARD / self.spec.accumulate if in_graph else 0.0
        self.kept = 0.0  # seconds of this step's device time that pass in the graph
        self.errors: list[Exception] = []  # of our exchange: TensorFlow makes another error of it
        self.group = task.group() if task.schedule else None
        self.state = [self.optimizer.state_of(each) for each in self.variables]
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.scaling = tf.Variable(self.scale.value, trainable=False) if self.scale.on else None
        self.seen: list[Any] = []  # in the graph: what was seen of the mean gradients
        if self.model.non_trainable_variables:
            self.writers = [f"worker:{k}" for k in range(self.spec.workers)]
        self._draw_apart()

    def _draw_apart(self) -> None:
        """Give the replicas of all tasks seeds of their own, for dropout and the like.

        All are built with the same ones. A state counts its draws, so each step has other random
        numbers, and a run that is repeated has the same.
        """
        for variable in filter(models.is_seed, self.model.non_trainable_variables):
            for replica, state in enumerate(copies_of(variable.value)):
                share = self.task.index * self.spec.replicas + replica
                state.assign([models.seed_of(state.numpy(), self.spec.seed, share), 0])

    @property
    def overlaps(self) -> bool:
        """Whether a bucket of gradients may leave before all are there; a single one cannot."""
        return self.spec.overlap and self.spec.bucket_mb is not None

    # --- what it holds ---

    def variables_on(self) -> dict[str, int]:
        return bytes_on(models.every_copy(weight.value for weight in self.model.weights))

    def state_on(self) -> dict[str, int]:
        return bytes_on(models.every_copy(itertools.chain.from_iterable(self.state)))

    def note(self, **of_a_replica: int) -> None:
        """Note bytes of memory, by kind, that each replica of this process holds."""
        self.census.note(**{kind: self.spec.replicas * n for kind, n in of_a_replica.items()})

    def held(self) -> dict[str, int]:
        """Variables that are not trained count as buffers, frozen weights too."""
        held, others = super().held(), self.model.non_trainable_weights
        untrained = bytes_of(models.every_copy(variable.value for variable in others))
        held["parameters"] -= untrained
        held["buffers"] += untrained
        return held

    def _alike(self) -> dict[str, Any]:
        """The variables that every replica holds alike, by name."""
        return checkpoints.named([self.variables, *zip(*self.state, strict=True)])

    def _own(self) -> Iterator[tuple[str, Any]]:
        """The copies of the variables that are not trained, by name."""
        for i, variable in enumerate(self.model.non_trainable_variables):
            what = "seed" if models.is_seed(variable) else "other"
            before = self.task.index * self.spec.replicas
            for replica, copy in enumerate(copies_of(variable.value), before):
                yield f"{what} {i} of {replica}", copy

    def save_state(self, part: Path) -> None:
        """Of several workers the first writes what all hold alike, each one what it alone holds."""
        if self.task.index == 0:
            alike = {name: first(variable) for name, variable in self._alike().items()}
            checkpoints.write(part, checkpoints.ALIKE, alike)
        if self.task.name in self.writers:
            checkpoints.write(part, checkpoints.OWN, dict(self._own()))

    def load_state(self, part: Path) -> None:
        kept = checkpoints.read(part.parent)
        values = [(variable, kept[name]) for name, variable in self._alike().items()]
        for variable, value in [*values, (self.count, self.updates)]:
            for copy in copies_of(variable):
                copy.assign(value)
        self._scale()
        for name, copy in self._own():
            # parameter servers have no seeds
            value = kept.get(name, kept.get(f"{name.partition(' of ')[0]} of 0", copy.numpy()))
            if name.startswith("seed"):
                value[0] = copy[0].numpy()  # and as many draws
            copy.assign(value)

    # --- a step ---

    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        """Where the process has several replicas, each gets an equal part of the examples."""
        if self.spec.replicas == 1:
            return super().tensors(indices)
        parts, tensors = np.split(indices, self.spec.replicas), super().tensors
        values: tuple[Any, Any] = self.strategy.experimental_distribute_values_from_function(
            lambda context: tensors(parts[context.replica_id_in_sync_group])
        )
        return values

    @contextmanager
    def emulating(self) -> Iterator[None]:
        """Let the device time pass before the graph, except for what is `kept` for the graph."""
        self.kept = self.spread * self._owed
        self.sleep(self._owed - self.kept)
        yield

    def report(self, loss: Any, *stamps: Any) -> Any:
        """In the graph: what a `Program` returns."""
        mean = tf.cast(models.mean_of(loss), tf.float64)
        return tf.concat([tf.stack([mean, *stamps]), *self.seen], 0)

    def run(self, program: Any, inputs: Any, targets: Any) -> float:
        """Run the graph that computes, averages and applies, and record each; the loss."""
        with self.computing():
            if self._compiled is None:  # a call of the tf.function would look for it in every step
                tf.random.set_seed(self.drawn)  # which the graph keeps
                self._compiled = program.get_concrete_function(inputs, targets)
            self.task.enter("the graph")
            try:
                loss, *rest = self._compiled(inputs, targets).numpy().tolist()
            except tf.errors.OpError as error:
                raise self.errors[0] if self.errors else error from None
            offset = self._wall.offset()
            count = len(rest) - 2 * self.scale.on
            *stamps, applied = (stamp + offset for stamp in rest[:count])
            computed, reduced = stamps[::2], stamps[1::2]
            self._computed = computed[-1]
            if self.strategy.num_replicas_in_sync > 1:
                self._beside = list(zip(computed, reduced, strict=True))
        self._record("apply", reduced[-1], applied)
        if self.scale.on:
            self.finite(*rest[count:])
            self._scale()
        self.updated()
        return float(loss)

    def _scale(self) -> None:
        """Let the graph multiply the loss by the scale of the next step."""
        for scaling in copies_of(self.scaling) if self.scaling is not None else ():
            scaling.assign(self.scale.value)
