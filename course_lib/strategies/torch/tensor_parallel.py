"""tensor_parallel: layers are cut into pieces, a piece for each worker; all workers compute the
same batch, each its pieces of the layers.

Dense layers are cut in pairs, so that a pair needs one exchange only. With activations X, kernels A
and B, and two workers:

    A = [A1 A2]    by columns: worker k computes its own hidden units, H_k = relu(X A_k), alone
    B = [B1        by rows: the rows that belong to these units. H_k B_k has the shape of the whole
         B2]       output, which is the sum over the workers, H_1 B_1 + H_2 B_2: one all-reduce

Attention is cut in the same way: the layer that makes queries, keys and values by columns, so that
each worker has some of the heads, and the layer behind the heads by rows.

In the backward pass the gradient of a pair's input is a sum over the workers too; it is not needed
if nothing before the pair is trained. The gradient of a piece is complete where the piece is, so
each worker updates its own pieces: no gradient of a parameter is ever sent. What travels for a pair
of layers is its output, batch x output width numbers, and as many on the way back. The hidden width
between the two, where most parameters are, does not travel. What is not cut (the second layer's
bias, embeddings, normalisation) is whole on every worker, and all compute the same gradient for it,
with the same random numbers. Emulated device time is divided too: a worker with half of the weights
of all dense layers takes half of it.

`naive` cuts one pair by hand. `worker` leaves the cutting to PyTorch, for any number of pairs and
for attention: a plan names the layers (`pieces.py`).

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib.cluster.task import Task
from course_lib.strategies.torch.models import model_of
from course_lib.strategies.torch.pieces import COLUMNS, HEADS, ROWS, Heads, plan_of
from course_lib.strategies.torch.steps import TorchStep, join
from course_lib.strategies.torch.tensors import local


class Pair(torch.nn.Module):
    """This worker's pieces of a pair of layers. PyTorch keeps kernels transposed."""

    def __init__(self, first: torch.nn.Linear, second: torch.nn.Linear, k: int, of: int) -> None:
        super().__init__()

        def piece(whole: torch.Tensor, dim: int = 0) -> torch.nn.Parameter:
            return torch.nn.Parameter(whole.detach().tensor_split(of, dim)[k].clone())

        self.columns = piece(first.weight)  # (units / workers, features), a transposed A_k
        self.shift = piece(first.bias)  # (units / workers,)
        self.rows = piece(second.weight, dim=1)  # (classes, units / workers), a transposed B_k
        self.bias = second.bias  # (classes,), whole on every worker

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(inputs @ self.columns.T + self.shift)  # (batch, units / workers)
        return AddUp.apply(hidden @ self.rows.T) + self.bias  # (batch, classes)


class AddUp(torch.autograd.Function):
    """The sum over all workers. Each of its summands has the gradient of the sum."""

    @staticmethod
    def forward(context: Any, summand: torch.Tensor) -> torch.Tensor:
        total = summand.clone()  # (batch, classes)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient  # (batch, classes), the same on all workers


def naive(task: Task) -> dict[str, Any]:
    """Train this worker's pieces of the two layers of `digits`, on the whole of each batch.

    `start(naive, framework="torch", workers=2)` runs it.
    """
    join(task)
    first, _, second = model_of(task)  # 64 pixels, 64 hidden units, 10 classes
    pair = Pair(first, second, task.index, task.spec.workers)
    step = TorchStep(task, pair, holds=f"shard {task.index}")
    while step.begin():
        inputs, targets = step.read()  # (batch, features) and (batch,), the same on all workers
        with step.computing(1 / task.spec.workers):
            loss = step.backward(inputs, targets)
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()  # no gradient has travelled
        step.done(loss)
    return step.result()


def worker(task: Task) -> dict[str, Any]:
    """Train this worker's pieces of the layers, on the whole of each batch."""
    join(task)
    step = TorchStep(task, holds=f"shard {task.index}")
    plan = plan_of(step.model, step.workload.parallel)
    part = cut(step.model, plan, task.spec.workers, step.exchanging)
    while step.begin():
        inputs, targets = step.read()
        with step.computing(part):
            loss = step.backward(inputs, targets)  # the same on all workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()


def cut(
    model: Any,
    plan: dict[str, str],
    workers: int,
    exchanging: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> float:
    """Keep only this worker's pieces of the layers in a `plan`. Returns the part of the weights of
    all Linear layers that is left here.
    """
    torch.backends.mha.set_fastpath_enabled(False)  # that takes each weight for a whole one
    mesh = init_device_mesh(next(model.parameters()).device.type, (workers,))
    ways: dict[str, str] = {}
    for name, how in plan.items():
        if how == HEADS:
            model.set_submodule(name, Heads(model.get_submodule(name)))
            ways |= {f"{name}.projected": COLUMNS, f"{name}.out_proj": ROWS}
        else:
            ways[name] = how
    by_rows = [model.get_submodule(name) for name, how in ways.items() if how == ROWS]
    for layer in by_rows:
        layer.register_forward_pre_hook(partial(piece, mesh))
    styles = {
        COLUMNS: ColwiseParallel(),
        ROWS: RowwiseParallel(output_layouts=Partial(), use_local_output=False),
    }
    parallelize_module(model, mesh, {name: styles[how] for name, how in ways.items()})
    for layer in by_rows:
        layer.register_forward_hook(partial(add_up, exchanging))
    dense = [layer.weight for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    return sum(local(each).numel() for each in dense) / sum(each.numel() for each in dense)


def piece(mesh: Any, layer: Any, inputs: tuple[Any]) -> Any:
    """The hidden units that are here, as a shard of all; shards may differ by a unit."""
    (units,) = inputs
    shape = (*units.shape[:-1], layer.in_features)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(units, mesh, [Shard(-1)], shape=shape, stride=stride)


def add_up(exchanging: Callable[..., Any], layer: Any, inputs: Any, summand: Any) -> Any:
    """The all-reduce behind a layer that is cut by rows: each worker brings a summand, and all
    leave with the sum.
    """
    with exchanging():
        return summand.redistribute(placements=[Replicate()]).to_local()
