"""Calls of torch.distributed by a learner's own code leave beats (`record/beats.py`): which
collective, its number in its group, shape and dtype, file and line. So whoever looks at a run that
hangs can say which rank is in which call.

The functions of torch.distributed are wrapped in a learner's task, before its code is loaded. They
do, return and raise what they did before; a call takes a few microseconds longer. What
DistributedDataParallel exchanges is not seen, as it calls no such function.
"""

import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from course_lib.cluster.task import Task, clock
from course_lib.record.beats import Beat

# The name of the tensor that has the same size on all ranks, by function; so has a message's.
SAME_SIZE = {
    "all_reduce": "tensor",
    "broadcast": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "reduce_scatter_tensor": "output",
    "gather": "tensor",
    "scatter": "tensor",
}
MESSAGES = ("send", "recv", "isend", "irecv", "send_object_list", "recv_object_list")
OTHERS = (
    "barrier",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_single",
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
)
ENDS = {"src": "from", "dst": "to"}
_NO_LEARNER = (str(Path(torch.__file__).parent), __file__)  # where no code of a learner lies


def watch(task: Task) -> None:
    """Let the calls that this task makes from now on leave beats."""
    calls = Calls(task)
    for name in (*SAME_SIZE, *MESSAGES, *OTHERS):
        watched = calls.watched(getattr(dist, name))
        for module in (dist, dist.distributed_c10d):
            setattr(module, name, watched)
    calls.watch_waits(dist.distributed_c10d.Work)


class Calls:
    """The calls of a task, numbered within each group."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._numbers = Counter[str]()
        # of each group: its name, its ranks, these as bits, and this task's rank
        self._groups = WeakKeyDictionary[Any, tuple[str, list[int], int, int]]()
        self._begun = WeakKeyDictionary[Any, Beat]()
        self._inside = threading.local()  # some of these functions call others

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; what it is called with leaves a beat."""
        name, parameters = function.__name__, list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(parameters, args, strict=False)) | kwargs
            group = given.get("group") or dist.group.WORLD
            if hasattr(self._inside, "call") or not isinstance(group, dist.ProcessGroup):
                return function(*args, **kwargs)
            self._inside.call = beat = self._beat(name, parameters, given, group)
            self.task.beat(*beat)
            try:
                found = function(*args, **kwargs)
            finally:
                del self._inside.call
            if isinstance(found, dist.Work):
                self._begun[found] = beat
            self.task.enter(self.task.doing)  # but after an error the beat says what it was in
            return found

        return call

    def watch_waits(self, work: Any) -> None:
        """Who waits for a call that was begun with `async_op=True` is in that call again."""
        wait = work.wait

        def watched(begun: Any, *args: Any, **kwargs: Any) -> Any:
            beat = self._begun.get(begun)
            if beat is None:
                return wait(begun, *args, **kwargs)
            self.task.beat(*beat._replace(since=clock()))
            found = wait(begun, *args, **kwargs)
            self.task.enter(self.task.doing)
            return found

        work.wait = watched

    def _beat(self, name: str, parameters: list[str], given: Mapping[str, Any], group: Any) -> Beat:
        if group not in self._groups:
            ranks = dist.get_process_group_ranks(group)
            self._groups[group] = group.group_name, ranks, _bits(ranks), dist.get_rank()
        # `members`: whom the call surely waits for
        key, ranks, members, mine = self._groups[group]
        what, message = name, name in MESSAGES
        if end := next((end for end in ENDS if end in parameters), ""):
            root, within = given.get(end), given.get(f"group_{end}")
            if root is None and (within is not None or not message):
                root = ranks[within or 0]
            what = f"{name} {ENDS[end]} {'any rank' if root is None else f'rank {root}'}"
            if message:
                tag = given.get("tag") or ""
                key += f":{root}>{mine}:{tag}" if end == "src" else f":{mine}>{root}:{tag}"
            if message or end == "src":
                members = _bits([] if root is None else [root])
            elif root != mine:
                members = 0
        self._numbers[key] += 1
        tensor, size, about = given.get(SAME_SIZE.get(name, "tensor")), 0, ""
        if isinstance(tensor, torch.Tensor):
            about = _about(tensor.shape, tensor.dtype)
            size = tensor.nbytes if message or name in SAME_SIZE else 0
        step = -1 if self.task.step is None else self.task.step
        number = self._numbers[key]
        return Beat(step, what, clock(), number, mine, members, size, key, about, _where())


def _bits(ranks: Iterable[int]) -> int:
    return sum(1 << rank for rank in ranks if rank < 64)


@functools.lru_cache
def _about(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"


def _where() -> str:
    """The line of the learner's code that makes a call; "" if there is none."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith(_NO_LEARNER):
        frame = frame.f_back  # type: ignore[assignment]
    return _line(frame.f_code.co_filename, frame.f_lineno) if frame else ""


@functools.lru_cache
def _line(file: str, line: int) -> str:
    return f"line {line} of a cell" if "ipykernel_" in file else f"{Path(file).name}:{line}"
