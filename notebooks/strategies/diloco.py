"""DiLoCo: workers train apart for `EVERY` steps, and the average of their changes is the gradient
of an outer optimizer, Nesterov's momentum.

Local SGD replaces the parameters by their average. DiLoCo takes a step towards it, longer than the
way there where several rounds agree on the direction. So it stays near one device for many more
local steps, and its inner optimizer may be AdamW, whose state stays at home. Each worker keeps two
more copies of the parameters: where the round began, and the outer momentum.

Source: Douillard et al., "DiLoCo", 2023 (arXiv:2311.08105), algorithm 1.
"""

import torch
import torch.distributed as dist

from course_lib import strategy
from course_lib.torch import Step, join

EVERY = 8
OUTER_RATE, MOMENTUM = 0.7, 0.9  # section 3 of the paper


@strategy(wire="2(n-1)/n S / 8")
def diloco(task):
    join(task)
    step = Step(task, apart=True)
    workers = task.spec.workers
    begun = [parameter.detach().clone() for parameter in step.parameters]  # the same on all workers
    speed = [torch.zeros_like(values) for values in begun]
    step.own_state = {f"begun.{i}": each for i, each in enumerate(begun)}
    step.own_state |= {f"speed.{i}": each for i, each in enumerate(speed)}
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        if (step.number + 1) % EVERY == 0:
            with step.reducing():
                for parameter, start, momentum in zip(step.parameters, begun, speed):
                    gradient = start - parameter.data  # the way back, so that it is descended
                    dist.all_reduce(gradient)
                    gradient /= workers
                    momentum.mul_(MOMENTUM).add_(gradient)
                    start -= OUTER_RATE * (gradient + MOMENTUM * momentum)
                    parameter.data.copy_(start)
        step.done(loss)
    return step.result()
