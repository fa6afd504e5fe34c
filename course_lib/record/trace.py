"""Trace: the events of a run, merged on one clock, live or saved; and their export to Perfetto."""

from __future__ import annotations

import json
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from course_lib.errors import Damaged
from course_lib.record import reading
from course_lib.record.events import (
    Dropped,
    E,
    Event,
    Lifecycle,
    Message,
    Metric,
    Phase,
    Read,
    Traffic,
    Update,
    end_of,
    from_lines,
    task_key,
    to_line,
)
from course_lib.record.rundir import RunDir


class Trace:
    """The events of a run, on one clock that starts at zero when the run starts.

    It is made from events, from a file (`Trace.load`), or from a run directory (`Trace.of_run`); in
    the last case `refresh` reads what has been written since. `seconds`: time of the last event.
    """

    def __init__(self, events: Iterable[Event] = (), files: RunDir | None = None) -> None:
        self._events: dict[type[Event], list[Event]] = defaultdict(list)
        self._lock = threading.Lock()
        self.files = files
        self._origin = files.facts.origin if files else 0.0
        self._offsets: dict[Path, int] = defaultdict(int)  # how far each file has been read
        self.seconds = 0.0
        self._add(events)

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
            out.writelines(map(to_line, self))

    def since(self, kind: type[E], number: int) -> list[E]:
        """Events of one kind after the first `number`, in the order in which they were written."""
        # the dict maps each kind to a list of that kind
        return list(self._events.get(kind, ())[number:])  # type: ignore[arg-type]

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
        return sum(len(events) for events in self._events.values())

    def __repr__(self) -> str:
        return f"Trace({len(self)} events, {len(self.tasks)} tasks, {self.seconds:.2f} s)"

    def all(self, kind: type[E], task: str | None = None, **fields: object) -> list[E]:
        """Events of one kind in the order written. `task` and `fields` select: `all(Phase,
        "worker:0", what="reduce")` returns the `reduce` phases of that task.
        """
        events = self.since(kind, 0)
        if task is not None:
            events = [e for e in events if e.task == task]
        for name, value in fields.items():
            events = [e for e in events if getattr(e, name) == value]
        return events

    @property
    def tasks(self) -> list[str]:
        """The tasks that have an event, sorted by job and index; hosts are not among them."""
        known = {e.task for e in self._everything()}
        return sorted((task for task in known if not task.startswith("host:")), key=task_key)

    def _everything(self) -> list[Event]:
        """All events, kind by kind, copied because another thread may be adding some."""
        return [e for events in list(self._events.values()) for e in list(events)]

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events[type(event)].append(event)
            self.seconds = max(self.seconds, end_of(event))

    def _read(self, path: Path) -> None:
        """Take in the complete lines that were added to a file since it was last read. Lines that
        hold no event are left out, with a warning.
        """
        wrong = 0
        while lines := reading.lines(path, self._offsets[path]):
            self._offsets[path] += len(lines)
            events, others = from_lines(lines, self._origin)
            self._add(events)
            wrong += others
        if wrong:
            warnings.warn(f"{path}: {wrong} lines hold no event and are left out", stacklevel=3)


def save_chrome(trace: Trace, path: Path | str) -> None:
    """Write a trace as one JSON file in Chrome's trace-event format, which Perfetto and
    chrome://tracing open.

    Format: "Trace Event Format" document of the Chromium project. Times there are microseconds; a
    task or host is shown as a thread, and all fields of an event are in its `args`.
    """
    tasks = sorted({event.task for event in trace}, key=task_key)  # hosts among them
    number = {task: i for i, task in enumerate(tasks)}
    entries = [
        {"ph": "M", "pid": 0, "tid": i, "name": f"thread_{what}", "args": {what: value}}
        for task, i in number.items()
        for what, value in (("name", task), ("sort_index", i))
    ]
    entries += [{"pid": 0, "tid": number[event.task], **_entry(event)} for event in trace]
    Path(path).write_text(json.dumps({"traceEvents": entries, "displayTimeUnit": "ms"}))


def _entry(event: Event) -> dict[str, Any]:
    """An event as a span ("X"), a counter ("C") or an instant ("i")."""
    kind, at, about = type(event).__name__.lower(), end_of(event) * 1e6, event._asdict()
    match event:
        case Phase() | Message():
            name = event.what if isinstance(event, Phase) else f"{event.src} to {event.dst}"
            length = (event.end - event.start) * 1e6
            span = {"ph": "X", "ts": event.start * 1e6, "dur": length}
            return {**span, "name": name, "cat": kind, "args": about}
        case Metric():
            return {"ph": "C", "ts": at, "name": event.name, "args": {event.name: event.value}}
        case Traffic():
            counts = {"sent": event.sent, "received": event.received}
            return {"ph": "C", "ts": at, "name": f"bytes of {event.task}", "args": counts}
        case Update():
            name, about["staleness"] = f"update {event.variables}", event.staleness
        case Dropped():
            name = f"dropped: {event.why}"
        case Read():
            name = f"{len(event.examples)} examples of epoch {event.epoch}"
        case Lifecycle():
            name = event.state
    return {"ph": "i", "s": "t", "ts": at, "name": name, "cat": kind, "args": about}
