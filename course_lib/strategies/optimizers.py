"""Optimizers: what they make of a gradient, and the learning rate of each step, the same in both
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

Mixed precision: layers compute in 16 bits, and what must not be rounded stays in float32. The
same in both frameworks.

    float32     24 significant bits    up to 3e38     down to 1e-45
    bfloat16     8 significant bits    up to 3e38     down to 9e-41     the range of float32
    float16     11 significant bits    up to 65504    down to 6e-8

Matrix products, convolutions and attention round their inputs and parameters to 16 bits, and pass
16 bits on. That halves activations, and GPUs and TPUs multiply such numbers many times as fast (a
CPU without instructions for them is slower than with float32). Float32 stay:

    the parameters     `master weights`: an update is often so small beside its parameter that
                       16 bits would round it away
    their gradients    after the backward pass, which itself goes on in 16 bits; so float32 is
                       averaged, and travels
    the optimizer's state, and the loss
    the sums inside of norms and of softmax, whose results are 16 bits again, or float32

Gradients are small, and float16 has no small numbers: those below 6e-8 become zero, and what
depended on them is not learned. The cure is to multiply the loss by a number, the loss scale. All
gradients are then larger by that factor, and are divided by it in float32. Which number is right?
Too small, and gradients vanish; too large, and they overflow: they become infinite, or NaN. A
`LossScale` finds out. It starts high. After an overflow the scale is halved, and all workers skip
the update together: one infinite gradient makes the mean infinite for all. After 20 steps without
an overflow the scale is doubled, so that a run of 200 steps shows it; PyTorch and Keras wait for
2,000. bfloat16 needs no scale.

With parameter servers, in PyTorch, a worker looks at its own gradient before it pushes it, as
asynchronous workers have no common mean to skip. A gradient that overflows is dropped, and computed
again with half the scale.

In float16 a run records these metrics of each gradient: `loss_scale`; `overflow`, 1 if the gradient
was not used; else `zeros`, the share of its entries that are exactly zero. Some are zero in any
precision, behind a ReLU that is off; others were too small for float16. To see how many those are,
compare a run with `loss_scale=1` to one with the dynamic scale.

Sources: Micikevicius et al., "Mixed Precision Training", ICLR 2018; torch.amp.GradScaler.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from course_lib import workloads
from course_lib.errors import LockstepError
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


START = 2.0**16
GROWS_AFTER = 20
"""Steps without an overflow after which the scale is doubled."""


class LossScale:
    """The number that the loss of a run is multiplied by before the backward pass: its `value`, 1
    unless the run is in float16, and whether it is `on`.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.on = spec.precision == "float16"
        self.dynamic = self.on and spec.loss_scale == "dynamic"
        self.value = START if self.dynamic else float(spec.loss_scale) if self.on else 1.0
        self._good = 0

    @property
    def state(self) -> dict[str, float]:
        """The part of it that a checkpoint keeps."""
        return {"loss_scale": self.value, "good": self._good} if self.dynamic else {}

    @state.setter
    def state(self, kept: Mapping[str, float]) -> None:
        if self.dynamic and "good" in kept:
            self.value, self._good = kept["loss_scale"], int(kept["good"])

    def seen(self, norm: float, zeros: float) -> dict[str, float]:
        """Adjust the scale to a gradient with this norm, which is infinite or NaN if any entry is,
        and return the metrics to record of it. `zeros`: its share of zeros.
        """
        scale, overflow = self.value, not math.isfinite(norm)
        if self.dynamic and overflow:
            self.value, self._good = scale / 2, 0
        elif self.dynamic:
            self._good += 1
            if self._good == GROWS_AFTER:
                self.value, self._good = 2 * scale, 0
        return {"loss_scale": scale, "overflow": overflow} | ({} if overflow else {"zeros": zeros})

    def check(self, step: int) -> None:
        """Raise `LockstepError` if gradients that overflowed in a step would do so again: the scale
        is fixed, or it is so small that it is not what makes them infinite.
        """
        if not self.dynamic:
            cure = "leave loss_scale out, or set a smaller one"
        elif self.value < 1:
            cure = "training diverged: lower learning_rate"
        else:
            return
        raise LockstepError(f"the gradient of step {step} is not finite in float16: {cure}")
