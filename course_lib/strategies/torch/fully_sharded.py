"""fully_sharded: data parallelism without copies: every worker keeps 1/w of each layer's
parameters, and borrows the rest while it needs it.

Each worker computes its own share of the batch with the whole model, a layer at a time:

    forward     all-gather a layer's parameters, compute it, drop what is not mine
    backward    all-gather them again, compute their gradient, reduce-scatter it: worker k is left with the mean gradient of the part it keeps
    update      parameter -= rate * gradient, each worker its own part

All-gather: each worker brings its part, and all leave with the whole. Reduce-scatter: each brings
gradients of the whole, and leaves with the mean of one part. An all-reduce is a reduce-scatter and
an all-gather. S is the bytes of all parameters, which is also that of all gradients.

A worker so holds 1/w of parameters, gradients and whatever an optimizer keeps, and for a moment
whole layers: one in the forward pass; up to two in the backward pass, where FSDP gathers the next
layer before it computes the present one. The price is one more all-gather than an all-reduce has:
3(w-1)/w S bytes sent by each worker in a step, in place of 2(w-1)/w S.

FSDP gathers ahead so that exchanges hide behind computing. Here they do not: on CPUs a worker waits
for each of its exchanges, and emulated device time is slept before the forward pass; on GPUs the
clock of this page waits for the device when an exchange begins and when it ends, which stops the
overlap for as long as it is measured this way. Source: Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", SC 2020 (its stage 3); Zhao et al.,
"PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.torch.devices import use
from course_lib.strategies.torch.multi_worker_mirrored import TIMEOUT
from course_lib.strategies.torch.sharded import Exchanges, train
from course_lib.workloads.torch import build, loss_of


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's share of each batch, and keep its part of each layer."""
    spec, workload, device = task.spec, workloads.load(task.spec), use(task.device)
    dist.init_process_group("nccl" if task.backend == "nccl" else "gloo", timeout=TIMEOUT)
    exchanges = Exchanges(device)
    model = shard(
        build(workload, spec.seed).to(device),
        init_device_mesh(device.type, (spec.workers,)),
        exchanges,
    )

    def gradients(images: Any, labels: Any) -> float:
        loss = loss_of(model(images), labels)
        loss.backward()
        mean = loss.detach() / spec.workers
        with exchanges.timed():
            dist.all_reduce(mean)  # to know the loss: the training itself has no need of it
        return float(mean.item())

    return train(task, workload, model, gradients, exchanges, share=(task.index, spec.workers))


def shard(model: Any, mesh: Any, exchanges: Exchanges) -> Any:
    """The same model, the parameters of each layer spread over the workers of `mesh`."""
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
            layer.set_custom_all_gather(Collective(dist.all_gather_into_tensor, exchanges))
            layer.set_custom_reduce_scatter(Collective(dist.reduce_scatter_tensor, exchanges))
    return fully_shard(model, mesh=mesh)


class Collective:
    """What FSDP does anyway when it exchanges something, with a note of when it began and ended."""

    def __init__(self, collective: Callable[..., Any], exchanges: Exchanges) -> None:
        self.collective, self.exchanges = collective, exchanges

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Memory for an exchange."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Any, input_tensor: Any, **how: Any) -> Any:
        """Exchange."""
        with self.exchanges.timed():
            return self.collective(output_tensor, input_tensor, **how)
