"""The answers of 03_data_parallel.ipynb, made by `make exercises`."""

import torch
import torch.distributed as dist


def my_broadcast(module):
    """Give the module on every rank the weights and buffers of rank 0."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor, src=0)


def my_average(gradient):
    """Replace a gradient by its mean over all ranks, in place."""
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()


class DataParallel:
    """A model whose replicas, one on each rank, take the same steps."""

    def __init__(self, module):
        self.module = module
        my_broadcast(module)

    def __call__(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish(self):
        """Average the gradients; between backward and the optimizer's step."""
        for p in self.module.parameters():
            my_average(p.grad)


class CarefulDataParallel(DataParallel):
    """As DataParallel, for models with frozen, tied and unused weights."""

    def finish(self):
        for p in self.module.parameters():
            if p.requires_grad:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                my_average(p.grad)
