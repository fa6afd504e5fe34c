"""pipeline_parallel: the layers are cut into stages, a worker for each; a batch flows through them
in microbatches, as on an assembly line.

A stage computes a microbatch forward and sends the activations on to the next stage; backwards it
gets their gradient from there, and sends that of its own input back. It keeps the activations of a
microbatch until the backward pass has been through. When all microbatches are back, every stage
applies its own gradients: parameters and their gradients never travel. With p stages and m
microbatches a stage waits for (p-1)/(m+p-1) of the time, the bubble: while the pipeline fills, and
while it drains. The order of work decides how much a stage must keep. With p = 2 and m = 4, f and b
are forward and backward:

    gpipe   stage 0   f0 f1 f2 f3 .. .. b0 b1 b2 b3    all forward, then all backward: at the peak a stage keeps m microbatches
            stage 1   .. f0 f1 f2 f3 b0 b1 b2 b3 ..
    1f1b    stage 0   f0 f1 .. b0 f2 b1 f3 b2 .. b3    one forward, one backward: stage k keeps p - k at most; the bubble is as long
            stage 1   .. f0 b0 f1 b1 f2 b2 f3 b3 ..

Emulated: of a step's device time, a stage takes 1/p, a microbatch there 1/m of that, a third of it
forward and two thirds backward, as the backward pass multiplies twice, for the gradient of the
inputs and for that of the weights. Source: Huang et al., "GPipe: Efficient Training of Giant Neural
Networks using Pipeline Parallelism", NeurIPS 2019; Narayanan et al., "Memory-Efficient
Pipeline-Parallel DNN Training", ICML 2021 (1F1B with one update for all microbatches:
PipeDream-Flush).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.strategies.evaluation import due
from course_lib.strategies.torch.devices import now, use
from course_lib.strategies.torch.multi_worker_mirrored import TIMEOUT
from course_lib.strategies.torch.stage import Stage
from course_lib.strategies.torch.training import variables_on
from course_lib.workloads.model import digest
from course_lib.workloads.torch import build, loss_of, weights_of

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def worker(task: Task) -> dict[str, Any]:
    """Train the stage of this worker. The last stage knows the loss and the accuracy; each returns
    the digest and the bytes of its own parameters.
    """
    spec, workload, device = task.spec, workloads.load(task.spec), use(task.device)
    dist.init_process_group("nccl" if task.backend == "nccl" else "gloo", timeout=TIMEOUT)
    layers = cut(build(workload, spec.seed), spec.workers)[task.index].to(device)
    stage = Stage(task, layers, device)
    # scales gradients by 1/m
    loss = _loop(task, workload, stage, SCHEDULES[spec.pipeline](stage, spec.microbatches, loss_of))
    result = {"digest": digest(weights_of(layers)), "variables_on": variables_on(layers)}
    right = accuracy(stage, workload)
    if not stage.is_last:
        return result
    return result | {"final_loss": loss, "test_accuracy": right, "parameters": workload.parameters}


def cut(model: Any, stages: int) -> list[Any]:
    """The model in `stages` pieces with as nearly as can be the same number of layers; what has no
    weights stays with the layer before it.
    """
    starts = [i for i, module in enumerate(model) if list(module.parameters())]
    firsts = [0] + [int(piece[0]) for piece in np.array_split(starts, stages)[1:]]
    return [
        torch.nn.Sequential(*model[a:b], Contiguous())
        for a, b in zip(firsts, [*firsts[1:], len(model)], strict=True)
    ]


class Contiguous(torch.nn.Module):
    """The same values in the order in which they are sent: a convolution may have laid them out in
    another.
    """

    def forward(self, activations: Any) -> Any:
        return activations.contiguous()


def _loop(task: Task, workload: workloads.Workload, stage: Stage, schedule: Any) -> float:
    """Run all steps and write them into the trace; the last loss, which only the last stage knows."""
    spec, losses = task.spec, [float("nan")]
    rate = spec.learning_rate or workload.learning_rate
    for n in range(spec.steps):
        # of the first stage; the others get theirs from the one before them
        inputs: tuple[Any, ...] = ()
        targets: dict[str, Any] = {}  # of the last stage
        with task.phase("read", n):
            indices = workload.batch(n, spec.seed, spec.batch)
            if stage.is_first:
                inputs = (torch.from_numpy(workload.x_train[indices]).to(stage.device),)
            if stage.is_last:
                targets = {
                    "target": torch.from_numpy(workload.y_train[indices]).to(stage.device),
                    "losses": losses,
                }
        stage.begin(n)
        schedule.step(*inputs, **targets, return_outputs=False)
        stage.wait()  # for the neighbours to have taken the last gradients
        with task.phase("apply", n):
            where = apply(stage, rate)
        task.update(n, f"stage {task.index}", where, read=n, written=n + 1)
        if stage.is_last:
            task.metric("loss", float(sum(losses) / len(losses)), n, (n + 1) * spec.batch)
        if due(spec, n + 1):
            right = accuracy(stage, workload)
            if stage.is_last:
                task.metric("accuracy", right, n, (n + 1) * spec.batch)
    return float(sum(losses) / len(losses))


def apply(stage: Stage, rate: float) -> str:
    """parameter -= rate * gradient, for the parameters of a stage; the device that did it."""
    with torch.no_grad():
        for parameter in stage.submod.parameters():
            parameter.sub_(parameter.grad, alpha=rate)
            parameter.grad = None
    now(stage.device)
    return str(parameter.device)


def accuracy(stage: Stage, workload: workloads.Workload) -> float:
    """The share of test images that the model gets right; all stages must call this together, and
    only the last one knows: NaN on the others.
    """
    output = through(stage, workload.x_test)
    return (
        float(np.mean(np.argmax(output, -1) == workload.y_test)) if stage.is_last else float("nan")
    )


def through(stage: Stage, images: Any) -> Any:
    """What the stages up to this one make of `images`: an array that each sends to the next."""
    received = [images]
    if not stage.is_first:
        dist.recv_object_list(received, src=stage.stage_index - 1)
    with torch.no_grad():
        output = stage.submod(torch.from_numpy(received[0]).to(stage.device)).cpu().numpy()
    if not stage.is_last:
        dist.send_object_list([output], dst=stage.stage_index + 1)
    return output
