"""Mixed precision: layers compute in 16 bits, and what must not be rounded stays in float32. The
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
from collections.abc import Mapping

from course_lib.errors import LockstepError
from course_lib.spec.run_spec import RunSpec

START = 2.0**16
GROWS_AFTER = 20
"""Steps without an overflow after which the scale is doubled."""


class LossScale:
    """What the loss of a run is multiplied by before the backward pass: its `value`, 1 unless the
    run is in float16, and whether it is `on`.
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
