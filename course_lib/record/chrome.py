"""A trace in Chrome's trace-event format, which Perfetto and chrome://tracing open.

Format: "Trace Event Format" document of the Chromium project. Times there are microseconds; a task
or host is shown as a thread, and all fields of an event stand in its `args`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from course_lib.record.events import (
    Event,
    Lifecycle,
    Message,
    Metric,
    Phase,
    Traffic,
    Update,
    end_of,
    task_key,
)
from course_lib.record.trace import Trace


def save_chrome(trace: Trace, path: Path | str) -> None:
    """Write `trace` as one JSON file for Perfetto."""
    tasks = sorted({event.task for event in trace}, key=task_key)  # hosts among them
    number = {task: i for i, task in enumerate(tasks)}
    entries = [
        {"ph": "M", "pid": 0, "tid": i, "name": what, "args": {field: value}}
        for task, i in number.items()
        for what, field, value in (
            ("thread_name", "name", task),
            ("thread_sort_index", "sort_index", i),
        )
    ]
    entries += [{"pid": 0, "tid": number[event.task], **_entry(event)} for event in trace]
    Path(path).write_text(json.dumps({"traceEvents": entries, "displayTimeUnit": "ms"}))


def _entry(event: Event) -> dict[str, Any]:
    """An event as a span ("X"), an instant ("i") or a counter ("C")."""
    instant = {"ph": "i", "s": "t", "ts": end_of(event) * 1e6, "args": event._asdict()}
    match event:
        case Phase() | Message():
            name = event.what if isinstance(event, Phase) else f"{event.src} to {event.dst}"
            length = (event.end - event.start) * 1e6
            span = {"ph": "X", "ts": event.start * 1e6, "dur": length, "name": name}
            return {**span, "cat": type(event).__name__.lower(), "args": event._asdict()}
        case Metric():
            return instant | {"ph": "C", "name": event.name, "args": {event.name: event.value}}
        case Traffic():
            counts = {"sent": event.sent, "received": event.received}
            return instant | {"ph": "C", "name": f"bytes of {event.task}", "args": counts}
        case Update():
            about = {"staleness": event.staleness, **event._asdict()}
            return instant | {"cat": "update", "name": f"update {event.variables}", "args": about}
        case Lifecycle():
            return instant | {"cat": "lifecycle", "name": event.state}
