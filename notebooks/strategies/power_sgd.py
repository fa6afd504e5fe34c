"""PowerSGD: the gradient of a matrix is sent as two thin ones, whose product comes near to it.

A gradient M of n x m numbers is multiplied by a thin Q of m x `RANK`: P = M Q. Workers average P,
make its columns orthogonal, and average Q = M^T P. Then P Q^T is the part of the mean gradient that
lies in `RANK` directions: one step of the power method, which goes on in the next step from the
same Q. Both are sums, so an all-reduce adds them, unlike the pairs of top-k. What was left out is
added to the next gradient. Vectors, such as biases, are sent whole.

Source: Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019 (arXiv:1905.13727), algorithms 1, 2.
"""

import torch
import torch.distributed as dist

from course_lib import strategy
from course_lib.torch import Step, join

RANK = 4


@strategy()
def power_sgd(task):
    join(task)
    step, workers = Step(task), task.spec.workers
    matrices = [i for i, parameter in enumerate(step.parameters) if parameter.dim() > 1]
    torch.manual_seed(task.spec.seed)  # the same Q on all workers
    left_out = {i: torch.zeros_like(step.parameters[i]).flatten(1) for i in matrices}
    q = {i: torch.randn(m.shape[1], min(RANK, *m.shape)).to(m) for i, m in left_out.items()}
    step.own_state = {f"q.{i}": each for i, each in q.items()}
    step.own_state |= {f"left_out.{i}": each for i, each in left_out.items()}
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            for i, parameter in enumerate(step.parameters):
                if i in q:
                    gradient = parameter.grad.to_dense().flatten(1) + left_out[i]  # (n, m)
                    p = averaged(gradient @ q[i], workers)  # (n, RANK)
                    p = torch.linalg.qr(p).Q  # orthogonal columns
                    q[i].copy_(averaged(gradient.T @ p, workers))  # (m, RANK)
                    left_out[i].copy_(gradient - p @ q[i].T)
                    parameter.grad = (p @ q[i].T).view_as(parameter)
                else:
                    averaged(parameter.grad, workers)
            averaged(loss, workers)
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()


def averaged(tensor, workers):
    """The mean over all workers, in place."""
    dist.all_reduce(tensor)
    tensor /= workers
    return tensor
