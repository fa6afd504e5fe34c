"""ZeRO stage 1: the optimizer's state is divided; every worker updates its part of each parameter.

With AdamW a parameter takes 16 bytes on every worker: in mixed precision 2 for its value, 2 for its
gradient, and 12 for the optimizer, which keeps the value in float32 and two moments. These 12 are
needed only where the parameter is updated. So each worker keeps them for 1/n of every parameter:
2 + 2 + 12/n bytes. It updates that part and sends it to the others. In float32 it is 4 + 4 + 12/n.

Each worker sends 3(n-1)/n S: an all-reduce of gradients, and an all-gather of new values.

Source: Rajbhandari et al., "ZeRO", SC 2020 (arXiv:1910.02054), section 5.1.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from course_lib import strategy
from course_lib.torch import Step, join


@strategy(exact=True, wire="3(n-1)/n S")
def zero_1(task):
    join(task)
    step, workers = Step(task, holds=f"shard {task.index}"), task.spec.workers
    parameters = step.parameters
    step.parameters = [part_of(each, task) for each in parameters]  # what the optimizer updates
    step.own_state = {str(i): part for i, part in enumerate(step.parameters)}
    if task.spec.precision == "bfloat16":
        step.model.to(torch.bfloat16)
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            for tensor in [parameter.grad for parameter in parameters] + [loss]:
                dist.all_reduce(tensor)
                tensor /= workers
            step.census.note(gradients=sum(each.grad.nbytes for each in parameters))
            for parameter, part in zip(parameters, step.parameters):
                part.grad, parameter.grad = part_of(parameter.grad, task), None
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        with step.reducing():
            for parameter, part in zip(parameters, step.parameters):
                gather(parameter, part, workers)
        step.done(loss)
    return step.result()


def part_of(tensor, task):
    """This worker's part of a tensor, in float32: (numbers / workers,), the last with zeros."""
    missing = -tensor.numel() % task.spec.workers
    whole = pad(tensor.detach().flatten(), (0, missing))
    return whole.chunk(task.spec.workers)[task.index].float().clone()


def gather(parameter, part, workers):
    """Put a parameter together from the parts of all workers, in its own precision."""
    part = part.to(parameter.dtype)
    whole = part.new_empty(workers * len(part))
    dist.all_gather_single(whole, part)
    parameter.data.copy_(whole[: parameter.numel()].view_as(parameter))
