"""The training step in PyTorch, its emulated device time, its checkpoints, and the small functions
that every page needs.

A checkpoint is saved with `torch.distributed.checkpoint` (DCP). All tasks give DCP what they hold,
by name. What several hold, the first of them writes; a shard of a DTensor is known as that piece of
the whole. So it can be read by other shards as well, and by tasks that hold the whole: all
synchronous strategies go on from each other's checkpoints. A replica that was not there then takes
the buffers of the first worker.
"""

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import get_total_norm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from course_lib.cluster.task import Task
from course_lib.record.events import clock
from course_lib.strategies.optimizers import rates
from course_lib.strategies.steps import TrainingStep, fastest
from course_lib.strategies.torch import models
from course_lib.strategies.torch.models import bytes_of, local, scale, whole
from course_lib.workloads.examples import cut, first_leaf

TIMEOUT = timedelta(seconds=60)
"""For how long a worker waits for another that neither answers nor is known to be gone."""

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention
# PyTorch's table lacks the kernel of attention on CPUs
FLOPS = {**flop_registry}
FLOPS[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu] = flop_registry[ATTENTION]


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


class TorchStep(TrainingStep):
    """A training step of this task's `model`, by default that of the run's workload.

    `mixed` makes a function compute in the run's precision. `replica`: what the task computes with,
    on its `device`: the model or a copy. `holds`: which variables the task updates, `all` or its
    shard or stage. `own_state`: tensors of a page's own, by name, that its next step depends on
    besides model and optimizer; a checkpoint holds each worker's.
    """

    def __init__(
        self, task: Task, model: Any = None, holds: str = "all", apart: bool = False
    ) -> None:
        self.apart, self.own_state = apart, dict[str, torch.Tensor]()
        self.model = self.replica = models.model_of(task) if model is None else model
        self.workloads_model = self.model  # the whole one, also where `model` is a stage of it
        self.device = models.use(task.device)
        super().__init__(task, [(holds, str(next(self.model.parameters()).device))])
        self._layers = Layers(self.sleep)
        self._compare = models.loss_of(self.workload)
        self.mixed = models.mixed(task.spec.precision, self.device.type)
        self.rates = rates(task.spec)  # of each update

    def begin(self, number: int | None = None) -> bool:
        """Go on to step `number`, with its learning rate, and without the last one's gradients."""
        if going_on := super().begin(number):
            self.optimizer.zero_grad()
            models.set_rate(self.optimizer, self.rates[self.updates])
        return going_on

    def unscale(self, loss: Any, tensors: Sequence[Any] = ()) -> bool:
        """Make the gradients ready for `optimizer.step()`; False if there is to be no update, as
        one of them is infinite or NaN in float16, here or where others have another part of them.

        `loss`: that of the global batch. If it is a sum and a count, the gradients are divided by
        the count; in float16 by the loss scale as well. `tensors`: those to update now, if not all.
        """
        gradients = [local(each) for each in gradients_of(self, tensors or self.parameters)]
        updated = tensors or models.parameters_of(self.optimizer)
        for tensor, gradient in zip(updated, gradients, strict=True):
            tensor.grad = gradient
        if self.scale.on:
            norm = get_total_norm([models.numbers(gradient) for gradient in gradients])
            if not self._whole:
                dist.all_reduce(norm)
            if not self.finite(float(norm), models.zeros_in(gradients)):
                return False
        divisor = models.count_of(loss) * self.scale.value
        if divisor != 1:
            scale(gradients, 1 / divisor)
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
        self, inputs: Any, targets: Any, forward: Any = None, alone: Any = nullcontext
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
        batch = inputs, targets
        parts = cut(torch.tensor_split, batch, count) if count > 1 else [batch]
        for number, (x, y) in enumerate(parts, 1):
            with nullcontext() if number == count else alone():
                with self._counting():
                    loss = forward(x, y)
                if count > 1:
                    loss = loss * (len(first_leaf(x)) / len(first_leaf(inputs)))
                models.summed(loss).backward()  # adds to the gradients that are there
            total += loss.detach()
        return total

    def _counting(self) -> AbstractContextManager[None]:
        """Note the activations that a forward pass of the first step keeps."""
        note = self.census.note
        if not self.census.open:
            return nullcontext()
        return models.kept_for_backward(self.replica, lambda count: note(activations=count))

    def done(self, loss: Any = None) -> None:
        mean = None if loss is None else float(models.summed(loss)) / models.count_of(loss)
        super().done(mean)

    def outputs(self, inputs: Any) -> Any:
        return self.mixed(models.outputs_of)(self.model, inputs)

    def matmul_flops(self) -> float:
        size = 4096 if self.device.type == "cuda" else 512
        if self.device.type == "cpu":  # with all cores of the run: two may share one's arithmetic
            cores = min(self.task.files.facts.cores, self.spec.workers * self.task.threads)
            torch.set_num_threads(cores)
        matrix = torch.rand(size, size, device=self.device)

        def multiply() -> None:
            matrix @ matrix
            self.now()

        return fastest(multiply, size)

    def now(self) -> float:
        """The time, once a GPU has done what it was given so far in the present stream."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return clock()

    def weights(self) -> list[np.ndarray]:
        """The model's weights, put together from all tasks where each holds a shard."""
        return models.weights_of(map(whole, self.model.parameters()))

    def named_weights(self) -> dict[str, np.ndarray]:
        named = self.workloads_model.state_dict(keep_vars=True)
        if self.model is not self.workloads_model:  # but a stage of it
            here, modules = set(self.model.modules()), self.workloads_model.named_modules()
            mine = {name for name, module in modules if module in here}
            named = {n: value for n, value in named.items() if n.rpartition(".")[0] in mine}
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
        """Together with the others of the process group, if there is one."""
        with plainly():
            writer = dcp.FileSystemWriter(part, sync_files=False)  # `seal` does that for all files
            planner = dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True)
            dcp.save(self._state(self.task.name), storage_writer=writer, planner=planner)

    def load_state(self, part: Path) -> None:
        names = dcp.FileSystemReader(part).read_metadata().state_dict_metadata
        if any("optimizer." in name for name in names):  # a page may have another one
            models.begin_state(self.optimizer, self.updates)
        there = any(name.startswith(f"{self.task.name}.") for name in names)
        state = self._state(self.task.name if there else "worker:0")
        with plainly():
            dcp.load(state, checkpoint_id=part, no_dist=True)

    def _state(self, replica: str) -> dict[str, Any]:
        """All tensors of this task that its next step depends on, by name: those of the model, the
        optimizer's state of each parameter, and the buffers, as those of a `replica`: a task's
        name.
        """
        mine = set(map(id, [*self.model.parameters(), *self.model.buffers()]))
        whole = self.workloads_model
        names = {id(each): name for name, each in whole.named_parameters() if id(each) in mine}
        own = f"{replica}." if self.apart else ""
        there = (e for e in self.model.parameters() if local(e).untyped_storage().nbytes())
        state = {f"{own}model.{names[id(each)]}": each.detach() for each in there}
        state |= {
            f"{replica}.own_state.{name}": each.detach() for name, each in self.own_state.items()
        }
        state |= {f"{replica}.{n}": each for n, each in whole.named_buffers() if id(each) in mine}
        updated = models.parameters_of(self.optimizer)
        for i, (parameter, tensor) in enumerate(zip(self.parameters, updated, strict=True)):
            # a page may update pieces of its own
            name = f"{own}optimizer.{names.get(id(parameter), f'{replica} {i}')}"
            for key, its in self.optimizer.state[tensor].items():  # none before the first update
                if key != "step":
                    state[f"{name}.{key}"] = as_held(parameter, its)
        return state

    def variables_on(self) -> dict[str, int]:
        return models.bytes_on(self.model.parameters())

    def state_on(self) -> dict[str, int]:
        """Also of `own_state`, and of what the optimizer updates in place of the model's own
        parameters.
        """
        model = models.storages(map(local, self.model.parameters()))
        others = [*models.parameters_of(self.optimizer), *self.own_state.values()]
        own = {t.data_ptr(): t for t in others if not models.storages([t]).keys() & model.keys()}
        return models.bytes_on([*models.state_of(self.optimizer), *own.values()])

    def memory(self) -> dict[str, int]:
        kinds = super().memory()
        kinds["buffers"] += bytes_of(self.model.buffers())
        return kinds


# --- emulated device time ---

# A device spends its time on products: of matrices, in convolutions, in attention. So each layer
# lasts longer by its share of the floating-point operations (FLOPs) of a step, forward and then
# backward. A third of the device time passes in the forward pass and two thirds in the backward
# pass, which multiplies twice: for the gradient of the inputs and for that of the weights. So an
# exchange that starts when a layer's gradients are there goes on beside the backward pass of the
# layers before it.


class Layers:
    """The layers of the models that a task computes, each of which takes its share of the time.

    A layer is any module that multiplies, wherever it stands in a model, and however often it is
    called in a step; of nested modules, the innermost. Its FLOPs are counted once, in the first
    step that has any device time. In that step, and in every step of a model without products, all
    of the time passes at once, before the forward pass. What no layer takes, such as the backward
    pass of a frozen one, passes when all have been computed.
    """

    def __init__(self, sleep: Callable[[float], float]) -> None:
        self._sleep = sleep  # for so many seconds; returns how many it really took
        # layer -> its share of the time, each time that it is called
        self._shares: dict[nn.Module, float] | None = None
        self._seconds = 0.0
        self._due = 0.0  # seconds still to sleep; below 0 once a sleep has taken too long

    @contextmanager
    def taking(self, seconds: float) -> Iterator[None]:
        """Make the forward and backward passes in the block last so many seconds longer."""
        if seconds > 0 and not self._shares:  # not counted yet, or there are no products
            self._sleep(seconds)
        if seconds > 0 and self._shares is None:
            with Counts() as counts:
                yield
            self._shares = counts.shares()
            for layer in self._shares:
                # also after an error: activation checkpointing ends its recomputation with one
                layer.register_forward_hook(self._computed, always_call=True)
            return
        self._seconds, self._due = seconds, 0.0
        try:
            yield
        finally:
            self._seconds = 0.0

    def _computed(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """The forward pass of a layer is done; its backward pass is to wait before it begins."""
        if self._seconds > 0 and self._shares:
            time = self._shares[layer] * self._seconds
            self._take(time / 3)
            nodes = (getattr(tensor, "grad_fn", None) for tensor in tree_leaves(output))
            if node := next(filter(None, nodes), None):  # of autograd's graph
                node.register_prehook(lambda _: self._take(2 * time / 3))

    def _take(self, seconds: float) -> None:
        self._due += seconds
        if self._due > 0:  # a sleep takes longer than it is told: the next ones become shorter
            self._due -= self._sleep(self._due)


class Counts(TorchDispatchMode):
    """The FLOPs in the forward passes of each module, and how often it is called.

    A product counts for the innermost module that is being called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.calls = Counter[nn.Module](), Counter[nn.Module]()
        self._called: list[nn.Module] = []

    def __enter__(self) -> Any:
        self._hooks = [
            register_module_forward_pre_hook(lambda module, _: self._called.append(module)),
            register_module_forward_hook(self._computed, always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        formula = FLOPS.get(func._overloadpacket)
        if formula and self._called:
            self.flops[self._called[-1]] += formula(*args, **(kwargs or {}), out_val=made)
        return made

    def _computed(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._called.pop()
        self.calls[module] += 1

    def shares(self) -> dict[nn.Module, float]:
        """Layer -> its share of a step's time, each time that it is called."""
        total = self.flops.total()
        return {layer: n / total / self.calls[layer] for layer, n in self.flops.items()}


# --- the files of a checkpoint ---


def as_held(parameter: Any, state: Any) -> Any:
    """The optimizer's state of a parameter: a shard of a DTensor, if that is one."""
    if not isinstance(parameter, DTensor):
        return state
    how = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
    return DTensor.from_local(state, parameter.device_mesh, parameter.placements, **how)


@contextmanager
def plainly() -> Iterator[None]:
    """Without DCP's warning that a task is alone; and if it fails, with the first error itself in
    place of one that lists those of all tasks.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            yield
        except dcp.CheckpointException as error:
            first, _ = next(iter(error.failures.values()))
            raise first from None
