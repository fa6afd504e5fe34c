"""Export of a trace to Perfetto and chrome://tracing."""

import json
from pathlib import Path
from typing import Any

from course_lib.record import events
from course_lib.record.trace import Trace


def save(trace: Trace, path: Path | str) -> None:
    """Write a trace as one JSON file in Chrome's trace-event format, which Perfetto and
    chrome://tracing open.

    Format: "Trace Event Format" document of the Chromium project. Times there are microseconds; a
    task or host is shown as a thread, and all fields of an event are in its `args`.
    """
    tasks = sorted({event.task for event in trace}, key=events.task_key)  # hosts among them
    number = {task: i for i, task in enumerate(tasks)}
    entries = [
        {"ph": "M", "pid": 0, "tid": i, "name": f"thread_{what}", "args": {what: value}}
        for task, i in number.items()
        for what, value in (("name", task), ("sort_index", i))
    ]
    entries += [{"pid": 0, "tid": number[event.task], **_entry(event)} for event in trace]
    Path(path).write_text(json.dumps({"traceEvents": entries, "displayTimeUnit": "ms"}))


def _entry(event: events.Event) -> dict[str, Any]:
    """An event as a span ("X"), a counter ("C") or an instant ("i")."""
    kind, at, about = type(event).__name__.lower(), events.end_of(event) * 1e6, event._asdict()
    match event:
        case events.Phase() | events.Message():
            name = event.what if isinstance(event, events.Phase) else f"{event.src} to {event.dst}"
            length = (event.end - event.start) * 1e6
            span = {"ph": "X", "ts": event.start * 1e6, "dur": length}
            return {**span, "name": name, "cat": kind, "args": about}
        case events.Metric():
            return {"ph": "C", "ts": at, "name": event.name, "args": {event.name: event.value}}
        case events.Traffic():
            counts = {"sent": event.sent, "received": event.received}
            return {"ph": "C", "ts": at, "name": f"bytes of {event.task}", "args": counts}
        case events.Update():
            name, about["staleness"] = f"update {event.variables}", event.staleness
        case events.Dropped():
            name = f"dropped: {event.why}"
        case events.Read():
            name = f"{len(event.examples)} examples of epoch {event.epoch}"
        case events.Lifecycle():
            name = event.state
    return {"ph": "i", "s": "t", "ts": at, "name": name, "cat": kind, "args": about}
