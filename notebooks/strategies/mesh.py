"""Workers in a mesh of up to three dimensions: `data` replicas of the model, each a pipeline of
`stages`, each of whose stages is cut across `tensor` workers.

Every dimension has its own traffic. Tensor parallelism adds up activations in each layer, and waits
for it; a pipeline sends activations once per stage; data parallelism averages gradients once per
step. So neighbours in the tensor dimension should share a host, where wires are fast. Ranks count
fastest in the last of `AXES`: by default workers 0 and 1 differ in the tensor dimension. Where the
workers are is up to the run's `hosts` and `placement`; `axes=BADLY` puts those neighbours on
different hosts.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021 (arXiv:2104.04473), section 3, "takeaways" 1 to 3.
"""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import ScheduleGPipe
from torch.distributed.tensor import DTensor

from course_lib import strategy
from course_lib.torch import Pipeline, cut, join, plan_of

AXES = ("data", "stages", "tensor")
BADLY = ("tensor", "stages", "data")


@strategy(exact=True, workers=(2, 4))
def data_tensor(task):
    return mesh(task, tensor=2)


@strategy(exact=True, workers=(2, 4))
def data_pipeline(task):
    return mesh(task, stages=2)


@strategy(exact=True, workers=(4, 8))
def three_d(task):
    return mesh(task, stages=2, tensor=2)


def mesh(task, stages=1, tensor=1, axes=AXES):
    join(task)
    data, rest = divmod(task.spec.workers, stages * tensor)
    if rest or not data:
        raise ValueError(f"{task.spec.workers} workers are no mesh of {stages} x {tensor}")
    sizes = {"data": data, "stages": stages, "tensor": tensor}
    device = task.device if task.backend == "nccl" else "cpu"
    ranks = init_device_mesh(device, [sizes[axis] for axis in axes], mesh_dim_names=axes)
    groups = {axis: ranks[axis].get_group() for axis in axes}
    pipeline = Pipeline(
        task, dist.get_process_group_ranks(groups["stages"]), ScheduleGPipe, groups["stages"]
    )
    step, part, replica = pipeline.step, 1.0, ranks.get_local_rank("data")
    if tensor > 1:
        plan = plan_of(step.workloads_model, step.workload.parallel)
        part = cut(step.workloads_model, plan, ranks["tensor"], step.exchanging)
        what = f"{step.holders[0][0]}, piece {ranks.get_local_rank('tensor')}"
        step.holders = [(what, str(step.device))]  # as the board names who holds what
    while step.begin():
        inputs, targets = step.read(replica, data)  # (batch / data, ...) each
        loss = pipeline.compute(inputs, targets, part, replica)  # (2,): on the last stage
        with step.reducing():
            dist.broadcast(loss, group=groups["stages"], group_src=stages - 1)
            here = [local(p.grad) for p in step.parameters]  # of this stage and piece
            for each in [*here, loss]:
                dist.all_reduce(each, group=groups["data"])
                each /= data
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss)
    return step.result()


def local(gradient):
    """The piece of a gradient that is here."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
