"""ZeRO stage 2: optimizer state and gradients are divided. As soon as the backward pass has made a
gradient, it is reduce-scattered, and each worker keeps the mean of its own part.

So no worker ever holds all gradients: 2 + (2 + 12)/n bytes a parameter with AdamW in mixed
precision, 4 + (4 + 12)/n in float32. What remains of a gradient is a sum that every worker would
have formed anyway, so it costs nothing: a reduce-scatter and an all-gather are 2(n-1)/n S, the
bytes of an all-reduce. (Here the reduce-scatter is an all-to-all and a sum, since that of gloo
sends as many bytes as an all-reduce.)

Source: Rajbhandari et al., "ZeRO", SC 2020 (arXiv:1910.02054), section 5.2.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from course_lib import strategy
from course_lib.torch import Step, join


@strategy(exact=True, wire="2(n-1)/n S")
def zero_2(task):
    join(task)
    step, workers = Step(task, holds=f"shard {task.index}"), task.spec.workers
    parameters, kept = step.parameters, {}
    step.parameters = [part_of(each, task) for each in parameters]  # what the optimizer updates
    step.own_state = {str(i): part for i, part in enumerate(step.parameters)}
    if task.spec.precision == "bfloat16":
        step.model.to(torch.bfloat16)

    def scatter(parameter):
        """Keep the mean of this worker's part of a gradient, and nothing of the rest."""
        with step.exchanging():
            whole = pad(parameter.grad.flatten(), (0, -parameter.numel() % workers)) / workers
            came = torch.empty_like(whole)  # all workers' gradients of this part
            dist.all_to_all_single(came, whole)
            mine = came.view(workers, -1).sum(0)
        kept[parameter] = kept[parameter] + mine if parameter in kept else mine  # `accumulate`
        parameter.grad = None
        step.census.note(gradients=sum(gradient.nbytes for gradient in kept.values()))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(scatter)
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)  # which calls `scatter` for each parameter
        with step.reducing():
            dist.all_reduce(loss)
            loss /= workers
        with step.applying():
            for parameter, part in zip(parameters, step.parameters):  # wide gradients one by one
                part.grad = kept.pop(parameter).float()
                if step.unscale(loss, [part]):
                    step.optimizer.step()  # of those that have a gradient
                part.grad = None
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
