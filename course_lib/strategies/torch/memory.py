"""What takes up the memory of a PyTorch task, counted from tensors. The numbers of a tensor lie in
its storage, which it may share with other tensors, such as its views.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor


def local(tensor: Any) -> Any:
    """What this process holds of a tensor: a shard of a DTensor, all of any other."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Any) -> Any:
    """A tensor put together from all tasks, if it is a DTensor, of which each holds a shard."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def parts_of(tensor: Any) -> list[Any]:
    """The tensors that hold the numbers of one: of a sparse tensor its indices and its values."""
    here = local(tensor.detach())
    return [here._indices(), here._values()] if here.is_sparse else [here]


def storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Address -> bytes of the storages of tensors."""
    found = [part.untyped_storage() for tensor in tensors for part in parts_of(tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def bytes_of(tensors: Iterable[Any]) -> int:
    """Bytes of the storages of tensors; one that several share counts once."""
    return sum(storages(tensors).values())


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
        for part in parts_of(kept):
            storage = part.untyped_storage()
            _, parts = found.setdefault(id(storage), (storage, {}))
            parts[part.data_ptr()] = part.nbytes
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
