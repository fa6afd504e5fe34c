"""Communicator: one rank of a group of processes that carry out schedules together.

Every rank has a buffer in shared memory. To send a piece to a rank of the same host, it only tells
that rank that the piece is ready there; the receiver reads it in place, and adds or copies it. To
another host the bytes go over TCP. A rank's operations and their order are computed beforehand
(`collectives.program`) and then carried out (`execution`). There is no barrier.
"""

import contextlib
import copy
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.collectives.program import program
from course_lib.collectives.schedule import Schedule
from course_lib.errors import LockstepError, SpecError
from course_lib.exchange.execution import Call, Execution
from course_lib.exchange.group import Group
from course_lib.exchange.meeting import Meeting
from course_lib.exchange.memory import Segment
from course_lib.network.wires import Wires
from course_lib.record.events import Message

PATIENCE = 30.0  # seconds
_KEPT = 64  # prepared calls that are kept for use again
_PAGE = 1 << 16


class Communicator:
    """Rank `rank` of a group that meets in `directory`; `place` is the host of each rank, and
    `address` where other hosts reach this one.

    `record` is called with a `Message` for each transfer that this rank receives. `patience`: how
    many seconds it waits for a rank that gives no sign of life. `wires`: the links between hosts,
    if this exchange imposes them itself; they are closed with the group. Only one thread at a time
    may use it.
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
        self._spares: dict[int, np.ndarray] = {}
        self._broken: Exception | None = None
        self._closed = False

    def execute(self, schedule: Schedule, array: np.ndarray) -> None:
        """Carry out a schedule that `verify` accepts, in place: `array` holds this rank's
        contribution before, and its result after.

        All ranks call it with the same schedule and with an array of the same length and dtype: any
        shape, any length, 0 included, any dtype that has an addition. A server brings zeros. Raises
        `SpecError` for an array or a schedule that does not fit; `Mismatch` on all ranks if they do
        not agree on the call; `RankLost` if a rank dies or gives no sign of life. After `Mismatch`
        or `RankLost` the group cannot be used any more.
        """
        if not array.flags.writeable:
            allowed = "an array that can be written: it holds the result in the end"
            raise SpecError("array", "read-only", allowed)
        flat = np.ascontiguousarray(array).reshape(-1)
        self._carry_out(self._call(schedule, flat.size, flat.dtype, private=True), flat)
        if not np.may_share_memory(flat, array):
            array[...] = flat.reshape(array.shape)

    def buffer(self, schedule: Schedule, length: int, dtype: Any) -> np.ndarray:
        """The shared buffer itself, shape (length,), for `execute_buffer`."""
        call = self._call(schedule, length, np.dtype(dtype), private=False)
        return self._segment_for(call).array(call.length, call.dtype)

    def execute_buffer(self, schedule: Schedule, length: int, dtype: Any) -> None:
        """Like `execute`, but in place in `buffer`, without a copy. Read the result before the next
        call.
        """
        self._carry_out(self._call(schedule, length, np.dtype(dtype), private=False), None)

    @property
    def buffered(self) -> int:
        """Bytes of this rank's buffer."""
        return self._segment.size if self._segment else 0

    def close(self) -> None:
        """Leave the group, once the peers have read what they need from our buffer."""
        if self._closed:
            return
        self._closed = True
        if self._broken:
            self._group.close()
        else:
            # an error of another rank does not matter any more
            with contextlib.suppress(LockstepError):
                self._group.settle()
            self._group.close(self._group.patience)
        if self._segment:
            self._segment.close()
            self._segment = None
        self._calls.clear()
        self._spares.clear()

    def _call(self, schedule: Schedule, length: int, dtype: np.dtype, private: bool) -> Call:
        """The prepared call. It is kept, since training makes the same calls in every step."""
        if self._broken:
            raise self._broken
        key = (id(schedule), length, dtype, private)
        if key not in self._calls:
            if schedule.ranks != len(self.place):
                needs = f"is for {schedule.ranks} ranks, and this group has {len(self.place)}"
                raise SpecError("schedule", schedule.name, needs)
            check_dtype(dtype)
            mine = program(schedule, self.place, self.rank, length, dtype.itemsize, private)
            about = {
                "algorithm": schedule.name,
                "schedule": schedule.digest,
                "length": length,
                "dtype": dtype.name if dtype.kind == "V" else dtype.str,
            }
            self._calls[key] = Call(schedule, mine, length, dtype, json.dumps(about))
            if len(self._calls) > _KEPT:
                self._calls.popitem(last=False)
        return self._calls[key]

    def _segment_for(self, call: Call) -> Segment:
        """The segment for a call; waits until no peer needs what the last call left there."""
        with self._blame():
            self._group.settle()
        size = call.length * call.dtype.itemsize
        if self._segment is None or self._segment.size < size:
            old, self._segment = self._segment, Segment(max(size, _PAGE))
            if old:
                old.close()
        return self._segment

    def _carry_out(self, call: Call, mine: np.ndarray | None) -> None:
        segment = self._segment_for(call)
        with self._blame():
            Execution(call, mine, segment, self._group, self.record, self._spares).run()

    @contextlib.contextmanager
    def _blame(self) -> Any:
        """Let an error inside the block end the group, and tell all ranks why."""
        try:
            yield
        except BaseException as error:
            self._group.accuse(self.rank, f"it failed: {type(error).__name__}: {error}"[:500])
            self._broken = LockstepError(f"this group has failed before: {error!r}")
            if isinstance(error, LockstepError):
                self._broken = copy.copy(error)
            raise


def check_dtype(dtype: np.dtype) -> None:
    """Raise `SpecError` for a dtype that has no addition."""
    try:
        if dtype.hasobject or dtype.kind in "SU":  # numpy adds texts, too
            raise TypeError
        np.add(np.empty(0, dtype), np.empty(0, dtype), out=np.empty(0, dtype))
    except TypeError:
        raise SpecError("dtype", str(dtype), "a dtype of numbers, which can be added") from None
