"""Workload: data, model and learning rate; and which examples each worker takes in each step."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from course_lib.workloads.model import Layer, glorot, shapes


@dataclass(frozen=True, eq=False)
class Workload:
    """What is trained, whatever trains it.

    `x_*`: float32 in [0, 1], shape (examples, *shape of one example). `y_*`: int64 classes, shape
    (examples,). The loss is the mean softmax cross entropy of the last layer's outputs; the
    optimizer is plain gradient descent, `weight -= learning_rate * gradient`, so that the
    arithmetic shows. `gain`: how much larger the initial weights are than `glorot` has them.
    """

    name: str
    layers: tuple[Layer, ...]
    learning_rate: float
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    gain: float = 1.0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.x_train.shape[1:]

    @property
    def parameters(self) -> int:
        """Exact number of trained numbers."""
        return sum(math.prod(shape) for shape in shapes(self.layers, self.input_shape))

    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """The weights that every run with this seed starts from, in the layout that
        `course_lib.workloads.model` describes.
        """
        return glorot(self.layers, self.input_shape, seed, self.gain)

    def batch(
        self, step: int, seed: int, global_batch: int, worker: int | None = None, workers: int = 1
    ) -> np.ndarray:
        """Indices into the training data of a step's global batch, or of one worker's share of it.
        Shape (examples,).

        Depends on nothing but its arguments, so no worker needs to be told: all examples in
        shuffled order, then all again in another order, and so on, cut into batches of equal size.
        Worker k of w takes the k-th of w equal slices. `workers` must divide `global_batch`.
        """
        count = global_batch // workers
        position = step * global_batch + (worker or 0) * count
        if worker is None:
            count = global_batch
        epoch, place = divmod(position, len(self.x_train))
        indices = _order(len(self.x_train), seed, epoch)[place : place + count]
        while len(indices) < count:  # it goes on in the next epoch
            epoch += 1
            indices = np.concatenate(
                [indices, _order(len(self.x_train), seed, epoch)[: count - len(indices)]]
            )
        return indices


@functools.lru_cache(maxsize=8)
def _order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the examples in an epoch, not to be changed: it is kept."""
    order = np.random.default_rng([1, seed, epoch]).permutation(examples)
    order.setflags(write=False)
    return order
