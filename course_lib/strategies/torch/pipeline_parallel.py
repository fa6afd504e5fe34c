"""pipeline_parallel: the layers are cut into stages, a worker for each; a batch flows through them
in microbatches, as on an assembly line.

A stage computes a microbatch forward and sends the activations on to the next stage. In the
backward pass it receives the gradient of its output from the next stage, and sends the gradient of
its input to the one before. It keeps the activations of a microbatch until that. When all
microbatches are back, every stage applies its own gradients: parameters and their gradients never
travel. A model is cut between modules each of which gets what the one before makes, and nothing
else: those of a `torch.nn.Sequential`, or those that the workload names as its `stages`.

With p stages and m microbatches a stage waits for (p-1)/(m+p-1) of the time, the bubble: while the
pipeline fills, and while it drains. The order of work decides how much a stage must keep. With
p = 2 and m = 4, f and b are forward and backward:

    gpipe   stage 0   f0 f1 f2 f3 .. .. b0 b1 b2 b3    all forward, then all backward:
            stage 1   .. f0 f1 f2 f3 b0 b1 b2 b3 ..    at the peak a stage keeps m microbatches
    1f1b    stage 0   f0 f1 .. b0 f2 b1 f3 b2 .. b3    one forward, one backward: stage k keeps
            stage 1   .. f0 b0 f1 b1 f2 b2 f3 b3 ..    p - k at most; the bubble is as long

`naive` is 1F1B by hand. `worker` leaves the order and the messages to PyTorch's pipelining.

Emulated device time: a stage takes 1/p of a step's, and a microbatch there 1/m of that. A third is
forward and two thirds are backward, which multiplies twice: for the inputs and for the weights. The
picture draws both alike; the bubble's share is the same.

Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
Parallelism", NeurIPS 2019; Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training",
ICML 2021 (1F1B with one update for all microbatches: PipeDream-Flush).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch.func import functional_call

from course_lib import workloads
from course_lib.cluster.task import Task
from course_lib.errors import trying
from course_lib.strategies.torch import models
from course_lib.strategies.torch.models import bytes_of, kept_for_backward, pair, trained
from course_lib.strategies.torch.steps import TorchStep, join

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
# results that each stage has of its own
KEPT = ("digest", "variables_on", "optimizer_state_on", "matmul_flops")
FORWARD, BACKWARD = 1 / 3, 2 / 3  # of the work for a microbatch


def naive(task: Task) -> dict[str, Any]:
    """Train this worker's stage by 1F1B; send activations on, and their gradients back.

    `start(naive, framework="torch", workers=2)` runs it, with a loss that is a mean.
    """
    join(task)
    k, last, m = task.index, task.spec.workers - 1, task.spec.accumulate
    step = StagesStep(task, range(last + 1))
    ahead = min(last - k, m)  # forward passes before the first backward pass
    share = 1 / (task.spec.workers * m)  # of the work of a step
    with torch.no_grad():  # to know their shape: (batch / m, width)
        before = torch.nn.Sequential(*step.stages[:k])
        activations = before(step.tensors(np.arange(task.spec.batch // m))[0])
    while step.begin():
        inputs, targets = (each.chunk(m) for each in step.read())  # m of (batch / m, features)
        kept, sent, loss = dict[int, Any](), list[Any](), torch.tensor(0.0)
        for n in range(m + ahead):
            if n < m:  # one forward
                x = receive(step, activations, k - 1).requires_grad_() if k > 0 else inputs[n]
                with step.computing(FORWARD * share):
                    y = step.model(x)  # (batch / m, width), of the last stage (batch / m, classes)
                    if k < last:
                        sent.append(dist.isend(y.detach(), k + 1))
                    else:
                        y = step.loss_of(y, targets[n]) / m  # ()
                        loss += y.detach()
                    kept[n] = x, y
            if n >= ahead:  # one backward
                x, y = kept.pop(n - ahead)
                gradient = receive(step, y, k + 1) if k < last else None  # (batch / m, width)
                with step.computing(BACKWARD * share):
                    y.backward(gradient)  # adds to the gradients of the stage's parameters
                if k > 0:
                    sent.append(dist.isend(x.grad, k - 1))
        for message in sent:
            message.wait()
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss if k == last else None)
    return of_stage(step)


def receive(step: TorchStep, like: torch.Tensor, source: int) -> torch.Tensor:
    """Receive a tensor of this shape from the stage before or behind this one."""
    tensor = torch.empty_like(like)
    with step.waiting():
        dist.recv(tensor, source)
    return tensor


def worker(task: Task) -> dict[str, Any]:
    """Train the stage of this worker; PyTorch sends and receives.

    The last stage knows the loss, and tells the others its count.
    """
    join(task)
    pipeline = Pipeline(task, range(task.spec.workers), SCHEDULES[task.spec.pipeline])
    step = pipeline.step
    while step.begin():
        inputs, targets = step.read()  # (batch, features) and (batch,), cut into m by PyTorch
        loss = pipeline.compute(inputs, targets)  # (2,)
        if models.counts(step.workload):
            with step.reducing():
                dist.broadcast(loss, src=task.spec.workers - 1)
        with step.applying():
            if step.unscale(loss):
                step.optimizer.step()
        step.done(loss if pipeline.last else None)
    return of_stage(step)


class StagesStep(TorchStep):
    """The training step of a worker that has some of all `stages` of the model: those with the
    numbers `mine`. For `owners` and `group` see `Pipeline`.
    """

    def __init__(self, task: Task, owners: Sequence[int], group: Any = None) -> None:
        workload, device = workloads.load(task.spec), models.use(task.device)
        model = models.build(workload, task.spec.seed)
        self.stages = cut(list(parts_of(model, workload.stages).values()), len(owners))
        self.mine = [number for number, owner in enumerate(owners) if owner == task.index]
        stages = torch.nn.Sequential(*(self.stages[number] for number in self.mine)).to(device)
        super().__init__(task, stages, f"stage {', '.join(map(str, self.mine))}")
        self.workloads_model, self.owners, self.group = model, owners, group
        for stage in stages:
            # in the run's precision, as activations are, and in the order in which they are sent
            stage.forward = partial(contiguous, self.mixed(stage.forward))

    def outputs(self, inputs: Any) -> Any:
        """Compute the outputs of the whole model, on every worker; all must call it together."""
        for number, owner in enumerate(self.owners):
            mine = number in self.mine
            passed = [models.outputs_of(self.stages[number], inputs) if mine else None]
            dist.broadcast_object_list(passed, src=owner, group=self.group)
            inputs = passed[0]  # of the next stage
        return inputs


def contiguous(forward: Any, values: Any) -> Any:
    return forward(values).contiguous()


class Pipeline:
    """The stages that this worker has of the run's model, and a schedule that drives them: a class
    of `torch.distributed.pipelining`.

    `owners`: for each stage, the rank of the worker that has it; `group`: the process group of all
    of these, if it is not that of all workers. `first`, `last`: whether the worker has that stage.
    The number of microbatches, m, is the run's `accumulate`.
    """

    def __init__(self, task: Task, owners: Sequence[int], schedule: Any, group: Any = None) -> None:
        self.step = StagesStep(task, owners, group)
        self.first, self.last = 0 in self.step.mine, len(owners) - 1 in self.step.mine
        self.part = 1.0  # of a stage's work that is done here
        self.kept: dict[Any, int] = {}  # (stage, microbatch) -> bytes of activations
        self._losses: list[torch.Tensor] = []  # of the microbatches
        stages = [Stage(self, number) for number in self.step.mine]
        several = issubclass(schedule, PipelineScheduleMulti)
        # it scales gradients by 1/m
        m = task.spec.accumulate
        self._schedule = schedule(stages if several else stages[0], m, self._compare)

    def _compare(self, outputs: Any, targets: Any) -> Any:
        loss = self.step.loss_of(outputs, targets)
        self._losses.append(pair(loss).detach())
        return models.summed(loss).clone()  # PyTorch detaches it in place, which no view allows

    def compute(self, inputs: Any, targets: Any, part: float = 1.0, share: int = 0) -> torch.Tensor:
        """Pass a batch through all stages and back, which leaves each parameter's gradient here.
        `part`: of a stage's work, if the stage is cut further; `share`: which of the batch, if each
        of several pipelines has one. Layers draw apart in each stage and share.
        Returns the loss as a sum and a count, (2,), where the last stage is; elsewhere ones.
        """
        step, self.part = self.step, part
        step.draw_as(share * len(step.stages) + min(step.mine))
        # only the first stage gets inputs and only the last one targets: the others get activations
        given = (inputs,) if self.first else ()
        ends = {"target": targets} if self.last else {}
        self._schedule.step(*given, **ends, return_outputs=False)
        step.waited()  # for the neighbours to take the last gradients
        # before the first step PyTorch calls `compare` once more, to see the shapes
        mine = self._losses[-step.spec.accumulate :] or [torch.ones(2, device=step.device)]
        self._losses = []
        return torch.stack(mine).mean(0)  # (m, 2) becomes (2,)


def of_stage(step: TorchStep) -> dict[str, Any]:
    """The result of a stage; all but the last know only the digest and the bytes of their own."""
    last = step.task.index == step.spec.workers - 1
    return {key: value for key, value in step.result().items() if last or key in KEPT}


def parts_of(model: torch.nn.Module, names: Sequence[str] = ()) -> dict[str, torch.nn.Module]:
    """The parts between which a model can be cut, by name: the modules that a workload names as its
    `stages`, or those of a `torch.nn.Sequential`. Raises `ValueError` if there are none.
    """
    if names:
        with trying("its stages are not all modules of its model"):
            return {name: model.get_submodule(name) for name in names}
    if not isinstance(model, torch.nn.Sequential):
        cure = 'Workload(..., stages=["embed", "blocks.0", ...]) names the modules to cut between'
        raise ValueError(f"its model is no torch.nn.Sequential: {cure}")
    return dict(model._modules)


def cut(parts: list[Any], stages: int) -> list[Any]:
    """The parts of a model in `stages` pieces of as equal a number of them as possible; what has no
    weights to train stays with the part before it. Raises `ValueError` if there are too few.
    """
    starts = [i for i, part in enumerate(parts) if trained(part)]
    if len(starts) < stages:
        raise ValueError(f"{stages} stages need as many parts with weights; it has {len(starts)}")
    firsts = [0] + [int(piece[0]) for piece in np.array_split(starts, stages)[1:]]
    ends = [*firsts[1:], len(parts)]
    return [torch.nn.Sequential(*parts[a:b]) for a, b in zip(firsts, ends, strict=True)]


class Stage(PipelineStage):
    """PyTorch's stage, which a schedule drives, with a record of what it does.

    A phase `compute` is one microbatch, forward or backward. After each of them the metric
    `activations` says how many bytes are kept for later backward passes, over all microbatches.
    Buffers to receive into are not counted in it: PyTorch has one for each microbatch, with any
    schedule.
    """

    def __init__(self, pipeline: Pipeline, number: int) -> None:
        self.pipeline, self.step, self.kept = pipeline, pipeline.step, pipeline.kept
        stages, group = self.step.stages, self.step.group
        super().__init__(stages[number], number, len(stages), self.step.device, group=group)

    def _compute_outputs(self, *args: Any, module: torch.nn.Module, **kwargs: Any) -> Any:
        """Called by PyTorch before the first step, with memory that may hold anything, to see the
        shapes. It must not move the statistics of batch normalisation, which are copied for it, nor
        draw random numbers that the first step would draw.
        """
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            return functional_call(module, buffers, args, kwargs)

    def forward_one_chunk(self, microbatch: int, *args: Any, **kwargs: Any) -> Any:
        """Called by the schedule when the activations of a microbatch are here."""
        note = partial(self.kept.__setitem__, (self.stage_index, microbatch))
        with self._chunk(FORWARD), kept_for_backward(self.submod, note):
            return super().forward_one_chunk(microbatch, *args, **kwargs)

    def backward_one_chunk(
        self, microbatch: int, *args: Any, full_backward: bool = True, **kwargs: Any
    ) -> None:
        """Called by the schedule when the gradient of a microbatch's output is here. If it is not
        the `full_backward`, only the gradient of the stage's input follows from it now, which the
        first stage does not need.
        """
        inputs = 0.0 if self.is_first else BACKWARD / 2
        with self._chunk(BACKWARD if full_backward else inputs):
            super().backward_one_chunk(microbatch, *args, full_backward=full_backward, **kwargs)
            if full_backward:
                del self.kept[self.stage_index, microbatch]
            into = [info.buffer for infos in self.grad_recv_info.values() for info in infos]
            self.step.census.note(exchange=bytes_of(into))

    def backward_weight_one_chunk(self, microbatch: int, *args: Any, **kwargs: Any) -> None:
        """Called by the schedule for the rest of a backward pass: the gradients of weights."""
        with self._chunk(BACKWARD if self.is_first else BACKWARD / 2):
            super().backward_weight_one_chunk(microbatch, *args, **kwargs)
            del self.kept[self.stage_index, microbatch]

    @contextmanager
    def _chunk(self, part: float) -> Iterator[None]:
        step = self.step
        step.waited()
        part *= self.pipeline.part / (self.num_stages * step.spec.accumulate)
        with step.computing(part):
            yield
        step.task.metric("activations", sum(self.kept.values()), step.number, step.samples)
