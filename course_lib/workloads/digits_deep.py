"""The digits again, with a model of eight layers: deep enough for a pipeline of up to eight stages."""

from __future__ import annotations

from course_lib.spec import RunSpec
from course_lib.workloads.digits import images
from course_lib.workloads.model import Dense
from course_lib.workloads.workload import Workload

UNITS, BLOCKS = 96, 3
GAIN = 2**0.25


def digits_deep(spec: RunSpec) -> Workload:
    """Eight dense layers, a ReLU after every second: 63,082 parameters; about 0.95 of the test
    images right after 100 steps of 128.

    A ReLU halves the mean square of what passes through it, and there is one for two layers.
    Weights that are larger by 2 ** (1/4) than `glorot` has them make up for it: without that, the
    signal fades from layer to layer, and after 50 steps the loss is two to four times as large.
    Source: He et al., "Delving Deep into Rectifiers", 2015.
    """
    x_train, y_train, x_test, y_test = images()
    blocks = (Dense(UNITS, relu=True), Dense(UNITS)) * BLOCKS
    layers = (*blocks, Dense(UNITS, relu=True), Dense(10))
    return Workload("digits_deep", layers, 0.07, x_train, y_train, x_test, y_test, GAIN)
