"""Emulated device time where a device would take it: in each layer, forward and then backward.

A device spends its time on products: of matrices, in convolutions, in attention. So each layer
lasts longer by its share of the floating-point operations (FLOPs) of a step. A third of the device
time passes in the forward pass and two thirds in the backward pass, which multiplies twice: for the
gradient of the inputs and for that of the weights. So an exchange that starts when a layer's
gradients are there goes on beside the backward pass of the layers before it.

A layer is any module that multiplies, wherever it stands in a model, and however often it is called
in a step; of nested modules, the innermost. Its FLOPs are counted once, in the first step that has
any device time. In that step, and in every step of a model without products, all of the time passes
at once, before the forward pass.

A GPU takes time of its own, and `DeviceClock` tells when it did what. A program gives a GPU its
work and goes on. To take a time it could wait until the device has done all of it, but then the
device would stand idle. So it puts an event into the device's queue, and asks later when the device
reached that. This code has never run on a GPU.
Source: PyTorch documentation, "CUDA semantics: Asynchronous execution".
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from course_lib.record.events import clock

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention
# PyTorch's table lacks the kernel of attention on CPUs
FLOPS = flop_registry | {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[ATTENTION]
}
OFTEN = 60.0  # seconds; the time between two events, a float32, is too coarse if it is long


class Layers:
    """The layers of the models that a task computes, each of which takes its share of the time."""

    def __init__(self, sleep: Callable[[float], float]) -> None:
        self._sleep = sleep  # for so many seconds; returns how many it really took
        # layer -> its shares of the time, forward and backward, each time that it is called
        self._shares: dict[nn.Module, tuple[float, float]] | None = None
        self._seconds = 0.0
        self._due = 0.0  # seconds still to sleep; below 0 once a sleep has taken too long

    @contextlib.contextmanager
    def taking(self, seconds: float) -> Iterator[None]:
        """Make the forward and backward passes in the block last so many seconds longer."""
        if seconds <= 0:
            yield
        elif self._shares:
            self._seconds, self._due = seconds, 0.0
            try:
                yield
            finally:
                self._seconds = 0.0
        else:
            self._sleep(seconds)
            if self._shares is not None:  # there are no products
                yield
                return
            with counted() as counts:
                yield
            self._shares = counts.shares()
            for layer in self._shares:
                # also after an error: activation checkpointing ends its recomputation with one
                layer.register_forward_hook(self._computed, always_call=True)

    def _computed(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """The forward pass of a layer is done; its backward pass is to wait before it begins."""
        if self._seconds and self._shares:
            forward, backward = self._shares[layer]
            self._take(forward)
            if node := made_by(output):
                node.register_prehook(lambda _: self._take(backward))

    def _take(self, share: float) -> None:
        self._due += share * self._seconds
        if self._due > 0:  # a sleep takes longer than it is told: the next ones become shorter
            self._due -= self._sleep(self._due)


def made_by(output: Any) -> Any:
    """The node of autograd's graph that made a layer's output, or its first tensor that has one."""
    nodes = (getattr(tensor, "grad_fn", None) for tensor in tree_leaves(output))
    return next(filter(None, nodes), None)


class Counts(TorchDispatchMode):
    """The FLOPs of each module in its forward passes, how often it was called, and how many of
    these calls have a backward pass to come.

    A product counts for the innermost module that is being called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = Counter[nn.Module]()
        self.forward, self.backward = Counter[nn.Module](), Counter[nn.Module]()
        self._called: list[nn.Module] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        formula = FLOPS.get(func._overloadpacket)
        if formula and self._called:
            self.flops[self._called[-1]] += formula(*args, **(kwargs or {}), out_val=made)
        return made

    def calling(self, module: nn.Module, inputs: Any) -> None:
        self._called.append(module)

    def called(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._called.pop()
        self.forward[module] += 1
        self.backward[module] += made_by(output) is not None

    def shares(self) -> dict[nn.Module, tuple[float, float]]:
        """Layer -> its shares of a step's time, forward and backward, each time it is called."""

        def shares(calls: Counter[nn.Module], part: float) -> dict[nn.Module, float]:
            counted = {module: n for module, n in self.flops.items() if calls[module]}
            whole = sum(counted.values())
            return {module: part * n / whole / calls[module] for module, n in counted.items()}

        forward, backward = shares(self.forward, 1 / 3), shares(self.backward, 2 / 3)
        return {module: (share, backward.get(module, 0.0)) for module, share in forward.items()}


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Count what the modules that are called in the block compute."""
    counts = Counts()
    with contextlib.ExitStack() as stack:
        for hook in (
            register_module_forward_pre_hook(counts.calling),
            register_module_forward_hook(counts.called, always_call=True),
        ):
            stack.callback(hook.remove)
        stack.enter_context(counts)
        yield counts


class DeviceClock:
    """Moments on the present device of this process."""

    def __init__(self) -> None:
        self._event = self.moment()
        self._event.synchronize()
        self._time = clock()  # when the device reached it

    def moment(self) -> Any:
        """An event that the device reaches once it has done what it was given so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def time(self, moment: Any) -> float:
        """Return when the device reached a moment, on the clock of the trace; wait until it has."""
        moment.synchronize()
        seconds = self._event.elapsed_time(moment) / 1000
        if seconds > OFTEN:
            self._event, self._time, seconds = moment, self._time + seconds, 0.0
        return self._time + seconds
