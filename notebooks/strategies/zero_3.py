"""ZeRO stage 3: parameters are divided as well. A layer's parameters are gathered just before they
are used, forward and backward, and freed again.

Between two steps a worker holds 1/n of everything: 16/n bytes a parameter with AdamW. In a step it
also holds the layers that it is computing. The price is a third exchange: parameters are gathered
twice, and gradients scattered once (by an all-to-all and a sum), 3(n-1)/n S. Here nothing is
gathered ahead, so every layer waits for its parameters; `fully_sharded` hides most of that.

Source: Rajbhandari et al., "ZeRO", SC 2020 (arXiv:1910.02054), section 5.3.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from course_lib import strategy
from course_lib.torch import Step, join


@strategy(exact=True, wire="3(n-1)/n S")
def zero_3(task):
    join(task)
    step, workers = Step(task, holds=f"shard {task.index}"), task.spec.workers
    parameters = step.parameters
    step.parameters = [part_of(each, task) for each in parameters]  # what the optimizer updates
    step.own_state = {str(i): part for i, part in enumerate(step.parameters)}
    if task.spec.precision == "bfloat16":
        step.model.to(torch.bfloat16)
    parts = dict(zip(parameters, step.parameters))

    def gather(module, *_):
        with step.exchanging():
            for parameter in module.parameters(recurse=False):
                if parameter in parts and not parameter.untyped_storage().nbytes():
                    part = parts[parameter].to(parameter.dtype)
                    whole = part.new_empty(workers * len(part))
                    dist.all_gather_single(whole, part)
                    parameter.untyped_storage().resize_(parameter.nbytes)
                    parameter.data.copy_(whole[: parameter.numel()].view_as(parameter))

    def free(module, inputs, output):
        for tensor in output if isinstance(output, tuple) else (output,):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: gather(module))  # when the pass comes back
        for parameter in module.parameters(recurse=False):
            if parameter in parts:
                drop(parameter)

    def scatter(parameter):
        """Keep the mean of this worker's part of a gradient; the layer is done with."""
        part = parts[parameter]
        with step.exchanging():
            whole = pad(parameter.grad.flatten(), (0, -parameter.numel() % workers)) / workers
            came = torch.empty_like(whole)  # all workers' gradients of this part
            dist.all_to_all_single(came, whole)
            mine = came.view(workers, -1).sum(0)
        part.grad = mine.float() if part.grad is None else part.grad + mine  # with `accumulate`
        parameter.grad = None
        kept = [each.grad for each in step.parameters if each.grad is not None]
        step.census.note(gradients=sum(grad.numel() for grad in kept) * parameter.itemsize)
        drop(parameter)

    hooks = [module.register_forward_pre_hook(gather) for module in step.model.modules()]
    hooks += [module.register_forward_hook(free) for module in step.model.modules()]
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(scatter)
        drop(parameter)
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            dist.all_reduce(loss)
            loss /= workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    for module in step.model.modules():  # keep the whole model now, to save it
        gather(module)
    for hook in hooks:
        hook.remove()
    return step.result()


def drop(parameter):
    """Free a parameter's memory; its shape stays."""
    parameter.untyped_storage().resize_(0)


def part_of(tensor, task):
    """This worker's part of a tensor, in float32: (numbers / workers,), the last with zeros."""
    missing = -tensor.numel() % task.spec.workers
    whole = pad(tensor.detach().flatten(), (0, missing))
    return whole.chunk(task.spec.workers)[task.index].float().clone()
