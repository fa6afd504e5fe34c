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
for attention. A plan says for some modules, by name, how each is cut: a `torch.nn.Linear` by
`columns` or by `rows`, a `torch.nn.MultiheadAttention` by `heads`. All other modules stay whole.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import scaled_dot_product_attention

from course_lib.cluster.task import Task
from course_lib.strategies.torch.models import local, model_of, whole
from course_lib.strategies.torch.steps import TorchStep, join
from course_lib.workloads.workload import WAYS

COLUMNS, ROWS, HEADS = WAYS
ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Dropout)
"""Modules that may stand between two layers of a pair: they compute each hidden unit by itself."""


class Pair(nn.Module):
    """This worker's pieces of a pair of layers. PyTorch keeps kernels transposed."""

    def __init__(self, first: nn.Linear, second: nn.Linear, k: int, of: int) -> None:
        super().__init__()

        def piece(tensor: torch.Tensor, dim: int = 0) -> nn.Parameter:
            return nn.Parameter(tensor.detach().tensor_split(of, dim)[k].clone())

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
    mesh = init_device_mesh(step.device.type, (task.spec.workers,))
    part = cut(step.model, plan, mesh, step.exchanging)
    while step.begin():
        inputs, targets = step.read()  # (batch, features) and (batch,)
        with step.computing(part):
            loss = step.backward(inputs, targets)  # the same on all workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()


def cut(model: Any, plan: dict[str, str], mesh: Any, exchanging: Any = nullcontext) -> float:
    """Keep only this worker's pieces of the layers in a `plan`, which the workers of a `DeviceMesh`
    of one dimension share out. Returns the part of the weights of all Linear layers that is left
    here.
    """
    torch.backends.mha.set_fastpath_enabled(False)  # that takes each weight for a whole one
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
    dense = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]
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


# --- which layers are cut ---


def plan_of(model: nn.Module, given: Mapping[str, str]) -> dict[str, str]:
    """Module -> how it is cut: as a workload's `parallel` says, or else found in the model.

    Raises `ValueError` if the plan does not fit the model, or if nothing to cut is found.
    """
    plan = _resolved(model, given) if given else _usual(model)
    uses = Counter(each for module in model.modules() for each in module._parameters.values())
    for name in plan:
        if any(uses[each] > 1 for each in model.get_submodule(name).parameters()):
            text = "cut, they would be trained apart: name the others in parallel={...}"
            raise ValueError(f"{name} shares its weights with another module; {text}")
    if not plan:
        cure = 'Workload(..., parallel={"up": "columns", "down": "rows"}) names the layers to cut'
        text = "its model has no two Linear layers in a Sequential with nothing but activations "
        text += "between them, and no attention of PyTorch's own"
        raise ValueError(f"{text}: {cure}")
    return plan


def _usual(model: nn.Module) -> dict[str, str]:
    """Pairs of Linear layers in each Sequential, PyTorch's own transformer layers and attention."""
    plan: dict[str, str] = {}
    for name, module in model.named_modules():
        inside = f"{name}." if name else ""
        if isinstance(module, nn.Sequential):
            first = ""
            for child, layer in module.named_children():
                if isinstance(layer, nn.Linear):
                    if first:
                        plan |= {first: COLUMNS, inside + child: ROWS}
                    first = "" if first else inside + child
                elif not isinstance(layer, ELEMENTWISE):
                    first = ""
        elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
            plan |= {f"{inside}linear1": COLUMNS, f"{inside}linear2": ROWS}
        elif isinstance(module, nn.MultiheadAttention):
            elsewhere = name.endswith("multihead_attn")  # a decoder's attention to the encoder
            plan |= {name: HEADS} if plain(module) and not elsewhere else {}
    return plan


def _resolved(model: nn.Module, given: Mapping[str, str]) -> dict[str, str]:
    """A learner's plan with its patterns, such as `blocks.*.up`, replaced by names."""
    plan: dict[str, str] = {}
    for pattern, how in given.items():
        kind = nn.MultiheadAttention if how == HEADS else nn.Linear
        named = re.compile(re.escape(pattern).replace(r"\*", "[^.]*"))
        matching = {n: module for n, module in model.named_modules() if named.fullmatch(n)}
        for name, module in matching.items():
            if not isinstance(module, kind):
                text = f"{how} is a way to cut a torch.nn.{kind.__name__}"
                raise ValueError(f"{name} is a {type(module).__name__}, and {text}")
            plan[name] = how
        if not matching:
            there = ", ".join(n for n, module in model.named_modules() if isinstance(module, kind))
            has = f"its modules of type {kind.__name__}: {there}"
            raise ValueError(f"parallel names {pattern!r}, and no module is called so; {has}")
    if not {COLUMNS, HEADS} & set(plan.values()):
        raise ValueError("parallel cuts nothing by columns, and rows take what columns make")
    return plan


def units_of(model: nn.Module, plan: Mapping[str, str]) -> tuple[tuple[int, str], ...]:
    """Count what each layer can share out among workers: `((64, "hidden unit"), (2, "head"))`."""
    counted = {COLUMNS: ("out_features", "hidden unit"), HEADS: ("num_heads", "head")}
    layers = ((model.get_submodule(n), *counted[how]) for n, how in plan.items() if how in counted)
    return tuple((int(getattr(module, size)), unit) for module, size, unit in layers)


class Heads(nn.Module):
    """The same attention as a given `torch.nn.MultiheadAttention`, with the weights of each head
    side by side. So its two Linear layers, `projected` and `out_proj`, can be cut by columns and by
    rows, and each worker has some of the heads.

    It is called as the given one is, for the attention of a sequence to itself. In place of
    attention weights it returns None.
    """

    def __init__(self, given: nn.MultiheadAttention) -> None:
        super().__init__()
        if not plain(given):
            raise ValueError("attention with kdim, vdim, add_bias_kv or add_zero_attn stays whole")
        self.batch_first, self.dropout, self.size = given.batch_first, given.dropout, given.head_dim
        width, bias = given.embed_dim, given.in_proj_bias
        self.projected = nn.Linear(width, 3 * width, bias is not None, given.in_proj_weight.device)
        for kind in ("weight", "bias"):
            theirs = getattr(given, f"in_proj_{kind}")
            if theirs is not None:  # (3, heads, size) becomes (heads, 3, size)
                split = theirs.detach().unflatten(0, (3, -1, self.size)).transpose(0, 1)
                ours = nn.Parameter(split.flatten(0, 2).contiguous(), theirs.requires_grad)
                setattr(self.projected, kind, ours)
        self.register_state_dict_post_hook(as_given)
        self.out_proj = given.out_proj
        self.train(given.training)

    def forward(self, query: Any, key: Any, value: Any, **how: Any) -> Any:
        if query is not key or key is not value:
            raise ValueError("only the attention of a sequence to itself can be cut by heads")
        mask = additive(how.get("attn_mask"), query.dtype)
        padding = additive(how.get("key_padding_mask"), query.dtype)
        if padding is not None:  # (batch, keys), the same for all heads and queries
            padding = padding[:, None, None, :]
            mask = padding if mask is None else mask + padding
        inputs = query if self.batch_first else query.transpose(0, 1)
        split = self.projected(inputs).unflatten(-1, (-1, 3, self.size))  # -1: heads that are here
        queries, keys, values = (each.transpose(1, 2) for each in split.unbind(-2))
        chance = self.dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(queries, keys, values, mask, chance)
        outputs = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return outputs if self.batch_first else outputs.transpose(0, 1), None


def plain(attention: nn.MultiheadAttention) -> bool:
    """Check that queries, keys and values have the same width, and nothing is added to them."""
    other = attention.bias_k is not None or attention.add_zero_attn
    return attention._qkv_same_embed_dim and not other


def as_given(heads: Heads, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Turn the weights of `heads` in a state dict into those of the attention that it was made of.

    All workers must call it together.
    """
    for kind in ("weight", "bias"):
        if (ours := state.pop(f"{prefix}projected.{kind}", None)) is not None:
            split = whole(ours).unflatten(0, (-1, 3, heads.size)).transpose(0, 1)
            state[f"{prefix}in_proj_{kind}"] = split.flatten(0, 2)


def additive(mask: Any, dtype: Any) -> Any:
    """A mask to add to the inputs of softmax; of a boolean one, -inf where it is true."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
