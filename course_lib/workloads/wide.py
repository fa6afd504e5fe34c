"""The digits again, with a model of any size: more parameters to send for the same data, to see
when communication becomes the bottleneck.
"""

from __future__ import annotations

from course_lib.spec import RunSpec
from course_lib.workloads.digits import images
from course_lib.workloads.model import Dense
from course_lib.workloads.workload import Workload

PIXELS, CLASSES = 64, 10
# parameters that one more hidden unit brings: its inputs, its bias, its outputs
PER_UNIT = PIXELS + 1 + CLASSES


def wide(spec: RunSpec) -> Workload:
    """One hidden layer, as wide as `spec.parameters` asks: the nearest number of units, so the
    exact size is within 38 of it.

    One learning rate suits every width: the variance of the initial weights (see `glorot`) shrinks
    as the layer grows, so that the sum over more units changes as fast as before.
    """
    units = max(1, round((spec.parameters - CLASSES) / PER_UNIT))
    x_train, y_train, x_test, y_test = images()
    layers = (Dense(units, relu=True), Dense(CLASSES))
    return Workload("wide", layers, 0.3, x_train, y_train, x_test, y_test)
