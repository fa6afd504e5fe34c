"""The model, the loss and the optimizer of a run in PyTorch, and tensors: which part of them lies
here, the memory that they take up, and sparse ones.

Weights start as given. Keras and PyTorch lay the same numbers out differently: a dense kernel
(inputs, outputs) is (outputs, inputs) here, a convolution's (height, width, inputs, outputs) is
(outputs, inputs, height, width), and images have their channels first.

In mixed precision `torch.autocast` decides for each operation whether it computes in 16 bits. It
casts the parameters that such an operation uses, so they themselves stay float32.
"""

import contextlib
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.spec.run_spec import RunSpec
from course_lib.strategies.optimizers import BETAS, EPSILON, MOMENTUM, STATE, WEIGHT_DECAY
from course_lib.workloads.examples import Tree, first_leaf, mapped
from course_lib.workloads.layers import Conv, Dense, Flatten, passed
from course_lib.workloads.workload import IGNORED, Workload, in_order

LOW: dict[str, Any] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def mixed(precision: str, device: str) -> Any:
    """A decorator: the function computes in this precision on this type of device."""
    if precision == "float32":
        return lambda function: function
    return torch.autocast(device, LOW[precision])


def wide(tensor: Tree) -> Tree:
    """A tensor, or a structure of tensors, in float32 where they have fewer bits."""
    if not isinstance(tensor, torch.Tensor):
        return mapped(wide, tensor)
    return tensor.float() if tensor.dtype in LOW.values() else tensor


def use(name: str) -> Any:
    """The `torch.device` of a task's `device` (`cpu`, `gpu:1`), which becomes the current one."""
    kind, _, index = name.partition(":")
    if kind != "gpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(index))
    torch.cuda.set_device(device)
    return device


# number of dimensions -> which goes where
_TO_TORCH: dict[int, tuple[int, ...]] = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
_FROM_TORCH: dict[int, tuple[int, ...]] = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}


def build(workload: Workload, seed: int) -> Any:
    """The model, a `torch.nn.Module` with the weights that every run of this seed starts from."""
    if not workload.layers:
        torch.manual_seed(seed)
        model = workload.built("torch", seed)
        if type(workload.train.take([0])[0]) in (tuple, dict) and isinstance(model, nn.Module):
            model.register_forward_pre_hook(handed_out, with_kwargs=True)
        return model
    model, weights = nn.Sequential(*_modules(workload)), workload.initial_weights(seed)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight).permute(_TO_TORCH[weight.ndim]))
    return model


def handed_out(model: nn.Module, given: Any, named: Any) -> Any:
    """Before a forward pass: a tuple of inputs becomes the arguments of `forward`, and a dict those
    of its names, if it can take them so.
    """
    inputs = given[0] if len(given) == 1 else None
    ways: dict[Any, Any] = {tuple: (inputs, named), dict: ((), inputs)}
    with contextlib.suppress(KeyError, TypeError):
        places, names = ways[type(inputs)]
        inspect.signature(model.forward).bind(*places, **names)
        return places, names
    return given, named


def rebuilt(workload: Workload, seed: int, weights: Mapping[str, np.ndarray]) -> Any:
    """The workload's `torch.nn.Module` with these weights and buffers, on the CPU, in evaluation
    mode.
    """
    with torch.random.fork_rng(devices=[]):  # the builder is seeded, whoever calls this is not
        module = build(workload, seed).eval()
    module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return module


def _modules(workload: Workload) -> Iterator[nn.Module]:
    if len(workload.input_shape) == 3:
        yield Transpose(0, 3, 1, 2)
    kernels = passed(workload.layers, workload.input_shape)
    for layer, (kernel, _) in zip(workload.layers, kernels, strict=True):
        match layer:
            case Flatten():
                yield Transpose(0, 2, 3, 1)  # so that the row of numbers is the one Keras makes
                yield nn.Flatten()
            case Dense():
                yield nn.Linear(*kernel)
            case Conv():
                yield nn.Conv2d(*kernel[2:], layer.size)
        if layer.relu:
            yield nn.ReLU()


class Transpose(nn.Module):
    """Reorders the dimensions of its input."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, images: Any) -> Any:
        return images.permute(self.order)


def weights_of(parameters: Iterable[torch.Tensor]) -> list[np.ndarray]:
    """The weights in the layout that all frameworks share."""
    values = (parameter.detach().float().cpu() for parameter in parameters)
    return [v.permute(_FROM_TORCH.get(v.ndim, tuple(range(v.ndim)))).numpy() for v in values]


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained: not those with `requires_grad=False`. One that two modules
    share is there once.
    """
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def mean_squared_error(outputs: Any, targets: Any) -> Any:
    """The mean of the squared differences of outputs and targets of the same shape."""
    if outputs.shape != targets.shape:  # PyTorch would compare each with each
        raise ValueError("outputs and targets must have the same shape")
    return nn.functional.mse_loss(outputs, targets)


def next_token(logits: Any, tokens: Any) -> tuple[Any, Any]:
    """The sum of the cross entropy over the places of logits (batch, length, classes) and tokens
    (batch, length), and how many places count: those whose token is not `IGNORED`.
    """
    logits, tokens = logits.flatten(0, 1), tokens.flatten()
    losses = nn.functional.cross_entropy(logits, tokens, ignore_index=IGNORED, reduction="sum")
    return losses, (tokens != IGNORED).sum()


_LOSSES = (nn.functional.cross_entropy, mean_squared_error, next_token)
LOSSES: dict[str, Callable[..., Any]] = {each.__name__: each for each in _LOSSES}


def loss_of(workload: Workload) -> Callable[..., Any]:
    """The workload's loss: of outputs and targets, the mean over the batch, shape (); or, if it is
    a (sum, count), both divided by how many numbers the first array of targets has, shape (2,).
    Batches are divided into pieces of one size, so the mean of what the pieces have is that of the
    whole, in either case.
    """
    compare = in_order(workload.loss, LOSSES)

    def loss(outputs: Any, targets: Any) -> Any:
        value = compare(outputs, targets)
        if not isinstance(value, tuple):
            return value.reshape(()) if value.dim() else value
        total, count = value
        count = torch.as_tensor(count).detach().to(total)
        return torch.stack([total.reshape(()), count.reshape(())]) / first_leaf(targets).numel()

    return loss


def counts(workload: Workload) -> bool:
    """Return whether the workload's loss may be a sum and a count."""
    return workload.loss not in ("cross_entropy", "mean_squared_error")


def pair(loss: Any) -> Any:
    """The loss as a sum and a count; a mean has the count 1."""
    return loss if loss.dim() else torch.stack([loss, torch.ones_like(loss)])


def summed(loss: Any) -> Any:
    """Return the number that the backward pass begins from: of a (sum, count) the sum."""
    return loss[0] if loss.dim() else loss


def count_of(loss: Any) -> float:
    """Return the divisor of a loss, and of the gradients of its sum: 1 for a mean."""
    return (float(loss[1]) or 1.0) if loss.dim() else 1.0


def optimizer_of(spec: RunSpec, tensors: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """PyTorch's own optimizer for a run, with `tensors` to update. One with a state changes what
    has no gradient too, so sparse gradients become dense for it.
    """
    adamw = partial(torch.optim.AdamW, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY)
    momentum = partial(torch.optim.SGD, momentum=MOMENTUM)
    kinds = {"sgd": torch.optim.SGD, "momentum": momentum, "adamw": adamw}
    optimizer = kinds[spec.optimizer]([{"params": list(tensors)}])  # which may be empty
    if STATE[spec.optimizer]:
        optimizer.register_step_pre_hook(_densify)
    return optimizer


def _densify(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None:
            parameter.grad = parameter.grad.to_dense()


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The tensors that an optimizer updates."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = float(rate)


def state_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The tensors of an optimizer's state that are as large as what it updates."""
    states = optimizer.state.values()
    return [tensor for state in states for key, tensor in state.items() if key != "step"]


def begin_state(optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Make an optimizer's state, to be filled with what it was after so many `updates`.

    PyTorch makes it in the first update; this one, with the rate 0, changes nothing.
    """
    set_rate(optimizer, 0)
    for parameter in parameters_of(optimizer):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for state in optimizer.state.values():
        if "step" in state:  # adamw counts updates
            state["step"].fill_(updates)


def outputs_of(model: nn.Module, inputs: Tree) -> Tree:
    """Compute a model's outputs when it is not being trained."""
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        outputs = mapped(lambda each: wide(each).cpu().numpy(), model(tensor(inputs, device)))
    model.train()
    return outputs


def tensor(values: Tree, device: Any = "cpu") -> Tree:
    """An array as a tensor on a device, or each array of a structure."""
    if not isinstance(values, np.ndarray):
        return mapped(lambda each: tensor(each, device), values)
    return torch.from_numpy(values if values.flags.carray else values.copy()).to(device)


def model_of(task: Task) -> Any:
    """The model of the task's run, on the task's device, with the weights that every run of its
    seed starts from.
    """
    return build(workloads.load(task.spec), task.spec.seed).to(use(task.device))


# --- tensors ---

# The numbers of a tensor lie in its storage, which it may share with other tensors, such as its
# views. The gradient of an embedding with `sparse=True` has the rows that were looked up, and no
# others. All else in it is zero.


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
        room = tensor.untyped_storage().nbytes()  # none, if a page has freed it
        counts[str(tensor.device)] += min(tensor.nbytes, room)
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


# --- sparse vectors ---

# Parameter servers cut all parameters, laid end to end, into pieces of equal length. There a sparse
# gradient is a sparse vector: the places of numbers, and the numbers. Those of a row follow each
# other, so it travels as runs: where a run begins, how long it is, and its numbers. That is 8 bytes
# a run and 4 a number. The vector of a model that has dense layers too is sparse as well, and each
# such layer is a run.


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
