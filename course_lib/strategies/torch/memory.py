"""What takes up the memory of a PyTorch task, counted from tensors. The numbers of a tensor lie in
its storage, which it may share with other tensors, such as its views.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from course_lib.strategies.torch.steps import TorchStep


def local(tensor: Any) -> Any:
    """What this process holds of a tensor: a shard of a DTensor, all of any other."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Any) -> Any:
    """A tensor put together from all tasks, if it is a DTensor, of which each holds a shard."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Address -> bytes of the storages of tensors."""
    found = [local(tensor.detach()).untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def gradients(parameters: Iterable[Any]) -> list[Any]:
    """The gradients of those parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def bytes_of(tensors: Iterable[Any]) -> int:
    """Bytes of the storages of tensors; one that several share counts once."""
    return sum(storages(tensors).values())


class Borrowed:
    """What FSDP needs for a moment, beside the shards: layers that are gathered, gradients of whole
    layers, and the memory in which both are exchanged.
    """

    def __init__(self, step: TorchStep, layers: Iterable[nn.Module]) -> None:
        self.step = step
        self.exchanged: WeakSet[Any] = WeakSet()  # storages, as long as they are not freed
        self.whole: dict[int, Any] = {}  # parameters of gathered layers, emptied after use
        for layer in layers:
            layer.register_forward_pre_hook(self._gathered)

    def _gathered(self, layer: nn.Module, inputs: Any) -> None:
        self.whole |= {id(p): p for p in layer.parameters() if not isinstance(p, DTensor)}

    def memory(self, size: Any, dtype: Any, device: Any) -> Any:
        """Memory for an exchange."""
        memory = torch.empty(*size, dtype=dtype, device=device)
        self.exchanged.add(memory.untyped_storage())
        return memory

    def now(self) -> int:
        """Bytes that are borrowed now. The result of a reduce-scatter is not, once it is the
        gradient of a shard.
        """
        shards = storages(gradients(self.step.model.parameters()))
        exchanged = {storage.data_ptr(): storage.nbytes() for storage in self.exchanged}
        here = storages(self.whole.values()) | exchanged
        return sum(count for address, count in here.items() if address not in shards)

    def note(self) -> None:
        """Note them, and the gradients of whole layers."""
        if self.step.census.open:
            whole = bytes_of(gradients(self.whole.values()))
            self.step.census.note(exchange=self.now(), gradients=whole)


@contextlib.contextmanager
def kept_for_backward(model: nn.Module, tell: Callable[[int], None]) -> Iterator[None]:
    """`tell` how many bytes autograd has saved in the block for the backward pass, apart from the
    model's parameters and buffers.

    Of a storage only the saved parts count, each once, such as a microbatch of a batch. A storage
    that is freed by the end of the block counts nothing, such as a layer gathered for a moment.
    """
    found: dict[int, tuple[Any, dict[int, int]]] = {}  # storages, and what is saved of each

    def pack(tensor: Any) -> Any:
        kept = tensor.detach()  # an output that is saved as it is would keep itself alive
        here = local(kept)
        storage = here.untyped_storage()
        _, parts = found.setdefault(id(storage), (storage, {}))
        parts[here.data_ptr()] = here.nbytes
        return kept

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
    own = storages([*model.parameters(), *model.buffers()])
    tell(
        sum(
            min(sum(parts.values()), storage.nbytes())
            for storage, parts in found.values()
            if storage.data_ptr() not in own
        )
    )
    found.clear()


def counted(step: TorchStep, forward: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same forward pass; in the first step it notes the activations that it keeps."""
    if not step.census.open:
        return forward

    def counting(inputs: Any, targets: Any) -> Any:
        with kept_for_backward(step.replica, lambda count: step.census.note(activations=count)):
            return forward(inputs, targets)

    return counting
