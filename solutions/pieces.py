"""The answers of 12_models_in_pieces.ipynb, made by `make exercises`."""

import math

import torch


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


def merge(top, weights, mixed, scores, values):
    """Add a block of keys and values; returns the new top, weights and mixed."""
    above = torch.maximum(top, scores.amax(1, keepdim=True))
    safe = above.masked_fill(above == -math.inf, 0.0)  # of a query that has seen nothing yet
    old, new = torch.exp(top - safe), torch.exp(scores - safe)
    return above, weights * old + new.sum(1, keepdim=True), mixed * old + new @ values
