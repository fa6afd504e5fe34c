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

Without that line, each call of a collective leaves a beat (`record/beats.py`): which one, its
number in its group, shape and dtype, file and line. So whoever looks at a run that hangs can say
which rank is in which call. Before a learner's code is loaded, each function of torch.distributed
that the ranks of a group call together is wrapped, and so are those that make groups, and those
that send and receive. They do, return and raise what they did before; a call takes some
microseconds longer. FSDP and pipelines call them too. DDP exchanges in C++: its broadcasts are
wrapped as well, and `watch_ddp` says how the wait for its all-reduce is seen.
"""

import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel.distributed import DistributedDataParallel as DDP
from torch.nn.parallel.distributed import _find_tensors
from torch.utils._pytree import tree_leaves

from course_lib.cluster.task import Task
from course_lib.errors import SpecError
from course_lib.record.beats import ANY, BACKWARD, FSDP, Beat, bits, calling_line
from course_lib.record.events import clock
from course_lib.strategies.torch.models import bytes_of, parameters_of
from course_lib.strategies.watching import WatchedLoop

# parameters, one of which each wrapped function has beside `group`
TOGETHER = {"async_op", "src", "dst", "object_list", "wait_all_ranks"}
GROUPS = ("init_process_group", "new_group")  # they make a group, and all ranks call them
ENDS = {"src": "from", "dst": "to"}
TENSORS = ("tensor", "input_tensor", "output")  # what the tensor is called that a call is about
UNEVEN = ("all_to_all_single", "reduce_scatter")  # ranks may come with different sizes
# functions of C++ in which DDP waits -> what they are called, and their parameters
BUILTINS = {
    "_verify_params_across_processes": ("the check of DDP's parameters", ["group"]),
    "_broadcast_coalesced": ("DDP's broadcast", ["group", "tensors", "bytes", "group_src", "src"]),
}
_FSDP = str(Path(torch.__file__).parent / "distributed" / "fsdp")
_TORCH = str(Path(torch.__file__).parent)


class Watching(WatchedLoop):
    """The steps of a loop that calls models and `optimizer.step()`.

    Raises `SpecError` if these are none of PyTorch.
    """

    def __init__(self, task: Task, pairs: dict[str, tuple[Any, Any]]) -> None:
        self._models = {name: model for name, (model, _) in pairs.items()}
        self._optimizers = {name: each for name, (_, each) in pairs.items() if each is not None}
        for name, optimizer in self._optimizers.items() or [("", None)]:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise SpecError("optimizer", optimizer, "the torch.optim.Optimizer of the loop")
            if not set(self._models[name].parameters()).intersection(parameters_of(optimizer)):
                text = f"that of its model: this one of {name or 'the loop'} has no parameter of it"
                raise SpecError("optimizer", type(optimizer).__name__, text)
        self._home = parameters_of(next(iter(self._optimizers.values())))[0].device
        super().__init__(task, str(self._home), list(self._optimizers))
        self._last_gradient = 0.0
        # of the gradients that the next update applies: the losses of their backward passes, of how
        # many replicas they are, what the last pass left; and the loss that the loop says itself
        self._passes: dict[str, list[torch.Tensor]] = {name: [] for name in self.names}
        self._gradients, self._left = dict.fromkeys(self.names, 1), self._versions()
        self._given = dict[str, torch.Tensor]()
        for name, model in self._models.items():
            model.register_forward_pre_hook(partial(self._forward, name), with_kwargs=True)
            if isinstance(model, DDP) and self._home.type == "cpu":
                for parameter in filter(lambda each: each.requires_grad, model.parameters()):
                    parameter.register_post_accumulate_grad_hook(self._accumulated)
        for name, optimizer in self._optimizers.items():
            optimizer.register_step_pre_hook(self._applying)
            optimizer.register_step_post_hook(partial(self._stepped, name))
        self._wrap_backward()
        self._wrap_wait()

    def now(self) -> float:
        if self._home.type == "cuda":
            torch.cuda.synchronize(self._home)
        return clock()

    def memory(self) -> dict[str, int]:
        models, optimizers = self._models.values(), self._optimizers.values()
        weights = [weight for model in models for weight in model.parameters()]
        state = [each for o in optimizers for kept in o.state.values() for each in kept.values()]
        return {
            "parameters": bytes_of(weights),
            "gradients": bytes_of(weight.grad for weight in weights),
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
            raise SpecError("loss", value, "given between the forward pass and optimizer.step()")
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
                if before[name] != self._left[name]:
                    self._forget(name)  # its gradients were set to zero
            backward(tensors, *args, **kwargs)
            self._left = self._versions()
            if not self.begun:  # of something else than a step
                return
            for name in self.names:
                if before[name] == self._left[name]:
                    continue  # this pass has not reached its parameters
                if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
                    self._passes[name].append(tensors.detach())
                model = self._models[name]  # if DDP, not within `no_sync()`
                if isinstance(model, DDP) and model.require_backward_grad_sync:
                    self._gradients[name], synced = dist.get_world_size(), True
            if synced and self._last_gradient:
                self.go_on("reduce", self._last_gradient)
                self.go_on("apply")
            self._last_gradient = 0.0

        torch.autograd.backward = watched

    def _versions(self) -> dict[str, list[Any]]:
        """Of each optimizer's gradients what differs once they have changed."""
        return {
            name: [(id(p.grad), getattr(p.grad, "_version", 0)) for p in parameters_of(each)]
            for name, each in self._optimizers.items()
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


def examples_in(inputs: Any) -> int:
    """The first dimension of the first tensor among nested inputs; 0 if there is none."""
    tensors = (each for each in tree_leaves(inputs) if isinstance(each, torch.Tensor) and each.ndim)
    return next(map(len, tensors), 0)


# --- calls of collectives ---


def watch(task: Task) -> None:
    """Let the calls that this task makes from now on leave beats."""
    calls, module = Calls(task), dist.distributed_c10d
    for name, function in [*vars(dist).items()]:
        if type(function) is FunctionType:
            code = inspect.unwrap(function).__code__  # `signature` takes ten times as long
            parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if name in GROUPS or ("group" in parameters and TOGETHER & {*parameters}):
                watched = calls.watched(function, function.__name__, parameters)
                setattr(dist, name, watched)
                setattr(module, name, watched)
    for name, called in BUILTINS.items():
        setattr(dist, name, calls.watched(getattr(dist, name), *called))
    calls.watch_waits(module.Work)
    calls.watch_ddp()


class Inside(threading.local):
    """Marks a thread that is in a watched function, as some of them call others."""

    call = False


class Calls:
    """The calls of a task, numbered within each group."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._numbers = Counter[str]()
        self._begun = WeakKeyDictionary[Any, Beat]()
        self._inside = Inside()

    def watched(self, function: Callable[..., Any], name: str, parameters: Sequence[str]) -> Any:
        """The function, said to be called `name`; what it is called with leaves a beat."""
        end = next((end for end in ENDS if end in parameters), "")
        tensor = next((name for name in TENSORS if name in parameters), "")
        beat_of = partial(self._beat, name, end, tensor)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(parameters, args, strict=False), **kwargs)
            group = given.get("group") or dist.GroupMember.WORLD
            first = group is None and name == GROUPS[0]
            some = not (first or isinstance(group, dist.ProcessGroup))
            if self._inside.call or some or given.get("use_local_synchronization"):
                return function(*args, **kwargs)
            beat = beat_of(given, group)
            self.task.beat(*beat)
            self._inside.call = True
            try:
                result = function(*args, **kwargs)
            finally:
                self._inside.call = False
            if isinstance(result, dist.Work):
                self._begun[result] = Beat(*beat)
            self.task.enter(self.task.doing)  # but after an error the beat says what it was in
            return result

        return call

    def watch_waits(self, work: Any) -> None:
        """Count a wait for a call that was begun with `async_op=True` as the call itself."""
        wait = work.wait

        def watched(begun: Any, *args: Any, **kwargs: Any) -> Any:
            # a call that is not asynchronous waits inside
            beat = None if self._inside.call else self._begun.get(begun)
            if beat is None:
                return wait(begun, *args, **kwargs)
            self.task.beat(*beat._replace(since=clock()))
            result = wait(begun, *args, **kwargs)
            self.task.enter(self.task.doing)
            return result

        work.wait = watched

    def watch_ddp(self) -> None:
        """Once a backward pass through a DDP model has computed all, the task is in its all-reduce,
        until the pass is over. Autograd calls what is queued in a pass at its end, in order:
        `ends`, queued when the pass comes to an output of the model; the wait of DDP, queued at its
        last gradient; what `ends` has queued. A rank that waits for others in `join()` takes part
        in their all-reduces.

        The group of a model is kept. Where the model goes after `destroy_process_group()`, and the
        group with it, its end waits for a thread that may wait for Python's lock, for ever.
        """
        forward, shadow = DDP.forward, DDP._match_all_reduce_for_bwd_pass
        queue, groups = Variable._execution_engine.queue_callback, set[Any]()

        def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
            groups.add(model.process_group)
            outputs = forward(model, *args, **kwargs)

            def ends() -> None:
                self.task.beat(*self._beat(BACKWARD, "", "", {}, model.process_group))
                queue(lambda: self.task.enter(self.task.doing))

            if torch.is_grad_enabled() and model.require_backward_grad_sync:
                begins = functools.cache(lambda: queue(ends))  # once, however many outputs
                for tensor in (t for t in _find_tensors(outputs) if t.grad_fn):
                    tensor.register_hook(lambda _: begins())
            return outputs

        shadows = self.watched(lambda group, model: shadow(model), BACKWARD, ["group"])
        DDP.forward = watched
        DDP._match_all_reduce_for_bwd_pass = lambda model: shadows(model.process_group, model)

    def _beat(self, name: str, end: str, of: str, given: Any, group: Any) -> tuple[Any, ...]:
        """The `Beat` of a call, as a plain tuple. `end`: the parameter that names another rank;
        `of`: the tensor.
        """
        if group is None:  # there is none yet
            size = given.get("world_size") or -1
            ranks = [*range(size if size > 0 else len(self.task.spec.tasks))]
            mine, key = self.task.rank, ""
        else:
            # who is not in a new group does not wait for it
            ranks = given.get("ranks") or dist.get_process_group_ranks(group)
            mine, key = dist.get_rank(), group.group_name
        members = needs = bits(ranks)
        what = name
        # counted by itself: some passes exchange nothing, and groups are made beside all exchanges
        if name == BACKWARD or name in GROUPS:
            key = f"{name.replace(BACKWARD, 'backward')}:{key}"
        if end:
            message, root = "send" in name or "recv" in name, given.get(end)
            within = given.get(f"group_{end}")
            if root is None and (within is not None or not message):
                root = ranks[within or 0]
            whom = ANY if root is None else f"rank {root}"
            what = f"{name} {ENDS[end]} {whom}"
            if message:
                other = ANY if root is None else root
                way = f"{other}>{mine}" if end == "src" else f"{mine}>{other}"
                key = f"{key}:{way}:{given.get('tag') or ''}"
                members = members if root is None else bits([root, mine])
            if message or end == "src":
                needs = bits([] if root is None else [root])
            elif root != mine:
                needs = 0
        self._numbers[key] += 1
        size, about, tensor = 0, "", given.get(of)
        if isinstance(tensor, torch.Tensor):
            size = 0 if name in UNEVEN else tensor.numel() * tensor.element_size()
            about = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        step = -1 if self.task.step is None else self.task.step
        number, where = self._numbers[key], "" if name == BACKWARD else calling_line(_TORCH)
        what = FSDP * sys._getframe(2).f_code.co_filename.startswith(_FSDP) + what
        return step, what, clock(), number, mine, members, needs, size, key, about, where
