"""Local SGD: workers train apart, and every `EVERY` steps they average their parameters.

Between two averages nobody sends anything, and nobody waits. So the bytes of an all-reduce are paid
once in `EVERY` steps. The price: meanwhile the replicas drift apart, each towards its own share of
the data, and the average of their parameters is not where one device would be.

Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019 (arXiv:1805.09767).
"""

import torch.distributed as dist

from course_lib import strategy
from course_lib.torch import Step, join

EVERY = 8


@strategy(wire="2(n-1)/n S / 8")
def local_sgd(task):
    join(task)
    step = Step(task, apart=True)  # each replica goes its own way for a while
    workers = task.spec.workers
    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets)
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()  # with the gradients of this worker alone
        if (step.number + 1) % EVERY == 0:
            with step.reducing():
                for parameter in step.parameters:
                    dist.all_reduce(parameter.data)
                    parameter.data /= workers
        step.done(loss)
    return step.result()
