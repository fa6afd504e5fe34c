"""Four orders of work for a pipeline, all by `torch.distributed.pipelining`: which worker computes
which microbatch when, and so how long workers wait.

With p workers and m microbatches, a worker waits while the pipeline fills and drains, for
(p-1)/(m+p-1) of the time: the bubble. `gpipe` computes all forward passes first, then all backward
passes. `one_f_one_b` alternates: the bubble is as long, but a worker keeps the activations of at
most p microbatches. `interleaved` gives each worker `ROUNDS` short stages in place of a long one,
so that the pipeline fills in less time, (p-1)/(ROUNDS m+p-1), and messages are as many times more.
`zero_bubble` also computes the gradients of weights later, when there is nothing else to do: the
worker before waits only for the gradient of the stage's input.

Source: Huang et al., "GPipe", NeurIPS 2019 (arXiv:1811.06965); Narayanan et al., SC 2021
(arXiv:2104.04473), section 2.2; Qi et al., "Zero Bubble", ICLR 2024 (arXiv:2401.10241).
"""

import torch.distributed as dist
from torch.distributed.pipelining import schedules

from course_lib import strategy
from course_lib.torch import Pipeline, join

ROUNDS = 2  # stages of a worker, where it has several


@strategy(exact=True, workers=(2, 4))
def gpipe(task):
    return train(task, schedules.ScheduleGPipe)


@strategy(exact=True, workers=(2, 4))
def one_f_one_b(task):
    return train(task, schedules.Schedule1F1B)


@strategy(exact=True, workers=(2, 4))
def interleaved(task):
    return train(task, schedules.ScheduleInterleaved1F1B, ROUNDS)


@strategy(exact=True, workers=(2, 4))
def zero_bubble(task):
    return train(task, schedules.ScheduleInterleavedZeroBubble, ROUNDS)


def train(task, schedule, rounds=1):
    join(task)
    workers = task.spec.workers
    pipeline = Pipeline(task, [*range(workers)] * rounds, schedule)  # worker 0 has stages 0, p, ...
    step = pipeline.step
    while step.begin():
        inputs, targets = step.read()  # the whole batch: (batch, ...) each
        loss = pipeline.compute(inputs, targets)  # (2,): a sum and a count, on the last worker
        with step.reducing():
            dist.broadcast(loss, src=workers - 1)
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()  # of the parameters of this worker's stages
        step.done(loss)
    return step.result()
