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
The price is one all-gather more than an all-reduce has: each worker sends 3(w-1)/w S bytes in a
step, in place of 2(w-1)/w S. In 16 bits parameters travel as such, and 2(w-1)/w S are left.

`naive` takes the whole model for one layer. `worker` uses PyTorch's FSDP, which goes layer by
layer. All exchanges but the first gather and the last reduce-scatter can hide behind computing: a
gather behind the layer before, a reduce-scatter behind those that follow. With `overlap=False` a
worker on a CPU waits for each of its exchanges.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020 (its stage 3); Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
Parallel", VLDB 2023.
"""

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import pad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import vector_to_parameters

from course_lib.cluster.task import Task
from course_lib.strategies.torch.exchange import Collective, Exchanges
from course_lib.strategies.torch.models import LOW
from course_lib.strategies.torch.steps import TorchStep, gradients_of, join
from course_lib.strategies.torch.tensors import flat


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


def shard(step: TorchStep, mesh: Any) -> Exchanges:
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
        for layer, following in itertools.pairwise(parts):  # backward, FSDP does so by itself
            layer.set_modules_to_forward_prefetch([following])
    return exchanges


@contextlib.contextmanager
def kept(model: Any) -> Iterator[None]:
    """Backward passes in the block keep their gradients, whole, until one that exchanges."""
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
