"""Exports of a trace: pandas.DataFrames, files of them, and the format of Perfetto. pandas is
imported with the first frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from course_lib.errors import SpecError
from course_lib.record import events
from course_lib.record.events import Event, Lifecycle
from course_lib.record.life import Life

if TYPE_CHECKING:
    from pandas import DataFrame

NAMES = {"what": "kind", "src": "source", "dst": "destination", "why": "cause", "at": "time"}
FRAMES = ("phases", "messages", "updates", "dropped", "metrics", "reads", "lifecycle", "traffic")
FORMATS = ("csv", "parquet")


def frame(kind: type[Event], rows: Sequence[Event], life: Life) -> DataFrame:
    """Builds the frame of one kind of events: a row for each, in the order of `rows`.

    Columns are the fields of the event (`NAMES` says which are called otherwise), with `duration`
    where there are a `start` and an `end`, `staleness` for updates, and the `attempt` in which the
    task was: 0 until it is started again. All times are seconds since the start of the run.
    """
    import pandas as pd

    table = pd.DataFrame.from_records(rows, columns=kind._fields)
    if table.empty:  # with the types of one that has rows
        hints = get_type_hints(kind).items()
        table = table.astype({name: hint for name, hint in hints if hint in (int, float, str)})
    table = table.rename(columns=NAMES)
    if "end" in table:
        table["duration"] = table["end"] - table["start"]
    if kind is events.Update:
        table["staleness"] = table["written"] - table["read"] - 1
    if kind is Lifecycle:
        return table
    attempts = [life.attempt(event.task, events.end_of(event)) for event in rows]
    table["attempt"] = pd.Series(attempts, dtype=int)
    first = [name for name in ("task", "step", "attempt") if name in table]
    return table[first + [name for name in table if name not in first]]


class Result(dict[str, Any]):
    """The figures of a run by name; for functions of a learner's own, what each task returned."""

    def to_frame(self) -> DataFrame:
        """Returns one row; figures inside figures have names such as `staleness.mean`. Frames of
        several results are put together with `pandas.concat`.
        """
        import pandas as pd

        return pd.json_normalize(self)


def save_frames(trace: Any, folder: Path | str, form: str) -> list[Path]:
    """Writes each frame of a trace that has rows as a file into a folder, which is made if needed.

    `form` is one of `FORMATS`. Returns the files. Raises `SpecError` for another form.
    """
    if form not in FORMATS:
        raise SpecError.unknown("format", form, FORMATS)
    Path(folder).mkdir(parents=True, exist_ok=True)
    files = []
    for name in FRAMES:
        table, path = getattr(trace, name), Path(folder) / f"{name}.{form}"
        if len(table):
            table.to_parquet(path) if form == "parquet" else table.to_csv(path, index=False)
            files.append(path)
    return files


def save_chrome(trace: Iterable[Event], path: Path | str) -> None:
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


def _entry(event: Event) -> dict[str, Any]:
    """An event as a span ("X"), a counter ("C") or an instant ("i")."""
    kind, about = type(event).__name__.lower(), event._asdict()
    entry = {"name": kind, "cat": kind, "ts": events.end_of(event) * 1e6, "args": about}
    match event:
        case events.Phase() | events.Message():
            name = event.what if isinstance(event, events.Phase) else f"{event.src} to {event.dst}"
            length = (event.end - event.start) * 1e6
            return entry | {"ph": "X", "name": name, "ts": event.start * 1e6, "dur": length}
        case events.Metric():
            return entry | {"ph": "C", "name": event.name, "args": {event.name: event.value}}
        case events.Traffic():
            counts = {"sent": event.sent, "received": event.received}
            return entry | {"ph": "C", "name": f"bytes of {event.task}", "args": counts}
        case Lifecycle():
            entry["name"] = event.state
    return entry | {"ph": "i", "s": "t"}
