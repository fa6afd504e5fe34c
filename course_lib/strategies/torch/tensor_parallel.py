"""tensor_parallel: every layer is cut into pieces, a piece for each worker; all workers compute the
same batch, each its piece of every layer.

Two dense layers are cut so that they need one exchange between them. With activations X, kernels A
and B, and two workers:

    A = [A1 A2]         by columns: worker k computes its own hidden units, H_k = relu(X A_k), and needs nobody for it
    B = [B1             by rows: the rows that belong to these units. H_k B_k has the shape of the whole output,
         B2]            and the output is the sum over the workers, H_1 B_1 + H_2 B_2: one all-reduce

Backwards nothing has to be exchanged for the first pair of layers; for a later one, the gradient of
its input is a sum over the workers too. The gradient of a piece is complete where the piece is, so
each worker updates its own: no gradient of a parameter is ever sent. What travels for a pair of
layers is its output, batch x output width numbers, and on the way back, for all pairs but the
first, the gradient of its input. The hidden width between the two, where most parameters are, does
not travel. The second layer's bias is whole on every worker: all compute the same gradient for it.
Each worker's device does 1/w of the work, so it takes 1/w of the emulated device time of a step.
Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.torch.devices import use
from course_lib.strategies.torch.multi_worker_mirrored import TIMEOUT
from course_lib.strategies.torch.sharded import Exchanges, train
from course_lib.workloads.torch import build, loss_of


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's pieces of the layers, on the whole of each batch."""
    spec, workload, device = task.spec, workloads.load(task.spec), use(task.device)
    dist.init_process_group("nccl" if task.backend == "nccl" else "gloo", timeout=TIMEOUT)
    exchanges = Exchanges(device)
    model = cut(
        build(workload, spec.seed).to(device),
        init_device_mesh(device.type, (spec.workers,)),
        exchanges,
    )

    def gradients(images: Any, labels: Any) -> float:
        loss = loss_of(model(images), labels)  # the same on all workers
        loss.backward()
        return float(loss.item())

    return train(task, workload, model, gradients, exchanges, work=1 / spec.workers)


def cut(model: Any, mesh: Any, exchanges: Exchanges) -> Any:
    """The same model, its dense layers cut over the workers of `mesh`: the first of each pair by
    columns, the second by rows, and then the sum.
    """
    layers: list[Any] = []
    plan: dict[str, Any] = {}
    for layer in model:
        layers.append(layer)
        if isinstance(layer, torch.nn.Linear):
            by_rows = len(plan) % 2 == 1
            name = str(len(layers) - 1)
            plan[name] = (
                RowwiseParallel(output_layouts=Partial(), use_local_output=False)
                if by_rows
                else ColwiseParallel(use_local_output=False)
            )
            if by_rows:
                layers.append(Sum(exchanges))
    return parallelize_module(torch.nn.Sequential(*layers), mesh, plan)


class Sum(torch.nn.Module):
    """The all-reduce behind a layer that is cut by rows: from a summand on each worker to the sum
    on all of them.
    """

    def __init__(self, exchanges: Exchanges) -> None:
        super().__init__()
        self.exchanges = exchanges

    def forward(self, summand: Any) -> Any:
        with self.exchanges.timed():
            return summand.redistribute(placements=[Replicate()]).to_local()
