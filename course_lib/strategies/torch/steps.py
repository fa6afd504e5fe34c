"""The training step in PyTorch, and the small functions that every page needs, such as gradient
descent.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from course_lib.cluster.task import Task
from course_lib.record.events import clock
from course_lib.strategies.optimizers import rates
from course_lib.strategies.steps import TrainingStep, fastest
from course_lib.strategies.torch import checkpoints, models
from course_lib.strategies.torch.device_time import DeviceClock, Layers
from course_lib.strategies.torch.tensors import (
    bytes_of,
    bytes_on,
    kept_for_backward,
    local,
    norm_over,
    scale,
    whole,
    zeros_in,
)
from course_lib.workloads.trees import cut, first_leaf
from course_lib.workloads.workload import Outputs

TIMEOUT = timedelta(seconds=60)
"""For how long a worker waits for another that neither answers nor is known to be gone."""


def join(task: Task) -> None:
    """Meet the other workers, at MASTER_ADDR and MASTER_PORT, which worker 0 serves."""
    dist.init_process_group("nccl" if task.backend == "nccl" else "gloo", timeout=TIMEOUT)


def gradients_of(step: "TorchStep", parameters: Sequence[nn.Parameter]) -> list[Any]:
    """Take away the gradients that backward passes have left in `parameters`, so that the next
    passes start from none.
    """
    gradients = [parameter.grad for parameter in parameters]
    if step.census.open:
        step.census.note(gradients=bytes_of(gradients))
    for parameter in parameters:
        parameter.grad = None
    return gradients


def norm_of(gradients: list[Any]) -> Any:
    """The norm over all of these gradients; of DTensors, over their shards on all tasks."""
    shards = [each for each in gradients if isinstance(each, DTensor)]
    others = [each for each in gradients if not isinstance(each, DTensor)]
    return norm_over([whole(norm_over(part)) for part in (shards, others) if part])


def norm_of_parts(gradients: list[Any]) -> Any:
    """The norm over the gradients of all workers, each of which has those of another part."""
    squares = norm_over(gradients) ** 2
    dist.all_reduce(squares)
    return squares.sqrt()


class TorchStep(TrainingStep):
    """A training step of this task's `model`, by default that of the run's workload.

    `mixed` makes a function compute in the run's precision. `replica`: what the task computes with,
    the model or a copy on another device. `holds`: which variables the task updates, `all` or its
    shard or stage; `device`: where it computes, if not where the model is; `outputs`: those of the
    whole model, if this one is a part of it.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module | None = None,
        holds: str = "all",
        device: Any = None,
        outputs: Outputs | None = None,
    ) -> None:
        self.model = self.replica = models.model_of(task) if model is None else model
        self._outputs = outputs
        self.workloads_model = self.model  # the whole one, also where `model` is a stage of it
        home = next(self.model.parameters()).device
        self.device = device or home
        super().__init__(task, [(holds, str(home))])
        self._layers = Layers(self.sleep)
        self._device_clock = DeviceClock() if self.device.type == "cuda" else None
        self._notes: list[list[Callable[[], None]]] = [[], []]  # of the last step, and of this one
        self._compare = models.loss_of(self.workload)
        self.mixed = models.mixed(task.spec.precision, self.device.type)
        self.rates = rates(task.spec)  # of each update

    def begin(self, number: int | None = None) -> bool:
        """Go on to step `number`, with its learning rate, and without the last one's gradients."""
        self._write()
        if super().begin(number):
            self.optimizer.zero_grad()
            models.set_rate(self.optimizer, self.rates[self.updates])
            return True
        self._write()
        return False

    def unscale(self, loss: Any, norm_of_all: Callable[[list[Any]], Any] = norm_of) -> bool:
        """Make the gradients ready for `optimizer.step()`; False if there is to be no update, as
        one of them is infinite or NaN in float16.

        `loss`: that of the global batch. If it is a sum and a count, the gradients are divided by
        the count; in float16 by the loss scale as well.
        `norm_of_all` returns the norm over the whole model, given this process's gradients.
        """
        gradients = gradients_of(self, self.parameters)
        mine = [local(gradient) for gradient in gradients]
        for tensor, gradient in zip(models.parameters_of(self.optimizer), mine, strict=True):
            tensor.grad = gradient
        if self.scale.on and not self.finite(float(norm_of_all(gradients)), zeros_in(mine)):
            return False
        divisor = models.count_of(loss) * self.scale.value
        if divisor != 1:
            scale(mine, 1 / divisor)
        return True

    def draw_as(self, share: int) -> None:
        super().draw_as(share)
        torch.default_generator.manual_seed(self.drawn)  # torch.manual_seed looks for GPUs: 0.4 ms
        if self.device.type == "cuda":
            torch.cuda.manual_seed(self.drawn)

    def loss_of(self, outputs: Any, targets: Any) -> Any:
        """The workload's loss in float32: the mean over the batch, shape (), or a sum and a count,
        shape (2,): see `models.loss_of`. In float16 its gradients will be multiplied by the loss
        scale.
        """
        if self.spec.precision == "float32":
            return self._compare(outputs, targets)
        loss = self._compare(models.wide(outputs), targets)
        if self.scale.on and loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * self.scale.value)
        return loss

    def tensors(self, indices: np.ndarray) -> tuple[Any, Any]:
        inputs, targets = self.workload.train.take(indices)
        return models.tensor(inputs, self.device), models.tensor(targets, self.device)

    def emulating(self) -> AbstractContextManager[None]:
        """Let the device time pass in the layers, by their FLOPs."""
        return self._layers.taking(self._owed)

    def backward(
        self,
        inputs: Any,
        targets: Any,
        forward: Callable[[Any, Any], Any] | None = None,
        alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Any:
        """The forward and the backward pass: the loss, as `loss_of` returns it, and each
        parameter's `grad`.

        With `accumulate`, one part of the examples after the other, so that the activations of one
        part are kept at a time; the gradients add up. Each part counts by its number of examples;
        all but the last are computed within `alone()`, where nothing is exchanged. `forward`: the
        loss for inputs and targets, if not that of the step's model.
        """
        forward = self.mixed(forward or (lambda x, y: self.loss_of(self.model(x), y)))
        count, total = self.spec.accumulate, 0.0
        if count == 1:
            with self._counting():
                loss = forward(inputs, targets)
            models.summed(loss).backward()
            return loss.detach()
        for number, (x, y) in enumerate(cut(torch.tensor_split, (inputs, targets), count), 1):
            with nullcontext() if number == count else alone():
                with self._counting():
                    loss = forward(x, y) * (len(first_leaf(x)) / len(first_leaf(inputs)))
                models.summed(loss).backward()  # adds to the gradients that are there
            total += loss.detach()
        return total

    def _counting(self) -> AbstractContextManager[None]:
        """Note the activations that a forward pass of the first step keeps."""
        if not self.census.open:
            return nullcontext()
        return kept_for_backward(self.replica, lambda count: self.census.note(activations=count))

    def done(self, loss: Any = None) -> None:
        super().done(None if loss is None else models.mean_of(loss))

    def outputs(self, inputs: Any) -> Any:
        if self._outputs:
            return self._outputs(inputs)
        return self.mixed(models.outputs_of)(self.model, inputs)

    def matmul_flops(self) -> float:
        size = 4096 if self.device.type == "cuda" else 512
        if self.device.type == "cpu":  # with all cores of the run: two may share one's arithmetic
            cores = min(self.task.files.facts.cores, self.spec.workers * self.task.threads)
            torch.set_num_threads(cores)
        matrix = torch.rand(size, size, device=self.device)

        def multiply() -> None:
            matrix @ matrix
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

        return fastest(multiply, size)

    def now(self) -> Any:
        return self._device_clock.moment() if self._device_clock else clock()

    def time(self, moment: Any) -> float:
        return self._device_clock.time(moment) if self._device_clock else float(moment)

    def later(self, note: Callable[[], None]) -> None:
        """Call it at once; on a GPU after the next step, when its moments surely are past."""
        if self._device_clock:
            self._notes[-1].append(note)
        else:
            note()

    def _write(self) -> None:
        """Record what the step before the last one left."""
        for note in self._notes.pop(0):
            note()
        self._notes.append([])

    def weights(self) -> list[np.ndarray]:
        """The model's weights, put together from all tasks where each holds a shard."""
        return models.weights_of(map(whole, self.model.parameters()))

    def named_weights(self) -> dict[str, np.ndarray]:
        named = self.workloads_model.state_dict(keep_vars=True)
        if self.model is not self.workloads_model:  # but a stage of it
            mine = set(map(id, self.model.state_dict(keep_vars=True).values()))
            named = {name: value for name, value in named.items() if id(value) in mine}
        values = {name: whole(value).cpu() for name, value in named.items()}
        half = torch.bfloat16  # which numpy does not have
        return {n: (v.float() if v.dtype == half else v).numpy() for n, v in values.items()}

    @functools.cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters of the model."""
        return models.trained(self.model)

    @functools.cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of what this process holds of the model's parameters: of a DTensor it
        updates the shard, as the first update of a DTensor takes up to half a second.
        """
        shards = (local(p).detach() if isinstance(p, DTensor) else p for p in self.parameters)
        return models.optimizer_of(self.spec, shards)

    def save_state(self, part: Path) -> None:
        checkpoints.save(self, part)

    def load_state(self, part: Path) -> None:
        if self.updates:
            models.begin_state(self.optimizer, self.updates)
        checkpoints.load(self, part)

    def variables_on(self) -> dict[str, int]:
        return bytes_on(self.model.parameters())

    def state_on(self) -> dict[str, int]:
        return bytes_on(models.state_of(self.optimizer))

    def held(self) -> dict[str, int]:
        held = super().held()
        held["buffers"] += bytes_of(self.model.buffers())
        return held
