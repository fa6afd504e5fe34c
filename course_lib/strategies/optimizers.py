"""What an optimizer makes of a gradient, and the learning rate of each step, the same in both
frameworks.

An optimizer keeps numbers of its own for each parameter, its state: plain gradient descent (`sgd`)
none, `momentum` one, `adamw` two, as many bytes each as the parameter itself. The state lives
where the parameter does, and wherever a parameter is updated, its state is. With gradient g and
learning rate r:

    sgd         parameter -= r * g
    momentum    velocity = 0.9 * velocity + g
                parameter -= r * velocity
    adamw       mean   = 0.9 * mean + 0.1 * g               a running mean of gradients
                square = 0.999 * square + 0.001 * g * g     a running mean of their squares
                parameter -= r * (mean' / (sqrt(square') + 1e-8) + 0.01 * parameter)

Both begin at zero, so after t updates they are too small by the factors 1 - 0.9^t and 1 - 0.999^t;
mean' and square' are what they are without these. The rules are plain arithmetic, so they are
written once here, for tensors of either framework; they compute what `torch.optim.SGD` and
`torch.optim.AdamW` do. (Keras's AdamW divides by the square root first and adds epsilon then, which
makes other numbers.) Source: Polyak, "Some methods of speeding up the convergence of iteration
methods", 1964; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from course_lib import workloads
from course_lib.spec.run_spec import RunSpec

MOMENTUM = 0.9
BETAS = (0.9, 0.999)
EPSILON = 1e-8
WEIGHT_DECAY = 0.01  # of adamw
STATE = {"sgd": 0, "momentum": 1, "adamw": 2}
"""The count of numbers that each optimizer keeps for a parameter."""


def usual_rate(spec: RunSpec) -> float:
    """The learning rate of a run after its warm-up.

    If it is not given, it is that of the workload, which is meant for sgd; a tenth of it with
    momentum, where a gradient counts ten times in all, 1 + 0.9 + 0.81 + ...; and 0.001 with adamw,
    where the size of a gradient does not matter.
    """
    if spec.learning_rate:
        return spec.learning_rate
    if spec.optimizer == "adamw":
        return 0.001
    rate = workloads.load(spec).learning_rate
    return rate * (1 - MOMENTUM) if spec.optimizer == "momentum" else rate


def rates(spec: RunSpec) -> np.ndarray:
    """The learning rate of each step, shape (steps,), float64.

    During `warmup_steps` it grows in equal parts, up to that of the run, where it stays.
    """
    grown = (np.arange(spec.steps) + 1) / max(1, spec.warmup_steps)
    return usual_rate(spec) * np.minimum(1, grown)


class Optimizer:
    """The optimizer of a run. `rates`: its learning rate in each step."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.rates = spec, rates(spec)

    @property
    def constant(self) -> bool:
        """True if the learning rate is the same in all steps."""
        return not self.spec.warmup_steps

    def corrections(self, updates: Any, expm1: Callable[..., Any] = math.expm1) -> list[Any]:
        """1 - beta^updates for each of `BETAS`, for the `updates` that there were with this one.

        For a float32 tensor `expm1` is the framework's: in 1 - 0.999 it would lose four digits.
        """
        return [-expm1(updates * math.log(beta)) for beta in BETAS]

    def changes(
        self, value: Any, gradient: Any, state: Sequence[Any], rate: Any, corrections: Sequence[Any]
    ) -> list[Any]:
        """Return what is to be added to a parameter of this `value`, and to each of its state."""
        if self.spec.optimizer == "sgd":
            return [-rate * gradient]
        if self.spec.optimizer == "momentum":
            (velocity,) = state
            change = gradient - (1 - MOMENTUM) * velocity
            return [-rate * (velocity + change), change]
        mean, square = state
        of_mean = (1 - BETAS[0]) * (gradient - mean)
        of_square = (1 - BETAS[1]) * (gradient * gradient - square)
        right_mean = (mean + of_mean) / corrections[0]
        right_square = (square + of_square) / corrections[1]
        direction = right_mean / (right_square**0.5 + EPSILON)
        return [-rate * (direction + WEIGHT_DECAY * value), of_mean, of_square]
