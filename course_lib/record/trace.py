"""Trace: the events of a run, merged on one clock, live or saved."""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.errors import Damaged
from course_lib.record import events
from course_lib.record.events import E, Event, Lifecycle, Phase, end_of, from_lines, task_key
from course_lib.record.export import frame
from course_lib.record.files import read_lines
from course_lib.record.life import Life, Repeats
from course_lib.record.rundir import RunDir
from course_lib.record.waits import Reductions

if TYPE_CHECKING:
    from pandas import DataFrame


class Trace:
    """The events of a run, on one clock that starts at zero when the run starts.

    It is made from events, from a file (`Trace.load`), or from a run directory (`Trace.of_run`); in
    the last case `refresh` reads what has been written since. `seconds`: time of the last event.
    """

    def __init__(self, recorded: Iterable[Event] = (), files: RunDir | None = None) -> None:
        self._events: dict[type, list[Any]] = defaultdict(list)  # by kind
        self._lock = threading.Lock()
        self.files = files
        self._origin = files.facts.origin if files else 0.0
        self._offsets: dict[Path, int] = defaultdict(int)  # how far each file has been read
        self.seconds = 0.0
        self._add(recorded)

    @classmethod
    def of_run(cls, run_dir: RunDir | Path | str) -> Trace:
        """The trace of a run directory, with all that has been written so far."""
        files = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
        return cls(files=files).refresh()

    @classmethod
    def load(cls, path: Path | str) -> Trace:
        """A trace written by `save`. Raises `Damaged` if there is no event in the file."""
        trace = cls()
        trace._read(Path(path))
        if not len(trace):
            raise Damaged(path, "it holds no events")
        return trace

    def save(self, path: Path | str) -> None:
        """Write all events as one file of JSON lines, in order of time; `load` reads it back."""
        with Path(path).open("wb") as out:
            out.writelines(map(events.to_line, self))

    def since(self, kind: type[E], number: int) -> list[E]:
        """Events of one kind after the first `number`, in the order in which they were written."""
        return self._events.get(kind, [])[number:]

    def refresh(self) -> Trace:
        """Read what the tasks have written since the last call; returns the trace itself."""
        if self.files:
            with self._lock:
                for path in self.files.event_files():
                    self._read(path)
        return self

    def __iter__(self) -> Iterator[Event]:
        """All events in order of their time (of their end, for those that last)."""
        return iter(sorted(self._everything(), key=end_of))

    def __len__(self) -> int:
        return sum(map(len, self._events.values()))

    def __repr__(self) -> str:
        return f"Trace({len(self)} events, {len(self.tasks)} tasks, {self.seconds:.2f} s)"

    def all(self, kind: type[E], task: str | None = None, **fields: object) -> list[E]:
        """Events of one kind in the order written. `task` and `fields` select: `all(Phase,
        "worker:0", what="reduce")` returns the `reduce` phases of that task.
        """
        wanted = fields if task is None else {"task": task, **fields}
        chosen = self.since(kind, 0)
        for name, value in wanted.items():
            chosen = [e for e in chosen if getattr(e, name) == value]
        return chosen

    def once(self) -> Trace:
        """The trace without the events of steps that were done again after a restart."""
        life = Life(self.all(Lifecycle))
        repeats = Repeats(life)
        return Trace(e for e in self if not repeats(e)) if life.restarts else self

    def with_waits(self) -> list[Phase]:
        """All phases. Where workers meet in a reduction, each `reduce` becomes a `wait`, which
        lasts until the last of them has come, and the exchange, of which a part may be `hidden`.
        Without the hidden ones, the phases of a task do not overlap.
        """
        reductions = Reductions()
        reductions.add(self.all(Phase), self.all(events.Update))
        return reductions.complete(over=True)

    @property
    def tasks(self) -> list[str]:
        """The tasks that have an event, sorted by job and index; hosts are not among them."""
        known = {e.task for e in self._everything()}
        return sorted((task for task in known if not task.startswith("host:")), key=task_key)

    @property
    def phases(self) -> DataFrame:
        """The activities of all tasks: task, step, attempt, kind, start, end and duration in
        seconds.

        `kind` is read, compute, wait, reduce, hidden, apply or checkpoint, or a learner's own name.
        A reduction in which tasks meet is cut into the wait for the last of them, the exchange
        (reduce), and the part of it that computing hides (see `record/waits.py`).
        """
        return frame(Phase, self.with_waits(), Life(self.all(Lifecycle)))

    @property
    def messages(self) -> DataFrame:
        """The messages of collectives: task that recorded it, attempt, source, destination, bytes,
        round, chunk, start, end and duration in seconds.
        """
        return self._frame(events.Message)

    @property
    def updates(self) -> DataFrame:
        """The updates of variables: task, step, attempt, variables, device, the versions read and
        written, staleness (updates between the two), gradients, workers, time in seconds.
        """
        return self._frame(events.Update)

    @property
    def dropped(self) -> DataFrame:
        """The gradients that went into no update: task, step, attempt, cause, time, variables."""
        return self._frame(events.Dropped)

    @property
    def metrics(self) -> DataFrame:
        """Losses and other metrics: task, step, attempt, name, value, samples (examples that the
        run had used), time in seconds.
        """
        return self._frame(events.Metric)

    @property
    def reads(self) -> DataFrame:
        """The training examples that tasks read, in a run with `record_examples`: task, step,
        attempt, epoch, examples (a list of their places in the training data), time.
        """
        return self._frame(events.Read)

    @property
    def lifecycle(self) -> DataFrame:
        """The states of tasks and hosts, and what was done to them: task, state, cause, time, pid,
        factor, mbit, delay_ms, jitter, fault, attempt, loss (see `Lifecycle`).
        """
        return self._frame(Lifecycle)

    @property
    def traffic(self) -> DataFrame:
        """The kernel's counters of tasks and hosts: bytes and packets sent and received since the
        run began, at each reading's time.
        """
        return self._frame(events.Traffic)

    def _frame(self, kind: type[Event]) -> DataFrame:
        return frame(kind, self.all(kind), Life(self.all(Lifecycle)))

    def _everything(self) -> list[Event]:
        """All events, kind by kind, copied because another thread may be adding some."""
        return [e for of_kind in list(self._events.values()) for e in list(of_kind)]

    def _add(self, new: Iterable[Event]) -> None:
        for event in new:
            self._events[type(event)].append(event)
            self.seconds = max(self.seconds, end_of(event))

    def _read(self, path: Path) -> None:
        """Take in the complete lines that were added to a file since it was last read. Lines that
        hold no event are left out, with a warning.
        """
        wrong = 0
        while lines := read_lines(path, self._offsets[path]):
            self._offsets[path] += len(lines)
            new, others = from_lines(lines, self._origin)
            self._add(new)
            wrong += others
        if wrong:
            warnings.warn(f"{path}: {wrong} lines hold no event and are left out", stacklevel=3)
