"""Sequence parallelism: every worker has the whole model and a slice of each sequence.

Activations of a long sequence may not fit on one device, though the model does. So worker k of n
gets places k length/n to (k+1) length/n of every example. Dense layers and normalisation treat each
place by itself. Only attention looks at other places: an all-to-all before it gives each worker all
places of 1/n of the heads, and another one behind it gives the slices back. Gradients are averaged
as in data parallelism, since each worker has seen 1/n of the tokens.

An all-to-all sends (n-1)/n of what a worker has: for queries, keys, values and the mixed values, of
batch x length/n x width numbers each, forward and backward. n has to divide heads and length.

Source: Jacobs et al., "DeepSpeed Ulysses", 2023 (arXiv:2309.14509).
"""

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from course_lib import strategy
from course_lib.torch import Step, join


@strategy(exact=True, workers=(1, 2, 4))
def sequence_parallel(task):
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
    """What a model's forward pass calls does something else in it: attention exchanges, and
    `torch.arange`, by which a model numbers places, begins with the first place of the slice.
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
        if called is not scaled_dot_product_attention:
            return called(*inputs, **(how or {}))
        slices = [AllToAll.apply(each, 1, 2, self) for each in inputs[:3]]  # some heads, all places
        mixed = called(*slices, **(how or {}))  # (batch, heads / workers, length, size of a head)
        return AllToAll.apply(mixed, 2, 1, self)  # all heads, some places


class AllToAll(torch.autograd.Function):
    """Cut a tensor along one dimension, send each worker a piece, and join those that come along
    another dimension. Gradients go the way back.
    """

    @staticmethod
    def forward(context, tensor, cut, joined, mode):
        context.back = joined, cut, mode
        pieces = torch.stack(tensor.chunk(mode.task.spec.workers, cut))
        came = torch.empty_like(pieces)
        with mode.step.exchanging():
            dist.all_to_all_single(came, pieces)
        return torch.cat(list(came), joined)

    @staticmethod
    def backward(context, gradient):
        return AllToAll.forward(context, gradient, *context.back), None, None, None
