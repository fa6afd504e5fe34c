"""fully_sharded: data parallelism without copies: every worker keeps 1/w of each layer's
parameters, and borrows the rest while it needs it.

Each worker computes its own share of the batch with the whole model, a layer at a time:

    forward     all-gather a layer's parameters, compute it, drop what is not mine
    backward    all-gather them again, compute their gradient, reduce-scatter it: worker k is left
                with the mean gradient of the part it keeps
    update      parameter -= rate * gradient, each worker its own part

All-gather: each worker brings its part, and all leave with the whole. Reduce-scatter: each brings
gradients of the whole, and leaves with the mean of one part. An all-reduce is a reduce-scatter and
an all-gather. S is the bytes of all parameters, which is also that of all gradients.

So a worker holds 1/w of the parameters, of the gradients and of whatever an optimizer keeps, and
for a moment whole layers: up to two, as it gathers the next one before it computes the present one.
The price is one all-gather more than data parallelism needs: each worker sends 3(w-1)/w S bytes in
a step, in place of 2(w-1)/w S. In 16 bits both gathers send half, and 2(w-1)/w S are left.

`naive` gathers the whole model once in a step, after the update, so it keeps a whole copy and sends
2(w-1)/w S: only the update and the optimizer's state are sharded (about ZeRO's stage 2). `worker`
uses PyTorch's FSDP, which goes layer by layer. Most exchanges can hide behind computing: a gather
behind the layer before, a reduce-scatter behind those that follow. With `overlap=False` a worker on
a CPU waits for each of its exchanges.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020 (its stage 3); Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
Parallel", VLDB 2023.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import vector_to_parameters

from course_lib.cluster.task import Task
from course_lib.strategies.torch.models import LOW, bytes_of, flat, storages
from course_lib.strategies.torch.steps import TorchStep, gradients_of, join


def naive(task: Task) -> dict[str, Any]:
    """Compute with the whole model; scatter the gradients, update the own part, gather the parts.

    `start(naive, framework="torch", workers=2)` runs it.
    """
    join(task)
    step, workers = TorchStep(task, holds=f"shard {task.index}"), task.spec.workers
    parameters = step.parameters
    padded = partial(pad, pad=(0, -sum(each.numel() for each in parameters) % workers))
    whole = padded(flat(parameters))  # (n,): all of them end to end, n a multiple of workers
    vector_to_parameters(whole, parameters)  # they become views of it
    part = whole.chunk(workers)[task.index].clone()  # (n / workers,)
    step.parameters = [part]  # those that the optimizer updates
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, features) and (...,)
        with step.computing():
            loss = step.backward(inputs, targets) / workers
        with step.reducing():
            gradient = padded(flat(gradients_of(step, parameters)))  # (n,)
            part.grad = torch.empty_like(part)  # (n / workers,)
            dist.reduce_scatter_single(part.grad, gradient / workers)  # my part of the mean
            dist.all_reduce(loss)  # the mean loss, to be recorded
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        with step.reducing():
            dist.all_gather_single(whole, part)  # for the next step, and to measure
        step.done(loss)
    return step.result()


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch, and keep its part of each layer."""
    join(task)
    step = TorchStep(task, holds=f"shard {task.index}")
    model, workers = step.model, task.spec.workers
    exchanges = shard(step, init_device_mesh(step.device.type, (workers,)))
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets, alone=partial(kept, model))
        with step.reducing():
            exchanges.wait()
            mean = loss / workers  # ()
            dist.all_reduce(mean)  # to know the loss, and what its sum is divided by
        with step.applying():
            if step.unscale(mean):
                step.optimizer.step()
        step.done(mean)
    model.set_reshard_after_forward(False)  # gathered once from here on, to measure and to sample
    return step.result()


def shard(step: TorchStep, mesh: Any) -> "Exchanges":
    """Spread the parameters of each layer over the workers of `mesh`.

    In 16 bits a worker keeps its part in float32 and rounds it before an all-gather. Gradients are
    float32 again before they are added up. (Autocast alone rounds parameters where they are used,
    and would keep those of all layers until the backward pass.)
    """
    model, parts = step.model, layers(step.model)
    low = LOW.get(step.spec.precision)
    rounded = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    # batch normalisation has float32 running means, and wants float32 parameters with them
    norms = [part for part in model.modules() if low and isinstance(part, _BatchNorm)]
    whole = dict.fromkeys([*norms, *parts, model])
    exchanges = Exchanges(step, whole)
    for layer in whole:
        policy = MixedPrecisionPolicy() if layer in norms or not low else rounded
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
        layer.set_custom_all_gather(Collective(exchanges, dist.all_gather_single))
        layer.set_custom_reduce_scatter(Collective(exchanges, dist.reduce_scatter_single))
    if step.spec.overlap:
        for layer, following in itertools.pairwise(parts):  # in backward FSDP prefetches by itself
            layer.set_modules_to_forward_prefetch([following])
    return exchanges


@contextlib.contextmanager
def kept(model: Any) -> Iterator[None]:
    """Add gradients up, unsharded, in the block; nothing is exchanged there."""
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


def layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The parts of a model that are gathered one after the other: its children with parameters,
    those of a list of blocks each by itself. None if some share a weight: it is then gathered as
    a whole.
    """
    every, parts = model.named_parameters(remove_duplicate=False), list[torch.nn.Module]()
    if len(list(every)) > len(list(model.parameters())):
        return []
    for child in model.children():
        blocks = isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict))
        parts += child.children() if blocks else [child]
    return [part for part in parts if list(part.parameters())]


# --- the exchanges, and the record of them ---


class Exchanges:
    """The exchanges of a step's `layers`, on CPUs beside computing.

    On a GPU FSDP starts each of its collective operations in a stream beside that of computing, and
    there they are part of `compute`. CPUs have no streams: there the operation is called
    asynchronously. FSDP waits by itself for the gathered parameters of a layer before it computes
    with them. It does not wait for the gradients that a reduce-scatter leaves, so whoever uses them
    has to.

    It keeps the reduce-scatters to be waited for, and what is borrowed for a moment beside the
    shards: layers that are gathered, gradients of whole layers, and the memory in which both are
    exchanged.
    """

    def __init__(self, step: TorchStep, layers: Iterable[nn.Module]) -> None:
        self.step, self.scatters = step, list[Exchange]()
        self.thread = ThreadPoolExecutor(1, "lockstep-exchange")  # notes when they are over
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
        shards = storages(each.grad for each in self.step.model.parameters())
        exchanged = {storage.data_ptr(): storage.nbytes() for storage in self.memory}
        here = storages(self.whole.values()) | exchanged
        return sum(count for address, count in here.items() if address not in shards)

    def note(self) -> None:
        """Note them, and the gradients of whole layers."""
        if self.step.census.open:
            whole = bytes_of(each.grad for each in self.whole.values())
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
        if output_tensor.is_cuda:  # FSDP calls it in a stream of its own
            return self.collective(output_tensor, input_tensor, **how)
        if not step.spec.overlap or (scatters and output_tensor.dtype != torch.float32):
            with step.exchanging():
                return self.collective(output_tensor, input_tensor, **how)
        over = step.exchange_begins()
        work = self.collective(output_tensor, input_tensor, **how | {"async_op": True})

        def finish() -> None:
            work.wait()
            over()

        exchange = Exchange(step, self.among.thread.submit(finish))
        if scatters:
            self.among.scatters.append(exchange)
        return exchange


class Exchange(dist.Work):
    """An exchange under way."""

    def __init__(self, step: TorchStep, outcome: Any) -> None:
        super().__init__()
        self.step, self.outcome = step, outcome

    def wait(self, *timeout: Any) -> bool:
        """Return when it is over. If it is not over yet, the `compute` phase ends here."""
        with nullcontext() if self.outcome.done() else self.step.held_up():
            self.outcome.result()
        return True
