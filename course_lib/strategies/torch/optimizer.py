"""The optimizer of a run in PyTorch: its rule is in `strategies/optimizers.py`, its state here."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from course_lib.spec.run_spec import RunSpec
from course_lib.strategies import optimizers
from course_lib.strategies.torch.vectors import norm_over


class Optimizer(optimizers.Optimizer):
    """Updates `tensors` in place, and keeps their state beside them, on the same device. An
    optimizer with a state makes sparse gradients dense: it changes what has no gradient too.

    `torch.optim` would do the same. Its first step imports PyTorch's compiler, which takes seconds
    in each of the tasks.
    """

    def __init__(self, spec: RunSpec, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__(spec)
        self.tensors = list(tensors)
        self.state: list[list[torch.Tensor]] = []  # for each of the tensors, from the first update

    def begin(self) -> None:
        """Make the state as it is before the first update: zeros."""
        count = optimizers.STATE[self.spec.optimizer]
        self.state = [[torch.zeros_like(each) for _ in range(count)] for each in self.tensors]

    @torch.no_grad()
    def apply(self, gradients: Iterable[torch.Tensor], step: int, updates: int) -> None:
        """Update the tensors by their gradients in a step, after so many `updates` before."""
        rate = float(self.rates[step])
        if not self.state:
            self.begin()
        if self.spec.optimizer == "sgd" and self.tensors:  # in one call, no tensors in between
            torch._foreach_sub_(self.tensors, list(gradients), alpha=rate)
            return
        corrections = self.corrections(updates + 1)
        for tensor, gradient, state in zip(self.tensors, gradients, self.state, strict=True):
            changes = self.changes(tensor, gradient.to_dense(), state, rate, corrections)
            for old, change in zip([tensor, *state], changes, strict=True):
                old.add_(change)

    def state_on(self) -> dict[str, int]:
        """Bytes of the state by device."""
        return bytes_on(tensor for state in self.state for tensor in state)


def clip(
    gradients: Sequence[torch.Tensor], most: float | None, norm: torch.Tensor | None = None
) -> Sequence[torch.Tensor]:
    """The gradients, scaled down if their norm is above `most`.

    `norm`: the norm over all gradients of the model, if these are not all.
    """
    if most is None:
        return gradients
    norm = norm_over(gradients) if norm is None else norm
    factor = most / norm.clamp(min=most)
    return [factor * gradient for gradient in gradients]


def bytes_on(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Bytes of tensors by device."""
    found: Counter[str] = Counter()
    for tensor in tensors:
        found[str(tensor.device)] += tensor.numel() * tensor.element_size()
    return dict(found)
