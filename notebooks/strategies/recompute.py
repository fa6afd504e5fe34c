"""Recompute: a layer's activations are dropped after the forward pass, and computed once more when
the backward pass needs them.

The backward pass needs what every layer had computed, so all activations are kept until then: often
more than parameters, gradients and optimizer together. With recomputation only the inputs of each
block are kept. The price is a second forward pass, a third more computing. Numbers do not change,
also where dropout draws: PyTorch sets its random state back for the second pass.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016 (arXiv:1604.06174).
"""

import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from course_lib import strategy
from course_lib.torch import Step, join


@strategy(exact=True, wire="2(n-1)/n S")
def recompute(task):
    join(task)
    step, workers = Step(task), task.spec.workers
    for block in blocks_of(step.model):
        block.forward = recomputed(block.forward)
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)  # forward, and in it backward: forward again
        with step.reducing():
            for tensor in [parameter.grad for parameter in step.parameters] + [loss]:
                dist.all_reduce(tensor)
                tensor /= workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()


def blocks_of(model):
    """What is recomputed as one: the children of the first module that has several with weights of
    their own, such as the blocks of a transformer.
    """
    while True:
        children = [each for each in model.children() if any(True for _ in each.parameters())]
        if len(children) != 1:
            return children or [model]
        (model,) = children


def recomputed(forward):
    def keeps_its_inputs(*inputs):
        return checkpoint(forward, *inputs, use_reentrant=False)

    return keeps_its_inputs
