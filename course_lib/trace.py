"""The trace: a closed set of events, written by each task as it runs, and read by everything that
looks at a run.

In a run directory each task writes its own `tasks/worker-0/events.jsonl`, and the supervisor writes
`lifecycle.jsonl` and `traffic.jsonl`. A line is one event: its kind, then its fields. All times are
seconds on the machine's one monotonic clock; a `Trace` shows them from the start of the run.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

PHASES = ("read", "compute", "reduce", "apply", "wait", "checkpoint")


class Phase(NamedTuple):
    """What a task did from `start` to `end` in a step; `what` is one of `PHASES`."""

    task: str
    step: int
    what: str
    start: float
    end: float


class Message(NamedTuple):
    """Bytes that went from one task to another, recorded by `task`, in a round of a collective."""

    task: str
    src: str
    dst: str
    bytes: int
    round: int
    chunk: int
    start: float
    end: float


class Update(NamedTuple):
    """An assignment to model variables. Versions count updates: `staleness` is how many others came
    between read and write.

    `gradients`: how many computed gradients went into it. One that goes into none is a `Metric`
    named "dropped". `workers`: whose they are, such as "worker:3" or "worker:0 worker:2"; "" where
    all workers bring theirs together, or where it is not known.
    """

    task: str
    step: int
    variables: str
    device: str
    read: int
    written: int
    at: float
    gradients: int = 1
    workers: str = ""

    @property
    def staleness(self) -> int:
        return self.written - self.read - 1


class Metric(NamedTuple):
    """A named number at a step; `samples` is how many examples the whole run had used by then."""

    task: str
    name: str
    value: float
    step: int
    samples: int
    at: float


class Lifecycle(NamedTuple):
    """A task entered a state: starting, running, done, failed, killed, paused, resumed or slowed;
    `why` may be empty.

    A host (`host:1`) does as well: linked (its link was changed), cut off or healed.
    """

    task: str
    state: str
    why: str
    at: float


class Traffic(NamedTuple):
    """What a task, or a host (`host:1`), has put on the wire and taken from it since the run began:
    bytes and packets, as the kernel counts them.

    Bytes are those of whole packets, headers included. The kernel hands on up to 64 KB as one
    packet, cut up by real network cards only.
    """

    task: str
    sent: int
    received: int
    packets_sent: int
    packets_received: int
    at: float


Event = Phase | Message | Update | Metric | Lifecycle | Traffic
KINDS: dict[str, type[Event]] = {
    "phase": Phase,
    "message": Message,
    "update": Update,
    "metric": Metric,
    "lifecycle": Lifecycle,
    "traffic": Traffic,
}
# made once: json.dumps would make one for every event
_encode = json.JSONEncoder(separators=(",", ":")).encode
_NAMES = {kind: name for name, kind in KINDS.items()}
_TIMES = {
    Phase: (3, 4),
    Message: (6, 7),
    Update: (6,),
    Metric: (5,),
    Lifecycle: (3,),
    Traffic: (5,),
}  # which fields are times
E = TypeVar("E", Phase, Message, Update, Metric, Lifecycle, Traffic)


def to_line(event: Event) -> bytes:
    """One event as one line of JSON."""
    return _encode([_NAMES[type(event)], *event]).encode() + b"\n"


def from_line(line: str | bytes, origin: float = 0.0) -> Event:
    """The event that a line holds, its times counted from `origin`.

    Raises ValueError for a line that is none.
    """
    name, *fields = json.loads(line)
    if name not in KINDS:
        raise ValueError(f"no kind of event is called {name!r}")
    for i in _TIMES[KINDS[name]]:
        fields[i] -= origin
    return KINDS[name](*fields)


class Recorder:
    """Collects the events of one task and writes them behind its back.

    `add` costs a tuple and a list append, so that tracing does not disturb what it measures; a
    thread writes the batch ten times a second. Whoever reads the file sees an event at most about
    0.1 s after it happened. With no path, nothing is kept.
    """

    def __init__(self, path: Path | None, period: float = 0.1) -> None:
        self._pending: list[Event] = []
        self._file = path.open("ab", buffering=0) if path else None
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self.add = self._pending.append if path else _forget
        self._period = period
        self._thread: threading.Thread | None = None
        if path:
            self._thread = threading.Thread(
                target=self._write_on, name="lockstep-recorder", daemon=True
            )
            self._thread.start()

    def flush(self) -> None:
        """Write what is pending."""
        with self._writing:
            count = len(self._pending)
            if count and self._file:
                batch = self._pending[:count]
                self._file.write(b"".join(map(to_line, batch)))
                del self._pending[:count]  # the same list goes on: `add` is bound to it

    def close(self) -> None:
        """Write what is pending and end the thread."""
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=5)
        self.flush()
        if self._file:
            self._file.close()

    def _write_on(self) -> None:
        while not self._stop.wait(self._period):
            self.flush()


def _forget(event: Event) -> None:
    """Takes an event and keeps nothing: tracing switched off."""


class Trace:
    """The events of a run, merged on one clock that starts at zero when the run starts.

    Made from events in hand, from a file (`Trace.load`), or from a run directory (`Trace.of_run`),
    where `refresh` reads what came since: a live trace and a saved one are the same thing.
    """

    def __init__(
        self, events: Iterable[Event] = (), run_dir: Path | None = None, origin: float = 0.0
    ) -> None:
        self._events: dict[type[Event], list[Event]] = defaultdict(list)
        self._lock = threading.Lock()
        self.run_dir, self._origin = run_dir, origin
        self._offsets: dict[Path, int] = {}
        self._add(events)

    @classmethod
    def of_run(cls, run_dir: Path | str) -> Trace:
        """The trace of a run directory, as far as it has got."""
        run_dir = Path(run_dir)
        origin = json.loads((run_dir / "run.json").read_text())["origin"]
        return cls(run_dir=run_dir, origin=origin).refresh()

    @classmethod
    def load(cls, path: Path | str) -> Trace:
        """A trace written by `save`."""
        with Path(path).open("rb") as lines:
            return cls(map(from_line, lines))

    def save(self, path: Path | str) -> None:
        """Write all events as one file of JSON lines, in order of time; `load` reads it back."""
        with Path(path).open("wb") as out:
            out.writelines(map(to_line, self))

    def since(self, kind: type[E], number: int) -> list[E]:
        """Events of one kind after the first `number`, in the order in which they were written."""
        return list(self._events.get(kind, ())[number:])  # type: ignore[arg-type]  # as in `all`

    def refresh(self) -> Trace:
        """Read what the tasks have written since the last call; returns the trace itself."""
        if self.run_dir:
            with self._lock:
                for path in (
                    *sorted(self.run_dir.glob("*.jsonl")),
                    *sorted(self.run_dir.glob("tasks/*/events.jsonl")),
                ):
                    self._add(self._read_on(path))
        return self

    def __iter__(self) -> Iterator[Event]:
        """All events in order of their time (of their end, for those that last)."""
        return iter(
            sorted((e for kind in list(self._events) for e in list(self._events[kind])), key=end_of)
        )

    def __len__(self) -> int:
        return sum(len(events) for events in self._events.values())

    def __repr__(self) -> str:
        return f"Trace({len(self)} events, {len(self.tasks)} tasks, {self.seconds:.2f} s)"

    def all(self, kind: type[E], task: str | None = None, **fields: object) -> list[E]:
        """Events of one kind in the order written, narrowed to a task and to equal fields:
        `all(Phase, "worker:0", what="reduce")`.
        """
        events: list[E] = list(self._events.get(kind, ()))  # type: ignore[arg-type]  # the dict maps each kind to its own list
        if task is not None:
            events = [e for e in events if e.task == task]
        for name, value in fields.items():
            events = [e for e in events if getattr(e, name) == value]
        return events

    @property
    def tasks(self) -> list[str]:
        """Tasks of which anything is known, in order of job and index; hosts are none."""
        known = {e.task for events in list(self._events.values()) for e in list(events)}
        return sorted((task for task in known if not task.startswith("host:")), key=task_key)

    @property
    def seconds(self) -> float:
        """Time of the last event."""
        return max(
            (end_of(e) for events in list(self._events.values()) for e in events[-50:]), default=0.0
        )

    def last(self, task: str) -> str:
        """What a task did last, in words, for error messages."""
        phase, life = self.all(Phase, task)[-1:], self.all(Lifecycle, task)[-1:]
        if phase and not (life and life[0].state != "running" and life[0].at > phase[0].end):
            return f"has finished '{phase[0].what}' of step {phase[0].step} and nothing since"
        return ": ".join(filter(None, life[0][1:3])) if life else "not a word yet"

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events[type(event)].append(event)

    def _read_on(self, path: Path) -> list[Event]:
        """Whole lines written since the last look; a line still being written waits for the next."""
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offsets[path] = self._offsets.get(path, 0) + whole
        return [from_line(line, self._origin) for line in data[:whole].splitlines()]


def end_of(event: Event) -> float:
    """When an event was over."""
    return event.end if isinstance(event, (Phase, Message)) else event.at


def task_key(task: str) -> tuple[str, int]:
    """Sort key: by job, then by index as a number."""
    job, _, index = task.partition(":")
    return job, int(index) if index.isdigit() else -1
