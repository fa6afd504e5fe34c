"""A trace as the Chrome trace-event format, which Perfetto and chrome://tracing open.

Format: "Trace Event Format" document of the Chromium project. Times there are microseconds; a task
is shown as a thread.
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
    task_key,
)
from course_lib.record.trace import Trace


def save_chrome(trace: Trace, path: Path | str) -> None:
    """Write `trace` as one JSON file for Perfetto."""
    threads = {
        task: i for i, task in enumerate(sorted({event.task for event in trace}, key=task_key))
    }  # hosts among them
    names: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": i, "name": "thread_name", "args": {"name": task}}
        for task, i in threads.items()
    ]
    order: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": i, "name": "thread_sort_index", "args": {"sort_index": i}}
        for i in threads.values()
    ]
    events = [entry for event in trace for entry in _entries(event, threads)]
    Path(path).write_text(
        json.dumps({"traceEvents": names + order + events, "displayTimeUnit": "ms"})
    )


def _entries(event: Event, threads: dict[str, int]) -> list[dict[str, Any]]:
    """The entries that show one event."""
    base: dict[str, Any] = {"pid": 0, "tid": threads[event.task]}
    args: dict[str, Any]
    match event:
        case Phase():
            return [
                base
                | {
                    "ph": "X",
                    "cat": "phase",
                    "name": event.what,
                    **_span(event),
                    "args": {"step": event.step},
                }
            ]
        case Message():
            args = {"bytes": event.bytes, "round": event.round, "chunk": event.chunk}
            return [
                base
                | {
                    "ph": "X",
                    "cat": "message",
                    "name": f"{event.src} to {event.dst}",
                    **_span(event),
                    "args": args,
                }
            ]
        case Metric():
            return [
                base
                | {
                    "ph": "C",
                    "name": event.name,
                    "ts": event.at * 1e6,
                    "args": {event.name: event.value},
                }
            ]
        case Update():
            args = {
                "device": event.device,
                "read": event.read,
                "written": event.written,
                "staleness": event.staleness,
            }
            return [
                base
                | {
                    "ph": "i",
                    "s": "t",
                    "cat": "update",
                    "name": f"update {event.variables}",
                    "ts": event.at * 1e6,
                    "args": args,
                }
            ]
        case Lifecycle():
            return [
                base
                | {
                    "ph": "i",
                    "s": "t",
                    "cat": "lifecycle",
                    "name": event.state,
                    "ts": event.at * 1e6,
                    "args": {"why": event.why},
                }
            ]
        case Traffic():
            args = {"sent": event.sent, "received": event.received}
            return [
                base
                | {"ph": "C", "name": f"bytes of {event.task}", "ts": event.at * 1e6, "args": args}
            ]


def _span(event: Phase | Message) -> dict[str, Any]:
    return {"ts": event.start * 1e6, "dur": (event.end - event.start) * 1e6}
