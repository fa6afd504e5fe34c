"""tensor_parallel: every layer is cut into pieces, a piece for each worker; all workers compute the
same batch, each its piece of every layer.

Two dense layers are cut so that they need one exchange between them. With activations X, kernels A
and B, and two workers:

    A = [A1 A2]    by columns: worker k computes its own hidden units, H_k = relu(X A_k), alone
    B = [B1        by rows: the rows that belong to these units. H_k B_k has the shape of the whole
         B2]       output, which is the sum over the workers, H_1 B_1 + H_2 B_2: one all-reduce

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

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib.cluster.task import Task
from course_lib.strategies.torch.steps import TorchStep, descend, join, model_of


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's pieces of the layers, on the whole of each batch."""
    join(task)
    model, workers = model_of(task), task.spec.workers
    step = TorchStep(task, model, f"shard {task.index}")
    step.model = model = cut(model, init_device_mesh(step.device.type, (workers,)), step)
    while step.begin():
        inputs, targets = step.read()
        with step.computing(part=1 / workers):
            loss = step.backward(inputs, targets)  # the same on all workers
        with step.applying():
            descend(step)
        step.done(loss.item())
    return step.result()


def cut(model: Any, mesh: Any, step: TorchStep) -> Any:
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
                layers.append(Sum(step))
    return parallelize_module(torch.nn.Sequential(*layers), mesh, plan)


class Sum(torch.nn.Module):
    """The all-reduce behind a layer that is cut by rows: each worker brings a summand, and all
    leave with the sum.
    """

    def __init__(self, step: TorchStep) -> None:
        super().__init__()
        self.step = step

    def forward(self, summand: Any) -> Any:
        with self.step.exchanging():
            return summand.redistribute(placements=[Replicate()]).to_local()
