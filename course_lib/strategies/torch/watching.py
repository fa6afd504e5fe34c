"""A PyTorch loop of a learner's own, watched by hooks.

    lockstep = task.watch(model, optimizer)
    lockstep = task.watch(generator=(g, g_optimizer), critic=(c, c_optimizer))

What each hook can know:

- The forward pass (a module's forward pre-hook): that a step begins, and how many examples it has,
  which is the first dimension of the first tensor that the model is given. Passes under
  `torch.no_grad()` before a step begins are evaluations and are left out; within a step, or of a
  model without an optimizer, they are part of `compute`. The time before, since the last update, is
  `read`, whatever was done in it.
- `backward`: no hook sees the loss, as it is computed outside the model. But every backward pass
  goes through the function `torch.autograd.backward`, and what it begins from is the loss. So this
  function is wrapped. Of several passes in a step the mean is recorded. With several optimizers, a
  pass belongs to those whose parameters' gradients it has changed, until these are set to zero: so
  the loss of a generator, whose pass goes through the critic, is no loss of the critic.
- A gradient is accumulated (a parameter's hook): DistributedDataParallel (DDP) sums gradients in
  threads of its own, and no hook sees these. What can be seen is the time from the last gradient
  to the end of `backward`: the part of the exchange that does not hide behind computing. This is
  `reduce`, and what follows it, such as clipping, is part of `apply`. Give `watch` the DDP model
  that the loop calls, not the one inside of it.
- `Work.wait`: every collective of torch.distributed that the loop calls itself waits there. With
  `async_op=True` only the wait is seen, not what went on beside it. On CPUs the exchanges of FSDP
  (`fully_shard`) are seen in this way too, each between two parts of `compute`.
- The optimizer's step (its pre- and post-hooks): `apply`. Then the step is over, if every optimizer
  has made one. In the first step, the memory of all models and optimizers is counted.

On a GPU the program runs ahead of the device. So a phase ends once the device has done all of it,
which costs a synchronisation; the exchange of DDP is part of `compute`, and waits for NCCL, which
only the device does, are not seen. No GPU has been tried. On a CPU watching costs about 0.03 ms a
step.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib.cluster.task import Task
from course_lib.errors import SpecError
from course_lib.record.events import clock
from course_lib.strategies.torch.models import parameters_of
from course_lib.strategies.torch.tensors import bytes_of
from course_lib.strategies.watching import WatchedLoop


class Watching(WatchedLoop):
    """The steps of a loop that calls models and `optimizer.step()`.

    Raises `SpecError` if these are none of PyTorch.
    """

    def __init__(self, task: Task, pairs: dict[str, tuple[Any, Any]]) -> None:
        self._models = {name: model for name, (model, _) in pairs.items()}
        self._optimizers = {name: each for name, (_, each) in pairs.items() if each is not None}
        for optimizer in self._optimizers.values() or [None]:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise SpecError("optimizer", optimizer, "the torch.optim.Optimizer of the loop")
        for name, optimizer in self._optimizers.items():
            mine = set(self._models[name].parameters())
            if mine and not mine.intersection(parameters_of(optimizer)):
                text = f"that of its model: this one of {name or 'the loop'} has no parameter of it"
                raise SpecError("optimizer", type(optimizer).__name__, text)
        model = self._models[next(iter(self._optimizers))]
        first = next(model.parameters(), None)
        if first is None:
            raise SpecError("model", type(model).__name__, "a model with parameters to train")
        self._home = first.device
        super().__init__(task, str(self._home), list(self._optimizers))
        self._alone, self._last_gradient = len(self.names) == 1, 0.0
        # of the gradients that the next update applies: the losses of their backward passes, of how
        # many replicas they are, what the last pass left; and the loss that the loop says itself
        self._passes: dict[str, list[torch.Tensor]] = {name: [] for name in self.names}
        self._gradients, self._left = dict.fromkeys(self.names, 1), self._versions()
        self._given = dict[str, torch.Tensor]()
        for name, model in self._models.items():
            model.register_forward_pre_hook(partial(self._forward, name), with_kwargs=True)
            if isinstance(model, DistributedDataParallel) and self._home.type == "cpu":
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.register_post_accumulate_grad_hook(self._accumulated)
        for name, optimizer in self._optimizers.items():
            optimizer.register_step_pre_hook(self._applying)
            optimizer.register_step_post_hook(partial(self._stepped, name))
        self._wrap_backward()
        if dist.is_available():
            self._wrap_wait()

    def now(self) -> float:
        if self._home.type == "cuda":
            torch.cuda.synchronize(self._home)
        return clock()

    def held(self) -> dict[str, int]:
        models, optimizers = self._models.values(), self._optimizers.values()
        weights = [weight for model in models for weight in model.parameters()]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        state = [each for o in optimizers for kept in o.state.values() for each in kept.values()]
        return {
            "parameters": bytes_of(weights),
            "gradients": bytes_of(gradients),
            "optimizer_state": bytes_of(filter(torch.is_tensor, state)),
            "buffers": bytes_of(buffer for model in models for buffer in model.buffers()),
        }

    def loss(self, value: Any, name: str = "") -> None:
        """Record this as the loss of the step, instead of what its backward pass began from. Needed
        where that is scaled (`GradScaler`), divided (accumulated gradients) or not called
        (`torch.autograd.grad`). Call it between the forward pass and `optimizer.step()`. `name`:
        of which model, if several are watched.
        """
        if name not in self.names:
            raise SpecError.unknown("name", name, self.names)
        if not self.begun:
            where = "to be told between the forward pass and optimizer.step()"
            raise SpecError("loss", value, where)
        self._given[name] = torch.as_tensor(value).detach()

    def _forward(self, name: str, model: Any, args: Any, kwargs: Any) -> None:
        if name in self.names and not (self.begun or torch.is_grad_enabled()):
            self.leave_out()
            return
        if self._doing != "compute":
            self.begin()
        if name == self.names[0] and torch.is_grad_enabled():
            self._examples += examples_in((args, kwargs)) or self.task.spec.per_worker_batch

    def _applying(self, *_: Any) -> None:
        if self._doing != "apply":
            self.go_on("apply")

    def _accumulated(self, parameter: torch.Tensor) -> None:
        self._last_gradient = clock()

    def _wrap_backward(self) -> None:
        backward = torch.autograd.backward

        def watched(tensors: Any, *args: Any, **kwargs: Any) -> None:
            before, synced = self._versions(), False
            for name in self.names:
                if not self._alone and before[name] != self._left[name]:
                    self._forget(name)  # its gradients were set to zero
            backward(tensors, *args, **kwargs)
            self._left = self._versions()
            if not self.begun:  # of something else than a step
                return
            for name in self.names:
                if not self._alone and before[name] == self._left[name]:
                    continue  # this pass has not reached its parameters
                if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
                    self._passes[name].append(tensors.detach())
                model = self._models[name]  # if DDP, not within `no_sync()`
                if isinstance(model, DistributedDataParallel) and model.require_backward_grad_sync:
                    self._gradients[name], synced = dist.get_world_size(), True
            if synced and self._last_gradient:
                self.go_on("reduce", self._last_gradient)
                self.go_on("apply")
            self._last_gradient = 0.0

        torch.autograd.backward = watched

    def _versions(self) -> dict[str, list[Any]]:
        """Of each optimizer's gradients what differs once they have changed; of several only, as
        it takes about 0.3 us a tensor.
        """
        return {
            name: [
                p.grad is not None and (id(p.grad), p.grad._version) for p in parameters_of(each)
            ]
            for name, each in self._optimizers.items()
            if not self._alone
        }

    def _wrap_wait(self) -> None:
        work = dist.distributed_c10d.Work
        wait = work.wait

        def watched(*args: Any, **kwargs: Any) -> Any:
            begun = self.now()
            try:
                return wait(*args, **kwargs)
            finally:
                self.exchanged(begun, self.now())
                self._gradients = dict.fromkeys(self.names, dist.get_world_size())

        work.wait = watched

    def _stepped(self, name: str, *_: Any) -> None:
        given = self._given.pop(name, None)
        losses = self._passes[name] if given is None else [given]
        loss = fmean(loss.item() for loss in losses) if losses else None
        self.updated(name, loss, 0, self._gradients[name])
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._passes[name], self._gradients[name] = [], 1


def gradients_of(optimizer: Any) -> list[Any]:
    """Those of the parameters that an optimizer updates; None for one that has none."""
    return [parameter.grad for parameter in parameters_of(optimizer)]


def examples_in(inputs: Any) -> int:
    """The first dimension of the first tensor among nested inputs; 0 if there is none."""
    if isinstance(inputs, torch.Tensor):
        return len(inputs) if inputs.ndim else 0
    if isinstance(inputs, Mapping):
        inputs = list(inputs.values())
    if isinstance(inputs, Sequence) and not isinstance(inputs, str):
        return next(filter(None, map(examples_in, inputs)), 0)
    return 0
