"""PowerSGD by PyTorch's own hook: DistributedDataParallel hands each full bucket of gradients to a
function that replaces the all-reduce, and PyTorch brings one that does what `power_sgd.py` does.

The hook begins with a plain all-reduce for `WARM` steps, as the first gradients are the least
alike, and treats a bucket's gradients together. It takes no sparse gradients. Its state (Q and
errors) is its own: a run that goes on from a checkpoint begins it anew.

Source: `torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook`; Vogels et al., NeurIPS 2019.
"""

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from course_lib import strategy
from course_lib.torch import Step, join

RANK, WARM = 4, 2


@strategy()
def power_sgd_hook(task):
    join(task)
    step, workers = Step(task), task.spec.workers
    if any(getattr(module, "sparse", False) for module in step.model.modules()):
        raise ValueError("the hook takes no sparse gradients: make embeddings with sparse=False")
    ddp = DistributedDataParallel(step.model)
    state = PowerSGDState(
        None, matrix_approximation_rank=RANK, start_powerSGD_iter=WARM, min_compression_rate=1
    )
    ddp.register_comm_hook(state, powerSGD_hook)

    def loss_of(inputs, targets):
        return step.loss_of(ddp(inputs), targets)  # its backward pass exchanges the gradients

    while step.begin():
        inputs, targets = step.read(task.index, workers)  # (batch / workers, ...) each
        with step.computing():
            loss = step.backward(inputs, targets, forward=loss_of, alone=ddp.no_sync)
        with step.reducing():
            dist.all_reduce(loss)
            loss /= workers
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()
