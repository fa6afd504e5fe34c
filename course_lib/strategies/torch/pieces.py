"""Which layers of a model tensor parallelism cuts, and how.

A plan says for some modules, by name, how each is cut: a `torch.nn.Linear` by `columns` or by
`rows`, a `torch.nn.MultiheadAttention` by `heads`. All other modules stay whole on every worker.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from course_lib.strategies.torch.tensors import whole
from course_lib.workloads.workload import WAYS

COLUMNS, ROWS, HEADS = WAYS

ELEMENTWISE = (
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.LeakyReLU,
    nn.ELU,
    nn.Dropout,
    nn.Identity,
)
"""Modules that may stand between two layers of a pair: they compute each hidden unit by itself."""


def plan_of(model: nn.Module, given: Mapping[str, str]) -> dict[str, str]:
    """Module -> how it is cut: as a workload's `parallel` says, or else found in the model.

    Raises `ValueError` if the plan does not fit the model, or if nothing to cut is found.
    """
    plan = _resolved(model, given) if given else _found(model)
    uses = [id(each) for module in model.modules() for each in module._parameters.values()]
    shared = [
        name
        for name in plan
        if any(uses.count(id(each)) > 1 for each in model.get_submodule(name).parameters())
    ]
    if shared:
        text = "cut, they would be trained apart: name the others in parallel={...}"
        raise ValueError(f"{shared[0]} shares its weights with another module; {text}")
    if not plan:
        cure = 'Workload(..., parallel={"up": "columns", "down": "rows"}) names the layers to cut'
        text = "its model has no two Linear layers in a Sequential with nothing but activations "
        text += "between them, and no attention of PyTorch's own"
        raise ValueError(f"{text}: {cure}")
    return plan


def _found(model: nn.Module) -> dict[str, str]:
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
        matching = {
            name: module for name, module in model.named_modules() if _matches(name, pattern)
        }
        for name, module in matching.items():
            if not isinstance(module, kind):
                text = f"{how} is a way to cut a torch.nn.{kind.__name__}"
                raise ValueError(f"{name} is a {type(module).__name__}, and {text}")
            plan[name] = how
        if not matching:
            there = [name for name, module in model.named_modules() if isinstance(module, kind)]
            some = ", ".join(there[:6]) + ", ..." * (len(there) > 6)
            has = f"its modules of type {kind.__name__}: {some}"
            raise ValueError(f"parallel names {pattern!r}, and no module is called so; {has}")
    if not {COLUMNS, HEADS} & set(plan.values()):
        raise ValueError("parallel cuts nothing by columns, and rows take what columns make")
    return plan


def _matches(name: str, pattern: str) -> bool:
    """Match a name with a pattern, part by part between the dots."""
    ours, theirs = name.split("."), pattern.split(".")
    return len(ours) == len(theirs) and all(map(fnmatchcase, ours, theirs))


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

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # only says that `attn_mask` is the causal one
    ) -> Any:
        if query is not key or key is not value:
            raise ValueError("only the attention of a sequence to itself can be cut by heads")
        mask = additive(attn_mask, query.dtype)
        if key_padding_mask is not None:  # (batch, keys), the same for all heads and queries
            padding = additive(key_padding_mask, query.dtype)[:, None, None, :]
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
