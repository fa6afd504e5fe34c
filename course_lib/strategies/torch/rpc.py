"""Calls from workers to parameter servers (ps): a worker names a function, a ps runs it and replies
with its value. And what is passed: snapshots, gradients and replies.

A call is JSON, with the bytes of its tensor behind it (`exchange/messages.py`). A ps runs only the
functions marked `on_ps`, and unpickles nothing. PyTorch's own RPC unpickles what it is sent, and
cannot take back a process that has died and was started again; production systems use gRPC, which
has neither fault.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from course_lib.cluster.task import Task
from course_lib.exchange.meeting import Meeting
from course_lib.exchange.messages import Peer, ready
from course_lib.record.events import Lifecycle, from_lines
from course_lib.record.files import read_lines
from course_lib.strategies.torch.tensors import of_runs, runs

LOOK = 0.5  # seconds between two looks for workers that were lost before they came
ON_PS: dict[str, Callable[..., Any]] = {}
F = TypeVar("F", bound=Callable[..., Any])


def on_ps(function: F) -> F:
    """Mark a function that a ps runs for workers. Its first argument is the ps's shard."""
    ON_PS[function.__name__] = function
    return function


# --- what is passed ---


@dataclass(frozen=True)
class Snapshot:
    """A copy of a shard: its `version` and `values`; a sparse vector has only those that differ
    from a version that the worker has.

    `evaluate_at`: the examples that the values have seen, if whoever gets them is to measure the
    test accuracy; else 0.
    """

    version: int
    values: torch.Tensor
    evaluate_at: int


@dataclass(frozen=True)
class Gradient:
    """A push of a worker to a shard: the mean gradient of its share of a batch, `values` for this
    piece of the parameters, computed from version `read`. The mean is `loss / count`, 1 being the
    count of a loss that is a mean by itself.
    """

    worker: int
    step: int
    read: int
    values: torch.Tensor
    loss: float
    count: float = 1.0


@dataclass(frozen=True)
class Reply:
    """The reply of a shard to a push.

    Its `version` now; the mean `loss` of the last gradients, as many as make up a global batch; how
    many `examples` its updates have used so far; how many steps the `slowest` worker has done; and
    whether this gradient was `used`.
    """

    version: int
    loss: float
    examples: int
    slowest: int
    used: bool = True


KINDS: dict[str, Callable[..., Any]] = {k.__name__: k for k in (Snapshot, Gradient, Reply)}
KINDS["runs"] = of_runs


def send(peer: Peer, value: Any) -> None:
    """Send a value that consists of JSON's types, tensors and what is defined above."""
    tensors: list[torch.Tensor] = []

    def as_json(each: Any) -> dict[str, Any]:
        if not isinstance(each, torch.Tensor):
            return {type(each).__name__: list(vars(each).values())}
        if each.is_sparse:
            return {"runs": [*runs(each), each.values(), len(each)]}
        tensors.append(each)
        return {"tensor": [str(each.dtype).removeprefix("torch."), each.nbytes]}

    text = json.dumps(value, default=as_json)
    peer.send(text, [memoryview(each.view(torch.uint8).numpy()) for each in tensors])


def receive(peer: Peer) -> Any:
    """The next value that a peer has sent; None if it has not come whole."""
    message = peer.receive()
    if message is None:
        return None
    text, block = message

    def decoded(each: dict[str, Any]) -> Any:
        nonlocal block
        (name, value), *more = each.items() or [("", None)]
        if more or not isinstance(value, list):
            return each
        if name == "tensor":
            its, block = block[: value[1]], block[value[1] :]
            kind = getattr(torch, value[0])
            return torch.from_numpy(its).view(kind) if len(its) else torch.empty(0, dtype=kind)
        return KINDS[name](*value) if name in KINDS else each

    return json.loads(text, object_hook=decoded)


# --- on a ps ---


class Later(NamedTuple):
    """An answer of a ps that has to wait: it is `answer()`, as soon as `true()`.
    The ps serves other workers meanwhile.
    """

    true: Callable[[], bool]
    answer: Callable[[], Any]


def calls(task: Task) -> Iterator[tuple[int, Peer | None, Any]]:
    """On a ps: worker, connection and call (function, what for, arguments), as they come; None for
    the call once the worker is gone. Never ends.
    """
    meeting, workers = meeting_of(task), dict[Peer, int]()
    missing = set(range(task.spec.workers))  # those that have not come yet
    while True:
        for each in ready([*meeting.doors, *workers], LOOK if missing else None):
            if each in meeting.doors:
                if (caller := meeting.answer(each)) is not None:
                    worker, sock = caller
                    workers[Peer(f"worker:{worker}", sock)] = worker
                    missing.discard(worker)
                continue
            try:
                call = receive(each)
            except ConnectionError:
                each.sock.close()
                yield workers.pop(each), each, None
                continue
            if call is not None:
                yield workers[each], each, call
        for worker in missing & _lost(task) if missing else ():
            missing.discard(worker)
            yield worker, None, None


def _lost(task: Task) -> set[int]:
    """The workers that the run goes on without, as the supervisor has noted: one that has never
    come leaves no connection that could close.
    """
    events, _ = from_lines(read_lines(task.files.lifecycle))
    lost = (e.task for e in events if isinstance(e, Lifecycle) and e.state == "lost")
    return {int(name.partition(":")[2]) for name in lost if name.startswith("worker:")}


def meeting_of(task: Task) -> Meeting:
    """The place where workers meet the ps: in the run's directory, by sockets of this machine;
    between hosts by TCP, and then all of them, so that what they send is counted alike.
    """
    names = [name for name in task.spec.tasks if not name.startswith("chief")]  # workers, then ps
    several = len(task.spec.all_hosts) > 1
    places = tuple(range(len(names))) if several else (0,) * len(names)
    folder = task.files.meetings / "servers"
    return Meeting(folder, names.index(task.name), places, task.address)
