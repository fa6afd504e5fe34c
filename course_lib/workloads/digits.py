"""1797 real handwritten digits of 8x8 pixels, and four models for them: a small one, a convolution,
a deep one, and one of any width. The digits come with scikit-learn: nothing is downloaded.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository, 1998.
"""

import functools
import importlib.util
from pathlib import Path
from typing import Annotated

import numpy as np

from course_lib.workloads.examples import Examples
from course_lib.workloads.layers import Conv, Dense, Flatten
from course_lib.workloads.workload import Workload

TEST = 360  # examples held back, a fifth; the same ones in every run
PIXELS, CLASSES = 64, 10
# parameters that one more hidden unit of `wide` brings: its inputs, its bias, its outputs
PER_UNIT = PIXELS + 1 + CLASSES
DEEP_UNITS, DEEP_BLOCKS, DEEP_GAIN = 96, 3, 2**0.25


def digits() -> Workload:
    """A perceptron with one hidden layer, 4,810 parameters; about 0.96 of the test images right
    after 200 steps of 128.
    """
    layers = (Dense(64, relu=True), Dense(CLASSES))
    return Workload("digits", *images(), layers=layers, learning_rate=0.2)


def digits_cnn() -> Workload:
    """Two convolutions and a dense layer, 3,818 parameters on images of shape (8, 8, 1): fewer to
    send, more to compute for each.
    """
    layers = (Conv(8, 3, relu=True), Conv(16, 3, relu=True), Flatten(), Dense(CLASSES))
    return Workload("digits_cnn", *images((8, 8, 1)), layers=layers, learning_rate=0.3)


def digits_deep() -> Workload:
    """Eight dense layers, a ReLU after every second, 63,082 parameters: deep enough for a pipeline
    of up to eight stages. About 0.95 of the test images right after 100 steps of 128.

    A ReLU halves the mean square of what passes through it, and every second layer has one. Weights
    larger than `glorot`'s by 2 ** (1/4) make up for it. Without that the signal fades from layer to
    layer, and after 50 steps the loss is two to four times as large. Source: He et al., "Delving
    Deep into Rectifiers", 2015.
    """
    blocks = (Dense(DEEP_UNITS, relu=True), Dense(DEEP_UNITS)) * DEEP_BLOCKS
    layers = (*blocks, Dense(DEEP_UNITS, relu=True), Dense(CLASSES))
    return Workload("digits_deep", *images(), layers=layers, learning_rate=0.07, gain=DEEP_GAIN)


def wide(parameters: Annotated[int, range(1_000, 50_000_001)] = 1_000_000) -> Workload:
    """One hidden layer, as wide as `parameters` asks, to the nearest unit: within 38
    parameters of it. More parameters to send for the same data show when communication becomes the
    bottleneck.

    One learning rate suits every width: the variance of the initial weights (see `glorot`) shrinks
    as the layer grows, so that the sum over more units changes as fast as before.
    """
    units = max(1, round((parameters - CLASSES) / PER_UNIT))
    layers = (Dense(units, relu=True), Dense(CLASSES))
    return Workload("wide", *images(), layers=layers, learning_rate=0.3)


@functools.cache
def images(shape: tuple[int, ...] = (PIXELS,)) -> tuple[Examples, Examples]:
    """1437 images of this shape to train with and 360 to test with, pixels from 0 to 1."""
    # read from the file itself: importing scikit-learn takes longer than starting a cluster
    package = importlib.util.find_spec("sklearn")
    assert package and package.origin
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    x, y = (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))  # the file goes writer by writer
    train, test = order[TEST:], order[:TEST]
    x = x.reshape(-1, *shape)
    return Examples((x[train], y[train])), Examples((x[test], y[test]))
