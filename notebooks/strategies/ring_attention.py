"""Ring attention: every worker has a slice of each sequence, and keys and values travel in a ring.

As in `sequence_parallel`, only attention needs other places. Here queries stay; keys and values
pass from worker to worker, and after n-1 hops each has met all; n need not divide the heads. The
softmax over all places is put together from blocks: each block's sum of weights and weighted values
are scaled to the largest score so far (the "online softmax" of Milakov and Gimelshein, 2018).

A worker sends 2 (n-1) x batch x length/n x width numbers forward and as many backward. What lies
in the future of a query is computed and then masked, so half of the work on scores is in vain. For
the backward pass PyTorch keeps every block here; the paper computes blocks anew, and so holds keys
and values of one slice at a time.

Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
Context", 2023 (arXiv:2310.01889).
"""

import math

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from course_lib import strategy
from course_lib.torch import Step, join


@strategy(exact=True, workers=(1, 2, 4))
def ring_attention(task):
    join(task)
    step, workers = Step(task), task.spec.workers
    while step.begin():
        slices = [slice_of(each, task) for each in step.read()]  # (batch, length / workers) each
        with step.computing(1 / workers), Sliced(task, step):
            loss = step.backward(*slices)
        with step.reducing():
            for tensor in [parameter.grad for parameter in step.parameters] + [loss]:
                dist.all_reduce(tensor)
                tensor /= workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()


def slice_of(tensor, task):
    """This worker's places of each sequence: (batch, length / workers)."""
    if tensor.dim() < 2 or tensor.is_floating_point() or tensor.shape[1] % task.spec.workers:
        shape, n = tuple(tensor.shape), task.spec.workers
        raise ValueError(f"{shape}: sequences of tokens are needed, of a length that {n} divides")
    return tensor.chunk(task.spec.workers, 1)[task.index]


class Sliced(TorchFunctionMode):
    """What a model's forward pass calls does something else in it: attention goes round the ring,
    and `torch.arange`, by which a model numbers places, begins with the first place of the slice.
    """

    def __init__(self, task, step):
        self.task, self.step, self.seen = task, step, set()

    def __exit__(self, *error):
        super().__exit__(*error)
        if not error[0] and len(self.seen) < 2:
            raise ValueError(
                "a model is needed that calls scaled_dot_product_attention, and torch.arange for "
                "the numbers of places"
            )

    def __torch_function__(self, called, types, inputs=(), how=None):
        self.seen |= {called} & {torch.arange, scaled_dot_product_attention}
        if called is torch.arange:
            return called(*inputs, **(how or {})) + self.task.index * inputs[0]
        if called is scaled_dot_product_attention:
            return self.attention(*inputs, **(how or {}))
        return called(*inputs, **(how or {}))

    def attention(self, queries, keys, values, is_causal=False):
        """softmax(Q K^T / sqrt(size)) V; all of shape (batch, heads, length / workers, size)."""
        k, n, part = self.task.index, self.task.spec.workers, queries.shape[2]
        row, column = torch.arange(part)[:, None] + k * part, torch.arange(part)
        top = torch.full((*queries.shape[:3], 1), -math.inf)  # the largest score so far
        weights = mixed = 0.0  # their sum, and that of weighted values
        for hop in range(n):
            owner = (k - hop) % n  # whose keys and values are here now
            scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])
            if is_causal:
                scores = scores.masked_fill(column + owner * part > row, -math.inf)
            above = torch.maximum(top, scores.detach().amax(3, keepdim=True))
            old, new = torch.exp(top - above), torch.exp(scores - above)
            weights, mixed = weights * old + new.sum(3, keepdim=True), mixed * old + new @ values
            top = above
            if hop < n - 1:
                keys, values = Hop.apply(torch.stack([keys, values]), self)
        return mixed / weights


class Hop(torch.autograd.Function):
    """Send a tensor to the next worker, receive one from the worker before. Gradients go back."""

    @staticmethod
    def forward(context, tensor, mode, way=1):
        context.mode = mode
        k, n = mode.task.index, mode.task.spec.workers
        came = torch.empty_like(tensor)
        with mode.step.exchanging():
            sent = dist.isend(tensor.contiguous(), (k + way) % n)
            dist.recv(came, (k - way) % n)
            sent.wait()
        return came

    @staticmethod
    def backward(context, gradient):
        return Hop.forward(context, gradient, context.mode, -1), None
