"""Calls of torch.distributed by a learner's own code leave beats (`record/beats.py`): which
collective, its number in its group, shape and dtype, file and line. So whoever looks at a run that
hangs can say which rank is in which call.

In a learner's task, before its code is loaded, each function of torch.distributed that the ranks of
a group call together is wrapped, and so are those that send and receive. They do, return and raise
what they did before; a call takes some microseconds longer. FSDP and pipelines call them too.

DistributedDataParallel (DDP) exchanges in C++. Its broadcasts are wrapped as well; `watch_ddp` says
how the wait for its all-reduce is seen.
"""

import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel.distributed import DistributedDataParallel as DDP
from torch.nn.parallel.distributed import _find_tensors

from course_lib.cluster.task import Task
from course_lib.record.beats import BACKWARD, FSDP, Beat
from course_lib.record.events import clock

# parameters, one of which each wrapped function has beside `group`
TOGETHER = {"async_op", "src", "dst", "object_list"}
ENDS = {"src": "from", "dst": "to"}
TENSORS = ("tensor", "input_tensor", "output")  # what the tensor is called that a call is about
UNEVEN = ("all_to_all_single", "reduce_scatter")  # ranks may come with different sizes
BUCKETS = "DDP's broadcast of its buckets"
# functions of C++ in which DDP waits -> what they are called, and their parameters
BUILTINS = {
    "_verify_params_across_processes": ("the check of DDP's parameters", ["group"]),
    "_broadcast_coalesced": ("DDP's broadcast", ["group", "tensors", "bytes", "group_src", "src"]),
}
_FSDP = str(Path(torch.__file__).parent / "distributed" / "fsdp")
_NO_LEARNER = (str(Path(torch.__file__).parent), __file__)  # where no code of a learner lies


def watch(task: Task) -> None:
    """Let the calls that this task makes from now on leave beats."""
    calls, module = Calls(task), dist.distributed_c10d
    for name, function, parameters in _COLLECTIVES:
        watched = calls.watched(function, function.__name__, parameters)
        setattr(dist, name, watched)
        setattr(module, name, watched)
    for name, called in BUILTINS.items():
        setattr(dist, name, calls.watched(getattr(dist, name), *called))
    calls.watch_waits(module.Work)
    calls.watch_ddp()


def _collectives() -> Iterator[tuple[str, FunctionType, list[str]]]:
    """Name, function and parameters of each call that the ranks of a group make together."""
    for name, function in vars(dist).items():
        if type(function) is FunctionType:
            parameters = list(inspect.signature(function).parameters)
            if "group" in parameters and TOGETHER & {*parameters}:
                yield name, function, parameters


_COLLECTIVES = list(_collectives())  # in the zygote, once for all tasks


class _Inside(threading.local):
    """Marks a thread that is in a watched function, as some of them call others."""

    call = False


class Calls:
    """The calls of a task, numbered within each group."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._numbers = Counter[str]()
        # of each group: its name, its ranks, these as bits, and this task's rank
        self._groups = WeakKeyDictionary[Any, tuple[str, list[int], int, int]]()
        self._begun = WeakKeyDictionary[Any, Beat]()
        self._inside = _Inside()

    def watched(self, function: Callable[..., Any], name: str, parameters: list[str]) -> Any:
        """The function, said to be called `name`; what it is called with leaves a beat."""
        end = next((end for end in ENDS if end in parameters), "")
        tensor = next((name for name in TENSORS if name in parameters), "")
        beat_of = partial(self._beat, name, end, tensor)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(parameters, args, strict=False), **kwargs)
            group = given.get("group") or dist.GroupMember.WORLD
            if self._inside.call or not isinstance(group, dist.ProcessGroup):
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

        @functools.wraps(wait)
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
        in their all-reduces. Before the second pass rank 0 says how the buckets are made.

        The group of a model is kept. Where the model goes after `destroy_process_group()`, and the
        group with it, its end waits for a thread that may wait for Python's lock, for ever.
        """
        forward, shadow = DDP.forward, DDP._match_all_reduce_for_bwd_pass
        rebuild, queue = dist.Reducer._rebuild_buckets, Variable._execution_engine.queue_callback
        reducers = WeakKeyDictionary[Any, Any]()  # until their buckets are made, with their groups
        groups = set[Any]()

        @functools.wraps(forward)
        def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
            groups.add(model.process_group)
            if not getattr(model, "_has_rebuilt_buckets", True):
                reducers[model.reducer] = model.process_group
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
        rebuilds = self.watched(lambda group, reducer: rebuild(reducer), BUCKETS, ["group"])
        DDP.forward = watched
        DDP._match_all_reduce_for_bwd_pass = lambda model: shadows(model.process_group, model)
        dist.Reducer._rebuild_buckets = lambda it: rebuilds(reducers.pop(it, it), it)

    def _beat(
        self, name: str, end: str, of: str, given: Mapping[str, Any], group: Any
    ) -> tuple[Any, ...]:
        """The `Beat` of a call, as a plain tuple. `end`: the parameter that names another rank;
        `of`: the tensor.
        """
        # `members`: whom the call surely waits for
        key, ranks, members, mine = self._groups.get(group) or self._joined(group)
        what = name
        if name in (BACKWARD, BUCKETS):  # counted by itself: in some passes nothing is exchanged
            key = f"{name[:9]}:{key}"
        if end:
            message, root = "send" in name or "recv" in name, given.get(end)
            within = given.get(f"group_{end}")
            if root is None and (within is not None or not message):
                root = ranks[within or 0]
            what = f"{name} {ENDS[end]} {'any rank' if root is None else f'rank {root}'}"
            if message:
                way = f"{root}>{mine}" if end == "src" else f"{mine}>{root}"
                key = f"{key}:{way}:{given.get('tag') or ''}"
            if message or end == "src":
                members = _bits([] if root is None else [root])
            elif root != mine:
                members = 0
        self._numbers[key] += 1
        size, about, tensor = 0, "", given.get(of)
        if isinstance(tensor, torch.Tensor):
            size, about = _about(tensor.shape, tensor.dtype)
            size = 0 if name in UNEVEN else size
        step = -1 if self.task.step is None else self.task.step
        number, where = self._numbers[key], "" if name == BACKWARD else _where()
        what = FSDP * sys._getframe(2).f_code.co_filename.startswith(_FSDP) + what
        return step, what, clock(), number, mine, members, size, key, about, where

    def _joined(self, group: Any) -> tuple[str, list[int], int, int]:
        ranks = dist.get_process_group_ranks(group)
        self._groups[group] = group.group_name, ranks, _bits(ranks), dist.get_rank()
        return self._groups[group]


def _bits(ranks: Iterable[int]) -> int:
    return sum(1 << rank for rank in ranks if rank < 64)


@functools.lru_cache
def _about(shape: torch.Size, dtype: torch.dtype) -> tuple[int, str]:
    """The bytes of a tensor, and "(10, 4) float32"."""
    return shape.numel() * dtype.itemsize, f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"


def _where() -> str:
    """The line of the learner's code that makes a call; "" if there is none."""
    frame: FrameType | None = sys._getframe(3)
    while frame:
        if line := _line(frame.f_code.co_filename, frame.f_lineno):
            return line
        frame = frame.f_back
    return ""


@functools.lru_cache
def _line(file: str, line: int) -> str:
    if file.startswith(_NO_LEARNER):
        return ""
    return f"line {line} of a cell" if "ipykernel_" in file else f"{Path(file).name}:{line}"
