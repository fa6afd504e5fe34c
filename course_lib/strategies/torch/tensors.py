"""Tensors: which part of them lies here, the memory that they take up, and sparse ones.

The numbers of a tensor lie in its storage, which it may share with other tensors, such as its
views. The gradient of an embedding with `sparse=True` has the rows that were looked up, and no
others. All else in it is zero.

Parameter servers cut all parameters, laid end to end, into pieces of equal length. There a sparse
gradient is a sparse vector: the places of numbers, and the numbers. Those of a row follow each
other, so it travels as runs: where a run begins, how long it is, and its numbers. That is 8 bytes a
run and 4 a number. The vector of a model that has dense layers too is sparse as well, and each such
layer is a run.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor


def local(tensor: Any) -> Any:
    """Return the part of a tensor that lies here: a shard of a DTensor, all of any other."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Any) -> Any:
    """A tensor put together from all tasks, if it is a DTensor, of which each holds a shard."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def parts_of(tensor: Any) -> list[Any]:
    """The tensors that hold the numbers of one: of a sparse tensor its indices and its values."""
    here = local(tensor.detach())
    return [here._indices(), here._values()] if here.is_sparse else [here]


def storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Address -> bytes of the storages of those that are tensors, and not None."""
    there = (tensor for tensor in tensors if tensor is not None)
    here = [part.untyped_storage() for tensor in there for part in parts_of(tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in here}


def bytes_of(tensors: Iterable[Any]) -> int:
    """Bytes of the storages of tensors; one that several share counts once."""
    return sum(storages(tensors).values())


def bytes_on(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Bytes of what this process holds of tensors, by device."""
    counts = Counter[str]()
    for tensor in map(local, tensors):
        counts[str(tensor.device)] += tensor.nbytes
    return dict(counts)


@contextlib.contextmanager
def kept_for_backward(model: nn.Module, note: Callable[[int], None]) -> Iterator[None]:
    """`note` how many bytes autograd has saved in the block for the backward pass, apart from the
    model's parameters and buffers.

    Of a storage only the saved parts count, each once, such as a microbatch of a batch. A storage
    that is freed by the end of the block counts nothing, such as a layer gathered for a moment.
    """
    saved: dict[int, tuple[Any, dict[int, int]]] = {}  # storages, and what is saved of each

    def pack(tensor: Any) -> Any:
        kept = tensor.detach()  # an output that is saved as it is would keep itself alive
        for part in parts_of(kept):
            storage = part.untyped_storage()
            _, parts = saved.setdefault(id(storage), (storage, {}))
            parts[part.data_ptr()] = part.nbytes
        return kept

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
    own = storages([*model.parameters(), *model.buffers()])
    others = [each for each in saved.values() if each[0].data_ptr() not in own]
    note(sum(min(sum(parts.values()), storage.nbytes()) for storage, parts in others))
    others.clear()
    saved.clear()


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All tensors laid end to end as one vector."""
    return torch.cat([tensor.detach().to_dense().reshape(-1) for tensor in tensors])


def shaped(vector: torch.Tensor, like: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """A vector that `flat` has made, as tensors that have these shapes: views of it."""
    like = list(like)
    pieces = vector.split([each.numel() for each in like])
    return [piece.view_as(each) for piece, each in zip(pieces, like, strict=True)]


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor; of a sparse one those that it has."""
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def zeros_in(gradients: Iterable[torch.Tensor]) -> float:
    """The share of the entries of these gradients that are exactly zero."""
    every = [numbers(gradient) for gradient in gradients]
    return 1 - sum(int(e.count_nonzero()) for e in every) / sum(e.numel() for e in every)


def scale(tensors: Iterable[torch.Tensor], factor: Any) -> None:
    """Multiply tensors by a factor, in place."""
    for tensor in tensors:
        (tensor._values() if tensor.is_sparse else tensor).mul_(factor)


def vector(places: torch.Tensor, values: torch.Tensor, length: int) -> torch.Tensor:
    """A sparse vector with these `values` at these `places`, in ascending order; 0 elsewhere."""
    how = {"is_coalesced": True, "check_invariants": True}
    return torch.sparse_coo_tensor(places[None], values, (length,), **how)


def end_to_end(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All tensors laid end to end as one vector, a sparse one if one of them is sparse."""
    if not any(tensor.is_sparse for tensor in tensors):
        return flat(tensors)
    *begins, length = itertools.accumulate((tensor.numel() for tensor in tensors), initial=0)
    places = [begin + _places(tensor) for begin, tensor in zip(begins, tensors, strict=True)]
    return vector(torch.cat(places), flat(map(numbers, tensors)), length)


def _places(tensor: torch.Tensor) -> torch.Tensor:
    """Return the places of the `numbers` of a tensor in it, counted from its first."""
    if not tensor.is_sparse:
        return torch.arange(tensor.numel(), device=tensor.device)
    strides = torch.empty(tensor.shape, device="meta").stride()[: tensor.sparse_dim()]
    begins = sum(index * by for index, by in zip(tensor.coalesce().indices(), strides, strict=True))
    return (begins[:, None] + torch.arange(strides[-1], device=tensor.device)).reshape(-1)


def split(values: torch.Tensor, parts: int) -> Sequence[torch.Tensor]:
    """A vector in so many parts, as `torch.tensor_split` cuts it."""
    if not values.is_sparse:
        return values.tensor_split(parts)
    cuts = torch.empty(len(values), device="meta").tensor_split(parts)
    return [values.narrow_copy(0, cut.storage_offset(), len(cut)) for cut in cuts]


def runs(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places where the runs of a sparse vector begin, and their lengths: int32, both."""
    (places,) = values.indices()
    first = torch.nonzero(places.diff(prepend=places[:1] - 2) != 1)[:, 0]
    lengths = first.diff(append=torch.tensor([len(places)]))
    return places[first].int(), lengths.int()


def of_runs(begins: Any, lengths: Any, values: torch.Tensor, length: int) -> torch.Tensor:
    """The sparse vector that has these runs."""
    before = lengths.cumsum(0) - lengths  # so many numbers lie in the runs before
    places = torch.arange(len(values)) + (begins - before).repeat_interleave(lengths)
    return vector(places, values, length)


def bytes_sent(values: torch.Tensor) -> int:
    """The bytes of a vector when it is sent."""
    parts = (*runs(values), values.values()) if values.is_sparse else (values,)
    return sum(part.nbytes for part in parts)
