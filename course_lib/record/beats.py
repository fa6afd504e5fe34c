"""Beats: what each task of a live run entered last, and when, in memory that its processes share.

An event is recorded when something has ended, so the events of a task that hangs do not tell what
it hangs in. A beat is written when something begins. In the file of a run each task has a slot of
fixed size, into which it writes without a lock; others read it at any time. The file is removed
when the run is over.


Calls of collectives that can never end, as the beats of the ranks show: different calls where
all must make the same, calls that wait for each other, and calls that wait for a rank that has
returned.

Ranks match their calls by order: the seventh call in a group is one collective, whatever each rank
calls there. A message from rank 0 to rank 1 matches by order as well, in the group "0>1".
"""

import itertools
import mmap
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from course_lib.activity import Activity

KEPT = 16  # the latest calls of collectives that are kept of each task
# A slot has a record of what is no call, and those of the latest calls. A record lies between two
# counts, which differ while it is being written; what was entered last has the highest.
_PHASE = struct.Struct("<Q q40sd Q")
_CALL = struct.Struct("<Q q40sd qqQQq 32s48s64s Q")
_SLOT = _PHASE.size + KEPT * _CALL.size
_CALLS = range(_PHASE.size, _SLOT, _CALL.size)  # where they lie in a slot
_PACKAGE = str(Path(__file__).parents[1])


class Beat(NamedTuple):
    """The thing that a task entered last, and `since` when, on the machine's clock (0 before its
    first beat).

    `what`: read, compute, reduce, ... in a `step` (-1 before the first); "" between them. Or a call
    of a collective by a learner's own code, such as "broadcast from rank 0". Of such a call: its
    `number` among those of its `group` (from 1; 0 if this is no call), the task's `rank`, as bits
    (1 << rank) the `members` of the group and those that the call surely `needs`, the `size` of the
    tensor in bytes (0 where ranks may differ); more `about` it, such as "(10, 4) float32", and
    `where` it was made, such as "train.py:17".
    """

    step: int = -1
    what: str = ""
    since: float = 0.0
    number: int = 0
    rank: int = -1
    members: int = 0
    needs: int = 0
    size: int = 0
    group: str = ""
    about: str = ""
    where: str = ""


class Beats:
    """The beats of a run with these `tasks`, in a file that is made if it is not there; with
    `make=False` it is only read, and an OSError or ValueError raised if it is not there.

    What has been opened can be read on when the file is gone.
    """

    def __init__(self, path: Path, tasks: Sequence[str], make: bool = True) -> None:
        size = len(tasks) * _SLOT
        with path.open("a+b" if make else "rb") as file:
            if make:  # zeros, as a hole in the file could not be filled when the disk is full
                file.write(bytes(size - file.tell()))
                file.flush()
            access = mmap.ACCESS_WRITE if make else mmap.ACCESS_READ
            self._memory = memoryview(mmap.mmap(file.fileno(), size, access=access))
        self._slots = {task: n * _SLOT for n, task in enumerate(tasks)}

    def writer(self, task: str) -> Callable[..., None]:
        """A function of the fields of a `Beat`, all of them for a call, by which the task says what
        it is in. What an earlier attempt has written is forgotten.
        """
        first, memory = self._slots[task], self._memory
        memory[first : first + _SLOT] = bytes(_SLOT)
        phase = slice(first, first + _PHASE.size)
        calls = itertools.cycle([slice(first + at, first + at + _CALL.size) for at in _CALLS])
        counts = itertools.count(1)

        def write(step: int, what: str, since: float, number: int = 0, *call: Any) -> None:
            count, name = next(counts), what.encode()
            if number:
                facts = *call[:4], *map(str.encode, call[4:])
                memory[next(calls)] = _CALL.pack(count, step, name, since, number, *facts, count)
            else:
                memory[phase] = _PHASE.pack(count, step, name, since, count)

        return write

    def now(self, task: str) -> Beat:
        """The thing that a task is in."""
        return _beat(*max(self._read(_PHASE, self._slots[task]), *self._calls(task)))

    def calls(self, task: str) -> list[Beat]:
        """The latest calls of a task, in any order."""
        return [_beat(*record) for record in self._calls(task) if record[0]]

    def slot(self, task: str) -> bytes:
        """All that a task has written, to be laid into the file of another machine."""
        return bytes(self._memory[self._slots[task] : self._slots[task] + _SLOT])

    def lay(self, task: str, slot: bytes) -> None:
        self._memory[self._slots[task] : self._slots[task] + _SLOT] = slot

    def close(self) -> None:
        """The run is over. What was said last can be read on, and no descriptor is kept open."""
        self._memory = memoryview(bytes(self._memory))

    def _calls(self, task: str) -> list[tuple[Any, ...]]:
        return [self._read(_CALL, self._slots[task] + place) for place in _CALLS]

    def _read(self, kind: struct.Struct, at: int) -> tuple[Any, ...]:
        """The count of a record, 0 if nothing has been written, and the fields of its beat."""
        for _ in range(100):
            *record, count = kind.unpack_from(self._memory, at)
            if record[0] == count:
                break
        return tuple(record)


def _beat(count: int, *fields: Any) -> Beat:
    plain: list[Any] = [
        f.rstrip(b"\0").decode(errors="ignore") if isinstance(f, bytes) else f for f in fields
    ]
    return Beat(*plain) if count else Beat()


def bits(ranks: Iterable[int]) -> int:
    """Ranks as bits; those from 64 on have none."""
    return sum(1 << rank for rank in ranks if rank < 64)


def calling_line(*libraries: str) -> str:
    """The line of the learner's code that makes a call, "train.py:17"; "" if there is none.
    `libraries`: folders and files, beside this package, in which no code of a learner lies.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith((_PACKAGE, *libraries)):
        frame = frame.f_back
    if not frame:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    if "checks" in Path(file).parts:
        return "its place in the exercise's check"
    return f"line {line} of a cell" if "ipykernel_" in file else f"{Path(file).name}:{line}"


# --- calls that never end ---

ANY = "any rank"  # from which a message may come
CURE = "All ranks of a group must make the same calls in the same order, with the same sizes"
BACKWARD, DDP, FSDP = "the all-reduce of its backward pass", "DDP's ", "FSDP's "
# how a call is named that a wrapper of the model makes -> the cure where a rank has returned
UNEVEN = dict.fromkeys([BACKWARD, DDP], "join() or drop the last") | {FSDP: "drop the last"}


def call_words(call: Beat) -> str:
    """ "all_reduce of (10, 4) float32 at train.py:17"."""
    about = f" of {call.about}" if call.about else ""
    return f"{call.what}{about}{f' at {call.where}' if call.where else ''}"


def endless(
    now: Mapping[str, Beat], calls: Mapping[str, Sequence[Beat]], over: Collection[str] = ()
) -> dict[str, Activity]:
    """Tasks whose call never ends -> what each does; whoever is the cause comes first.

    `now`: what each task is in, in order of the ranks; `calls`: the latest calls of each; `over`:
    tasks whose function has returned. Empty if each call may end.
    """
    inside = {task: beat for task, beat in now.items() if beat.number}
    for call in inside.values():
        if mismatch := _different(call, calls):
            return mismatch
    tasks = dict(enumerate(now))
    tasks |= {call.rank: task for task, kept in calls.items() for call in kept}
    waits = {task: _missing(call, tasks, calls, over) for task, call in inside.items()}
    stuck = set(waits)

    def blocked(task: str) -> bool:
        """A message from any rank comes if one of them is not stuck."""
        lost = [other in stuck or other in over for other in waits[task]]
        return any(lost) and (all(lost) or ANY not in inside[task].group)

    while free := {task for task in stuck if not blocked(task)}:
        stuck -= free
    never = {task: call for task, call in inside.items() if task in stuck}
    gone = {m: _returned(call) for task, call in never.items() for m in waits[task] if m in over}
    does = {}
    for task, call in never.items():
        step = f", step {call.step}," if call.step >= 0 else ""
        does[task] = Activity(f"waits in {call_words(call)}{step}", awaits=tuple(waits[task]))
    return gone | does


def _returned(call: Beat) -> Activity:
    """That a task has returned for which others wait in a call, and the cure."""
    cures = [cure for name, cure in UNEVEN.items() if call.what.startswith(name)]
    why = f": their data differ in length; {cures[0]}" if cures else ""
    return Activity(f"has returned{why}")


def _different(call: Beat, calls: Mapping[str, Sequence[Beat]]) -> dict[str, Activity]:
    """The tasks that called something else where one made this call, and all others."""
    alike: dict[tuple[str, int], dict[str, Beat]] = defaultdict(dict)
    for task, kept in calls.items():
        for each in kept:
            if (each.group, each.number) == (call.group, call.number):
                alike["" if ">" in each.group else each.what, each.size][task] = each
    if len(alike) < 2:
        return {}
    # the fewest are the cause; of as many, not those of the first task
    few, *others = sorted(reversed(alike.values()), key=len)
    does = {t: f"calls {call_words(c)} as number {c.number} of its group" for t, c in few.items()}
    for made in others:
        does |= {task: f"calls {call_words(c)} instead" for task, c in made.items()}
    return {task: Activity(text) for task, text in does.items()}


def _missing(
    call: Beat, tasks: Mapping[int, str], calls: Mapping[str, Sequence[Beat]], over: Collection[str]
) -> list[str]:
    """The tasks that a call waits for and that have not come to it. Nobody surely waits for those
    who receive a broadcast, but if one has returned before, some rank waits for ever. A message
    from any rank is on its way if they have sent as many as were received.
    """
    latest, others = dict[str, int](), call.members & ~(1 << call.rank)
    whole = {task for task, kept in calls.items() if len(kept) < KEPT}  # none is forgotten
    for rank, task in tasks.items():
        group = call.group.replace(ANY, f"{rank}")
        latest[task] = max((c.number for c in calls[task] if c.group == group), default=0)
    if ANY in call.group:
        on_its_way = sum(latest.values()) >= call.number
        return [] if on_its_way else [task for r, task in tasks.items() if others >> r & 1]
    return [
        task
        for rank, task in tasks.items()
        if latest[task] < call.number
        and (
            call.needs >> rank & 1
            or (others >> rank & 1 and task in over and (latest[task] or task in whole))
        )
    ]
