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

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib.cluster.task import Task
from course_lib.strategies.torch.memory import local
from course_lib.strategies.torch.pieces import COLUMNS, HEADS, ROWS, Heads, plan_of
from course_lib.strategies.torch.steps import TorchStep, descend, join


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
            descend(step, loss)
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
