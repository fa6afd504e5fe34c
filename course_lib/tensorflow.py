"""The training step in TensorFlow, for strategies of your own:
`notebooks/reference/your_strategy.md`.

    from course_lib.tensorflow import Step
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from course_lib.cluster.task import Task
from course_lib.collectives import build
from course_lib.strategies.tensorflow.models import mean_of
from course_lib.strategies.tensorflow.steps import ReplicasStep, use
from course_lib.strategies.tensorflow.training import descend, gradients_of


class Step(ReplicasStep):
    """A training step of one replica, whose `backward` and `apply` are a graph each. `variables`:
    those of the model that are trained, in the order of their gradients.

    `apart`: each replica goes its own way for a while, so an update has the gradients of one.
    """

    def __init__(self, task: Task, apart: bool = False) -> None:
        use(task.device)
        self.apart = apart
        super().__init__(task, tf.distribute.get_strategy())
        self.spread = 0.0
        self._gradients = tf.function(gradients_of(self), autograph=False)
        self._descend = tf.function(self._update, autograph=False)
        self._exchange: Any = None

    def backward(self, inputs: Any, targets: Any) -> list[Any]:
        """The forward and the backward pass: the loss, and the gradient of each variable. The loss
        is the mean over the examples, shape (), or a sum and a count, shape (2,).
        """
        if not self.number:
            tf.random.set_seed(self.drawn)  # which the graph keeps
        values: list[Any] = self._gradients(inputs, targets)
        values[-1].numpy()  # until they are there
        return values

    def average(self, values: Sequence[Any]) -> list[Any]:
        """The means of tensors over all workers, by the run's `all_reduce` if that is one of ours,
        else by a ring. All workers have to call it, with tensors of the same shapes.
        """
        if self._exchange is None:
            workers = [task for task in self.spec.tasks if task.startswith("worker:")]
            hosts = [self.spec.places[task] for task in workers]
            schedule = self.task.schedule or build("ring", len(workers), hosts, alone=True)
            self._exchange = partial(self.task.group(schedule).execute, schedule)
        flat = np.concatenate([np.ravel(value) for value in values])
        self._exchange(flat)
        ends = np.cumsum([np.size(value) for value in values])[:-1]
        means = np.split(flat / np.float32(self.spec.workers), ends)
        return [tf.reshape(m, value.shape) for m, value in zip(means, values, strict=True)]

    def apply(self, loss: Any, gradients: Sequence[Any]) -> None:
        """Update all variables by these mean gradients, as the run's optimizer does. `loss`: that
        of the same examples. In float16 the update is skipped if a gradient is infinite or NaN.
        """
        self.adjust_scale(*self._descend(loss, list(gradients)).numpy())

    def _update(self, loss: Any, gradients: list[Any]) -> Any:
        done = descend(self, loss, gradients)
        with tf.control_dependencies(tf.nest.flatten(done)):
            return tf.identity(self.seen[0]) if self.seen else tf.zeros([2], tf.float64)

    def done(self, loss: Any = None) -> None:
        """The step is over. `loss`: as `backward` returns it, of what this task knows."""
        super().done(None if loss is None else float(mean_of(tf.convert_to_tensor(loss))))
