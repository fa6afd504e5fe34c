"""Top-k gradients: each worker sends only the largest `SHARE` of its gradient, as pairs of place
and value, and adds what it did not send to its next gradient: error feedback.

Without that memory a parameter whose gradient is never among the largest is never trained, and
`top_k_forgetful` stops far from where one device would be. With it, small gradients add up until
their turn comes: what is sent late is not lost. An all-reduce cannot add such pairs, since each
worker has other places, so all gather those of all: the bytes grow with the workers.

Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018 (arXiv:1809.07599).
"""

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course_lib import strategy
from course_lib.torch import Step, join

SHARE = 0.01  # of the gradient; a value and its place take 8 bytes


@strategy(wire="0.02 (n-1) S")
def top_k(task):
    return train(task, remembers=True)


@strategy(wire="0.02 (n-1) S")
def top_k_forgetful(task):
    return train(task, remembers=False)


def train(task, remembers):
    join(task)
    step, workers = Step(task), task.spec.workers
    unsent = torch.zeros_like(parameters_to_vector(step.parameters))  # (parameters,)
    step.own_state = {"unsent": unsent}
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            for parameter in step.parameters:
                parameter.grad = parameter.grad.to_dense()
            gradient = parameters_to_vector([parameter.grad for parameter in step.parameters])
            gradient += unsent
            mean = average_of_largest(gradient, workers)
            if remembers:
                unsent.copy_(gradient)  # from which the largest are gone by now
            vector_to_parameters(mean, [parameter.grad for parameter in step.parameters])
            dist.all_reduce(loss)
            loss /= workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()


def average_of_largest(gradient, workers):
    """The mean of what all workers send, (parameters,); takes what this one sends out of its
    `gradient`.
    """
    places = gradient.abs().topk(max(1, int(SHARE * len(gradient)))).indices  # (k,)
    values = gradient[places]  # (k,)
    gradient[places] = 0.0
    all_places = [torch.empty_like(places, dtype=torch.int32) for _ in range(workers)]
    all_values = [torch.empty_like(values) for _ in range(workers)]
    dist.all_gather(all_places, places.int())
    dist.all_gather(all_values, values)
    mean = torch.zeros_like(gradient)
    for its_places, its_values in zip(all_places, all_values):
        mean.index_add_(0, its_places, its_values / workers)
    return mean
