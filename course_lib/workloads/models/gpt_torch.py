"""The model of `tiny_gpt` in PyTorch; `gpt_tensorflow` is the same in Keras, line by line."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention


def gpt(matrices: Sequence[np.ndarray], layers: int, heads: int) -> nn.Sequential:
    """Characters (batch, length) -> logits (batch, length, characters), with initial `matrices` in
    the order of `tiny_gpt.shapes`; length is at most the context.
    """
    (characters, width), (context, _) = matrices[0].shape, matrices[1].shape
    blocks = [Block(width, heads) for _ in range(layers)]
    logits = nn.Linear(width, characters, bias=False)
    model = nn.Sequential(
        Embedding(characters, context, width), *blocks, nn.Sequential(nn.LayerNorm(width), logits)
    )
    given = iter(matrices)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.copy_(torch.from_numpy(next(given)))
            elif isinstance(module, nn.Linear):  # of shape (outputs, inputs) here
                module.weight.copy_(torch.from_numpy(next(given).T))
                if module.bias is not None:
                    module.bias.zero_()
    return model


class Embedding(nn.Module):
    """A vector for each character and one for its place, added."""

    def __init__(self, characters: int, context: int, width: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(context, width)

    def forward(self, characters: Any) -> Any:
        places = torch.arange(characters.shape[1], device=characters.device)
        return self.characters(characters) + self.places(places)


class Block(nn.Module):
    """Attention to the characters so far, then two dense layers for each place; what either of them
    makes is added to its input.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_dense = nn.LayerNorm(width)
        self.wider = nn.Linear(width, 4 * width)
        self.back = nn.Linear(4 * width, width)

    def forward(self, values: Any) -> Any:
        values = values + self.attention(self.before_attention(values))
        return values + self.back(gelu(self.wider(self.before_dense(values))))

    def attention(self, values: Any) -> Any:
        """softmax(Q K^T / sqrt(size of a head)) V in each head, with no weight on what comes later
        than a place itself; Q, K and V are (batch, heads, length, size of a head). The heads are as
        many as there are in this process: tensor parallelism leaves some of them on each worker.
        """
        batch, length, width = values.shape
        shape = (batch, length, -1, 3, width // self.heads)
        queries, keys, later = self.queries_keys_values(values).view(shape).unbind(3)
        mixed = scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), later.transpose(1, 2), is_causal=True
        )
        return self.attended(mixed.transpose(1, 2).flatten(2))
