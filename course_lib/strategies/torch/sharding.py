"""Hide FSDP's exchanges behind computing on CPUs, and record them.

On a GPU FSDP starts each of its collective operations in a stream beside that of computing. CPUs
have no streams: there the operation is called asynchronously. FSDP waits by itself for the gathered
parameters of a layer before it computes with them. It does not wait for the gradients that a
reduce-scatter leaves, so whoever uses them has to.
"""

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from course_lib.strategies.torch.steps import TorchStep
from course_lib.strategies.torch.tensors import bytes_of, storages


def gradients(parameters: Iterable[Any]) -> list[Any]:
    """The gradients of those parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


class Exchanges:
    """The exchanges of a step's `layers`: the `thread` that notes when they are over, the
    reduce-scatters to be waited for, and what is borrowed for a moment beside the shards: layers
    that are gathered, gradients of whole layers, and the memory in which both are exchanged.
    """

    def __init__(self, step: TorchStep, layers: Iterable[nn.Module]) -> None:
        self.step, self.thread = step, ThreadPoolExecutor(1, "lockstep-exchange")
        self.scatters: list[Exchange] = []
        self.memory = WeakSet[Any]()  # storages, as long as they are not freed
        self.whole: dict[int, Any] = {}  # parameters of gathered layers, emptied after use
        for layer in layers:
            layer.register_forward_pre_hook(self._gathered)

    def _gathered(self, layer: nn.Module, inputs: Any) -> None:
        self.whole |= {id(p): p for p in layer.parameters() if not isinstance(p, DTensor)}

    def borrowed(self) -> int:
        """Bytes that are borrowed now. The result of a reduce-scatter is not, once it is the
        gradient of a shard.
        """
        shards = storages(gradients(self.step.model.parameters()))
        exchanged = {storage.data_ptr(): storage.nbytes() for storage in self.memory}
        here = storages(self.whole.values()) | exchanged
        return sum(count for address, count in here.items() if address not in shards)

    def note(self) -> None:
        """Note them, and the gradients of whole layers."""
        if self.step.census.open:
            whole = bytes_of(gradients(self.whole.values()))
            self.step.census.note(exchange=self.borrowed(), gradients=whole)

    def wait(self) -> None:
        """Wait for the reduce-scatters that are still under way."""
        while self.scatters:
            self.scatters.pop().wait()


@dataclass
class Collective:
    """A collective operation as FSDP calls it. With `overlap` it goes on beside computing until
    somebody waits for it. A reduce-scatter that is not in float32 is waited for here, as FSDP
    converts its result at once.
    """

    among: Exchanges
    collective: Callable[..., Any]

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Memory for an exchange."""
        memory = torch.empty(*size, dtype=dtype, device=device)
        self.among.memory.add(memory.untyped_storage())
        return memory

    def __call__(self, output_tensor: Any, input_tensor: Any, **how: Any) -> Any:
        """Exchange, or begin to."""
        self.among.note()
        step, scatters = self.among.step, self.collective is dist.reduce_scatter_single
        if not step.spec.overlap or (scatters and output_tensor.dtype != torch.float32):
            with step.exchanging():
                return self.collective(output_tensor, input_tensor, **how)
        over = step.exchange_begins()
        if output_tensor.is_cuda:  # FSDP calls it in a stream of its own
            self.collective(output_tensor, input_tensor, **how)
            over()
            return None
        work = self.collective(output_tensor, input_tensor, **how | {"async_op": True})
        exchange = Exchange(step, self.among.thread.submit(finish, work, over))
        if scatters:
            self.among.scatters.append(exchange)
        return exchange


def finish(work: Any, over: Callable[[], None]) -> None:
    """Wait for an exchange, and say when it was over."""
    work.wait()
    over()


class Exchange(dist.Work):
    """An exchange under way."""

    def __init__(self, step: TorchStep, outcome: Future[None]) -> None:
        super().__init__()
        self.step, self.outcome = step, outcome

    def wait(self, *timeout: Any) -> bool:
        """Return when it is over. If it is not over yet, the `compute` phase ends here."""
        with contextlib.nullcontext() if self.outcome.done() else self.step.held_up():
            self.outcome.result()
        return True
