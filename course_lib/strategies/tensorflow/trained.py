"""A trained Keras model, from the weights that a run left."""

from collections.abc import Mapping

import keras
import numpy as np

from course_lib.strategies.tensorflow.models import build
from course_lib.workloads.workload import Workload


def model(workload: Workload, seed: int, weights: Mapping[str, np.ndarray]) -> keras.Model:
    """The workload's `keras.Model` with these weights, in Keras' order. Building it seeds the
    random numbers of this process, as `keras.utils.set_random_seed(seed)` does.
    """
    built = build(workload, seed)
    built.set_weights(list(weights.values()))
    return built
