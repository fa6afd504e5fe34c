"""The answers of 12_models_in_pieces.ipynb, made by `make exercises`."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear


def gpipe(stages, microbatches):
    """For each stage its passes, in order."""
    forward = [("F", i) for i in range(microbatches)]
    backward = [("B", i) for i in range(microbatches)]
    return [forward + backward for _ in range(stages)]


def one_f_one_b(stages, microbatches):
    """For each stage its passes, in order."""
    orders = []
    for s in range(stages):
        ahead = min(stages - s - 1, microbatches)  # forward passes before it alternates
        order = [("F", i) for i in range(ahead)]
        for i in range(microbatches - ahead):
            order += [("F", ahead + i), ("B", i)]
        orders.append(order + [("B", i) for i in range(microbatches - ahead, microbatches)])
    return orders


class CopyToRanks(torch.autograd.Function):
    """Every rank goes on with x; backward, their gradients are added up."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class ColumnLinear(nn.Module):
    """This rank's part of the outputs of a linear layer."""

    def __init__(self, whole):
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        parts = {name: p.detach().chunk(ranks)[rank] for name, p in whole.named_parameters()}
        self.weight = nn.Parameter(parts["weight"].clone())
        self.bias = nn.Parameter(parts["bias"].clone()) if "bias" in parts else None

    def forward(self, x):
        return linear(CopyToRanks.apply(x), self.weight, self.bias)


class SumOverRanks(torch.autograd.Function):
    """The sum of what all ranks have; backward, every rank gets the gradient of the sum."""

    @staticmethod
    def forward(ctx, part):
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class RowLinear(nn.Module):
    """A linear layer of which this rank has a part of the inputs."""

    def __init__(self, whole):
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(whole.weight.detach().chunk(ranks, dim=1)[rank].clone())
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())

    def forward(self, share):
        total = SumOverRanks.apply(linear(share, self.weight))
        return total if self.bias is None else total + self.bias


def merge(top, weights, mixed, scores, values):
    """Add a block of keys and values; returns the new top, weights and mixed."""
    above = torch.maximum(top, scores.amax(1, keepdim=True))
    safe = above.masked_fill(above == -math.inf, 0.0)  # of a query that has seen nothing yet
    old, new = torch.exp(top - safe), torch.exp(scores - safe)
    return above, weights * old + new.sum(1, keepdim=True), mixed * old + new @ values
