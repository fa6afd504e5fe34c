"""Beats: what each task of a live run entered last, and when, in memory that its processes share.

An event is recorded when something has ended, so the events of a task that hangs do not tell what
it hangs in. A beat is written when something begins. In the file of a run each task has a slot of
fixed size, into which it writes without a lock; others read it at any time. The file is removed
when the run is over.
"""

import itertools
import mmap
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

KEPT = 16  # the latest calls of collectives that are kept of each task
# between two counts, which differ while the record is being written
_RECORD = struct.Struct("<Q q40sd qqQq 32s48s64s Q")
_NO_CALL = (-1, 0, 0, b"", b"", b"")
_SLOT = (1 + KEPT) * _RECORD.size
_CALLS = range(_RECORD.size, _SLOT, _RECORD.size)  # where they lie in a slot


class Beat(NamedTuple):
    """What a task entered last, and `since` when, on the machine's clock (0 before its first beat).

    `what`: read, compute, reduce, ... in a `step` (-1 before the first); "" between them. Or a call
    of torch.distributed by a learner's own code, such as "broadcast from rank 0". Of such a call:
    its `number` among those of its `group` (from 1; 0 if this is no call), the task's `rank`, its
    `members` as bits (1 << rank), the `size` of the tensor in bytes (0 where ranks may differ);
    more `about` it, such as "(10, 4) float32", and `where` it was made, such as "train.py:17".
    """

    step: int = -1
    what: str = ""
    since: float = 0.0
    number: int = 0
    rank: int = -1
    members: int = 0
    size: int = 0
    group: str = ""
    about: str = ""
    where: str = ""


class Beats:
    """The beats of a run with these `tasks`, in a file that is made if it is not there.

    What has been opened can be read on when the file is gone.
    """

    def __init__(self, path: Path, tasks: Sequence[str]) -> None:
        size = len(tasks) * _SLOT
        with path.open("a+b") as file:
            # zeros, as a hole in the file could not be filled when the disk is full
            file.write(bytes(size - file.tell()))
            file.flush()
            self._memory = memoryview(mmap.mmap(file.fileno(), size))
        self._slots = {task: n * _SLOT for n, task in enumerate(tasks)}

    def writer(self, task: str) -> Callable[..., None]:
        """A function of the fields of a `Beat`, by which the task says what it is in. What an
        earlier attempt has written is forgotten.
        """
        first, memory = self._slots[task], self._memory
        memory[first : first + _SLOT] = bytes(_SLOT)
        places = (first + place for place in (0, *_CALLS))
        now, *calls = (slice(at, at + _RECORD.size) for at in places)
        counts, kept = itertools.count(1), itertools.cycle(calls)

        def write(step: int, what: str, since: float, number: int = 0, *call: Any) -> None:
            count = next(counts)
            more = (*call[:3], *map(str.encode, call[3:])) if call else _NO_CALL
            record = _RECORD.pack(count, step, what.encode(), since, number, *more, count)
            memory[now] = record
            if number:
                memory[next(kept)] = record

        return write

    def now(self, task: str) -> Beat:
        """What a task is in."""
        return self._get(self._slots[task])

    def calls(self, task: str) -> list[Beat]:
        """The latest calls of a task, in any order."""
        kept = (self._get(self._slots[task] + place) for place in _CALLS)
        return [call for call in kept if call.number]

    def close(self) -> None:
        """The run is over. What was said last can be read on, and no descriptor is kept open."""
        self._memory = memoryview(bytes(self._memory))

    def _get(self, at: int) -> Beat:
        for _ in range(100):
            first, *fields, last = _RECORD.unpack_from(self._memory, at)
            if first == last:
                break
        texts = (
            f.rstrip(b"\0").decode(errors="ignore") if isinstance(f, bytes) else f for f in fields
        )
        return Beat._make(texts) if first else Beat()
