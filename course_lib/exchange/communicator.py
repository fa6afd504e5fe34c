"""Communicator: one rank of a group of processes that carry out schedules together.

Every rank works on a buffer of its own in shared memory. To send to a rank on the same host is to
say that a piece lies ready; the receiver reads it where it lies, and adds it or copies it. To
another host the bytes go over TCP. Long chunks travel in pieces, and a piece goes on to the next
round as soon as it is there, while those behind it are still on their way. There is no barrier.
"""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.collectives.schedule import Schedule
from course_lib.errors import LockstepError, SpecError
from course_lib.exchange.call import Call
from course_lib.exchange.execution import Execution
from course_lib.exchange.group import Group
from course_lib.exchange.meeting import Meeting
from course_lib.exchange.program import program
from course_lib.exchange.segment import Segment
from course_lib.network.wires import Wires
from course_lib.record.events import Message

PATIENCE = 30.0  # seconds
_KEPT = 64  # calls that are kept for the next time
_PAGE = 1 << 16


class Communicator:
    """Rank `rank` of a group that meets in `directory`; `place` is the host of each rank, and
    `address` where other hosts reach this one.

    `record` is given a `Message` for each transfer that this rank receives. `patience`: for how
    many seconds it waits for a rank that gives no sign of life. `wires`: the links between hosts,
    where nothing but this exchange imposes them; they are closed with the group. Not for two
    threads at a time.
    """

    def __init__(
        self,
        rank: int,
        place: Sequence[int],
        directory: Path | str,
        record: Callable[[Message], None] | None = None,
        patience: float = PATIENCE,
        address: str = "127.0.0.1",
        wires: Wires | None = None,
    ) -> None:
        self.rank, self.place = rank, tuple(place)
        self._group = Group(Meeting(Path(directory), rank, self.place, address), patience, wires)
        self.record = record
        self._calls: OrderedDict[tuple[int, int, np.dtype, bool], Call] = OrderedDict()
        self._segment: Segment | None = None
        self._spare: dict[int, np.ndarray] = {}
        self._broken: Exception | None = None
        self._closed = False

    def execute(self, schedule: Schedule, array: np.ndarray) -> None:
        """Carry out a schedule that `verify` accepts, in place: `array` is what this rank brings,
        and then what it has at the end.

        All ranks call it with the same schedule and with an array of the same length and dtype: any
        shape, any length, 0 included, any dtype with an addition. A server brings zeros. Raises
        `SpecError`; `Mismatch` on all ranks where they do not agree; `RankLost` where a rank dies
        or gives no sign of life. After one of the last two the group is of no further use.
        """
        if not array.flags.writeable:
            raise SpecError(
                "array", "read-only", "an array that can be written: it holds the result in the end"
            )
        flat = np.ascontiguousarray(array).reshape(-1)
        call = self._call(schedule, flat.size, flat.dtype, private=True)
        self._carry_out(call, flat, self._shared(call))
        if not np.may_share_memory(flat, array):
            array[...] = flat.reshape(array.shape)

    def buffer(self, schedule: Schedule, length: int, dtype: Any) -> np.ndarray:
        """The shared buffer itself, shape (length,), for `execute_buffer`."""
        return self._shared(self._call(schedule, length, np.dtype(dtype), private=False))

    def execute_buffer(self, schedule: Schedule, length: int, dtype: Any) -> None:
        """Like `execute`, on what stands in `buffer` and without copying it; what is there
        afterwards is to be read before the next call.
        """
        call = self._call(schedule, length, np.dtype(dtype), private=False)
        shared = self._shared(call)
        self._carry_out(call, shared, shared)

    def close(self) -> None:
        """Leave the group, once the peers have read what they need from here."""
        if self._closed:
            return
        self._closed = True
        if not self._broken:
            # what befalls the others now is not our trouble
            with contextlib.suppress(LockstepError):
                self._group.settle()
        self._group.close()
        if self._segment:
            self._segment.close()
            self._segment = None

    def _call(self, schedule: Schedule, length: int, dtype: np.dtype, private: bool) -> Call:
        """All that is known of a call before it begins; kept, since training makes the same calls
        in every step.
        """
        if self._broken:
            raise self._broken
        key = (id(schedule), length, dtype, private)
        if key not in self._calls:
            if schedule.ranks != len(self.place):
                raise SpecError(
                    "schedule",
                    schedule.name,
                    f"is for {schedule.ranks} ranks, and this group has {len(self.place)}",
                )
            check_dtype(dtype)
            alike = next(
                (
                    c
                    for (kept, *_, how), c in self._calls.items()
                    if (kept, how) == (id(schedule), private)
                ),
                None,
            )
            part = alike.program if alike else program(schedule, self.rank, self.place, private)
            self._calls[key] = Call.of(schedule, part, length, dtype)
            if len(self._calls) > _KEPT:
                self._calls.popitem(last=False)
        return self._calls[key]

    def _segment_for(self, call: Call) -> Segment:
        size = call.length * call.dtype.itemsize
        if self._segment is None or self._segment.size < size:
            old, self._segment = self._segment, Segment(max(size, _PAGE))
            if old:
                old.close()
        return self._segment

    def _shared(self, call: Call) -> np.ndarray:
        """The shared buffer of a call, once nobody needs what the last one left there."""
        self._settle()
        return self._segment_for(call).array(call.length, call.dtype)

    def _settle(self) -> None:
        with self._blame():
            self._group.settle()

    def _carry_out(self, call: Call, mine: np.ndarray, shared: np.ndarray) -> None:
        with self._blame():
            self._group.begin(call.about, call.program.peers)
            for peer in call.program.sent_to:
                self._group.links[peer].say(call.text, self._segment_for(call))
            Execution(
                call, mine, shared, self._group, self.record, partial(self._spare_array, call.dtype)
            ).run()

    def _spare_array(self, dtype: np.dtype, number: int, length: int) -> np.ndarray:
        """The same memory for every piece: new memory costs more than the work that is done in it."""
        size = length * dtype.itemsize
        if number not in self._spare or len(self._spare[number]) < size:
            self._spare[number] = np.empty(size, np.uint8)
        return self._spare[number][:size].view(dtype)

    @contextlib.contextmanager
    def _blame(self) -> Any:
        """Whatever goes wrong inside is the end of the group, and all ranks are to know why."""
        try:
            yield
        except BaseException as error:
            self._group.accuse(self.rank, f"it failed: {type(error).__name__}: {error}"[:500])
            self._broken = (
                copy.copy(error)
                if isinstance(error, LockstepError)
                else LockstepError(f"this group has failed before: {error!r}")
            )
            raise


def check_dtype(dtype: np.dtype) -> None:
    """Raise `SpecError` for a dtype that has no addition."""
    try:
        if dtype.hasobject or dtype.kind in "SU":  # texts can be added, too
            raise TypeError
        np.add(np.empty(0, dtype), np.empty(0, dtype), out=np.empty(0, dtype))
    except TypeError:
        raise SpecError("dtype", str(dtype), "a dtype of numbers, which can be added") from None
