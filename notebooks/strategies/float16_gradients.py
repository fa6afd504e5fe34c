"""Gradients travel in float16: half the bytes of an all-reduce in float32.

Ten bits of a number stay, so each gradient is wrong by up to one part in 2,000, and what is smaller
than 6e-8 becomes zero. Parameters, their update and all computing stay in float32: only the wire is
narrow. Sums are formed in float16 on the way, so their errors grow a little with the workers.

Source: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014, for the idea of coarse
gradients; PyTorch's `fp16_compress_hook` does the same in DistributedDataParallel.
"""

import torch
import torch.distributed as dist

from course_lib import strategy
from course_lib.torch import Step, join


@strategy(wire="2(n-1)/n S / 2")
def float16_gradients(task):
    join(task)
    step, workers = Step(task), task.spec.workers
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.reducing():
            for parameter in step.parameters:
                mean = parameter.grad.to_dense() / workers  # before the sum: 65,504 is the most
                dist.all_reduce(narrow := mean.to(torch.float16))
                parameter.grad = narrow.to(mean.dtype)  # wide again
            dist.all_reduce(loss)  # a number or two, in float32
            loss /= workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()
