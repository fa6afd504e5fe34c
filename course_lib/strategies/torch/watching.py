"""A PyTorch loop of a learner's own, watched by hooks.

    lockstep = task.watch(model, optimizer)

What each hook can know:

- The forward pass (a module's forward pre-hook): that a step begins, and how many examples it has,
  which is the first dimension of the first tensor that the model is given. Passes under
  `torch.no_grad()` are evaluations and are left out. The time before, since the last step, is
  `read`, whatever was done in it.
- `backward`: no hook sees the loss, as it is computed outside the model. But every backward pass
  goes through the function `torch.autograd.backward`, and what it begins from is the loss. So this
  function is wrapped. Of several passes in a step the mean is recorded.
- A gradient is accumulated (a parameter's hook): DistributedDataParallel (DDP) sums gradients in
  threads of its own, and no hook sees these. What can be seen is the time from the last gradient
  to the end of `backward`: the part of the exchange that does not hide behind computing. This is
  `reduce`, and what follows it, such as clipping, is part of `apply`. Give `watch` the DDP model
  that the loop calls, not the one inside of it.
- `Work.wait`: every collective of torch.distributed that the loop calls itself waits there. With
  `async_op=True` only the wait is seen, not what went on beside it. On CPUs the exchanges of FSDP
  (`fully_shard`) are seen in this way too, each between two parts of `compute`.
- The optimizer's step (its pre- and post-hooks): `apply`. Then the step is over.

On a GPU the program runs ahead of the device. So a phase ends once the device has done all of it,
which costs a synchronisation; the exchange of DDP is part of `compute`, and waits for NCCL, which
only the device does, are not seen. No GPU has been tried. On a CPU watching costs about 0.03 ms a
step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib.clock import clock
from course_lib.cluster.task import Task
from course_lib.errors import SpecError
from course_lib.strategies.watching import WatchedLoop


class Watching(WatchedLoop):
    """The steps of a loop that calls `model` and `optimizer.step()`.

    Raises `SpecError` if these are none of PyTorch.
    """

    def __init__(self, task: Task, model: Any, optimizer: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise SpecError("optimizer", optimizer, "the torch.optim.Optimizer of the loop")
        first = next(model.parameters(), None)
        if first is None:
            raise SpecError("model", type(model).__name__, "a model with parameters to train")
        self._home = first.device
        super().__init__(task, str(self._home))
        self._examples, self._losses, self._told = 0, list[torch.Tensor](), False
        self._last_gradient = 0.0
        self._gradients = 1  # how many replicas' gradients are in those of this step
        model.register_forward_pre_hook(self._forward, with_kwargs=True)
        optimizer.register_step_pre_hook(self._applying)
        optimizer.register_step_post_hook(self._stepped)
        if isinstance(model, DistributedDataParallel) and self._home.type == "cpu":
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(self._accumulated)
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._wrap_backward()
        if dist.is_available():
            self._wrap_wait()

    def now(self) -> float:
        if self._home.type == "cuda":
            torch.cuda.synchronize(self._home)
        return clock()

    def loss(self, value: Any) -> None:
        """Record this as the loss of the step, instead of what its backward pass began from. Needed
        where that is scaled (`GradScaler`), divided (accumulated gradients) or not called
        (`torch.autograd.grad`). Call it between the forward pass and `optimizer.step()`.
        """
        if not self._examples:
            where = "to be told between the forward pass and optimizer.step()"
            raise SpecError("loss", value, where)
        self._losses, self._told = [torch.as_tensor(value).detach()], True

    def _forward(self, model: Any, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            self.leave_out()
            return
        if not self._examples:
            self.begin()
        elif self._doing == "apply":  # another pass, before the update
            self.go_on("compute")
        self._examples += examples_in((args, kwargs)) or self.task.spec.per_worker_batch

    def _applying(self, *_: Any) -> None:
        if self._doing != "apply":
            self.go_on("apply")

    def _accumulated(self, parameter: torch.Tensor) -> None:
        self._last_gradient = clock()

    def _wrap_backward(self) -> None:
        backward = torch.autograd.backward

        def watched(tensors: Any, *args: Any, **kwargs: Any) -> None:
            backward(tensors, *args, **kwargs)
            if not self._examples:  # of something else than a step
                return
            if isinstance(tensors, torch.Tensor) and tensors.numel() == 1 and not self._told:
                self._losses.append(tensors.detach())
            if self._ddp and self._ddp.require_backward_grad_sync:  # not within `no_sync()`
                self._gradients = dist.get_world_size()
                if self._last_gradient:
                    self.go_on("reduce", self._last_gradient)
                    self.go_on("apply")
            self._last_gradient = 0.0

        torch.autograd.backward = watched

    def _wrap_wait(self) -> None:
        work = dist.distributed_c10d.Work
        wait = work.wait

        def watched(*args: Any, **kwargs: Any) -> Any:
            begun = self.now()
            try:
                return wait(*args, **kwargs)
            finally:
                self.exchanged(begun, self.now())
                self._gradients = dist.get_world_size()

        work.wait = watched

    def _stepped(self, *_: Any) -> None:
        losses = [loss.item() for loss in self._losses]
        loss = sum(losses) / len(losses) if losses else None
        self.end(loss, self._examples, self._gradients)
        self._examples, self._losses, self._told, self._gradients = 0, [], False, 1


def examples_in(inputs: Any) -> int:
    """The first dimension of the first tensor among nested inputs; 0 if there is none."""
    if isinstance(inputs, torch.Tensor):
        return len(inputs) if inputs.ndim else 0
    if isinstance(inputs, Mapping):
        inputs = list(inputs.values())
    if isinstance(inputs, Sequence) and not isinstance(inputs, str):
        return next(filter(None, map(examples_in, inputs)), 0)
    return 0
