"""Events: what happened in a run, as records of nine kinds. Each task writes its own events as it
runs; everything that shows or measures a run reads them.

In a run directory each task has its own `tasks/worker-0/events.jsonl`; `lifecycle.jsonl`,
`traffic.jsonl` and `clocks.jsonl` are the supervisor's. A line is one event: its kind, then its
fields. All times are seconds on the monotonic clock of the machine that started the run; a `Trace`
counts them from the start of the run.

`clock()` is that clock. It stands still while the machine sleeps, so no time-out of ours runs out
meanwhile. A task on another machine keeps to it by its own clock and the `offset` between the two,
which is estimated while the run goes on.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar, get_args

from pydantic import ConfigDict, Field, TypeAdapter

from course_lib.record.files import one_line, private

PHASES = ("read", "compute", "reduce", "apply", "wait", "checkpoint", "hidden")
OWN = "own"  # what pictures and tables call phases that have another name
STATES = ("starting", "running", "done", "failed", "killed", "restarting", "lost")
ACTIVE = ("starting", "running", "restarting")  # the states of a run or task that is not over


Seconds = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
"""A whole number that a float can hold as well."""


class Phase(NamedTuple):
    """The activity of a task from `start` to `end` in a step; `what` is one of `PHASES`, or a name
    that a learner gave.

    A `reduce` may go on beside the `compute` of its task. No task records `hidden`: `waits.py`
    gives this name to the part of a `reduce` that went on beside computing.
    """

    task: str
    step: Whole
    what: str
    start: Seconds
    end: Seconds

    @property
    def kind(self) -> str:
        """`what` if it is one of `PHASES`, else `OWN`."""
        return self.what if self.what in PHASES else OWN


class Message(NamedTuple):
    """Bytes that `src` sent to `dst` in a round of a collective, recorded by `task`."""

    task: str
    src: str
    dst: str
    bytes: Whole
    round: Whole
    chunk: Whole
    start: Seconds
    end: Seconds


class Update(NamedTuple):
    """An assignment to model variables. Their versions count updates: `staleness` is how many other
    updates came between the version that was `read` and the one that was `written`.

    `gradients`: how many computed gradients went into it. (A gradient that goes into no update is
    `Dropped`.) `workers`: whose gradients, such as "worker:3" or "worker:0 worker:2"; "" where all
    workers contribute together, or where it is not known.
    """

    task: str
    step: Whole
    variables: str
    device: str
    read: Whole
    written: Whole
    at: Seconds
    gradients: Whole = 1
    workers: str = ""

    @property
    def staleness(self) -> int:
        return self.written - self.read - 1


class Dropped(NamedTuple):
    """A gradient that `task` computed for a step and that goes into no update, and `why`: it was
    `late`; its worker was `lost`; or its `overflow` in float16 had it computed again, in the same
    phase. `variables`: which piece of it was dropped, as in `Update`; "" for all.
    """

    task: str
    step: Whole
    why: str
    at: Seconds
    variables: str = ""


class Metric(NamedTuple):
    """A named number at a step; `samples` is how many examples the whole run had used by then."""

    task: str
    name: str
    value: float
    step: Whole
    samples: Whole
    at: Seconds


class Read(NamedTuple):
    """The training examples of an `epoch` (their places in the training data) that a task read for
    a step; a batch in which the next epoch begins is two of these.
    """

    task: str
    step: Whole
    epoch: Whole
    examples: list[Whole]
    at: Seconds


class Lifecycle(NamedTuple):
    """A change of a task's state, or something done to a task or a host (`host:1`); `why` may be
    empty.

    A task is starting (with its `pid`), running, done, failed or killed (`STATES`). It may then be
    restarting, and is starting again, with as its `attempt` the number of restarts of the run so
    far; or it is lost, and the run goes on without it. In any state a task can be paused and
    resumed, or slowed: from then on it takes `factor` times as long; or jittered:
    from the next step on it has delays as `jitter` says, "" for none. A host can be linked (given a
    link of `mbit`, None for no limit, `delay_ms` and `loss`), cut or healed. `refused` is an order
    to a task or host that could not be carried out, or an event that could not be written; it
    changes nothing. `raised`, `left` and `exhausted` say that a task was made to raise an
    exception, to leave early, or to run out of memory.

    `fault`: the fault that it is part of (see `course_lib/spec/faults.py`), "" if it is of none.
    """

    task: str
    state: str
    why: str
    at: Seconds
    pid: Whole = 0
    factor: float = 1.0
    mbit: float | None = None
    delay_ms: float = 0.0
    jitter: str = ""
    fault: str = ""
    attempt: Whole = 0
    loss: float = 0.0

    @property
    def words(self) -> str:
        """The event in words: "slowed to 4 times its time"."""
        match self.state:
            case "slowed":
                return f"slowed to {self.factor:g} times its time"
            case "jittered":
                return f"jittered by {self.jitter}" if self.jitter else "no longer jittered"
            case "linked":
                speed = "unlimited" if self.mbit is None else f"{self.mbit:g} Mbit/s"
                lost = f", {100 * self.loss:g} % lost" if self.loss else ""
                return f"linked: {speed}, {self.delay_ms:g} ms{lost}"
        return f"{self.state} {self.why}".strip()


class Traffic(NamedTuple):
    """All that a task, or a host (`host:1`), has sent and received on the wire since the run began:
    bytes and packets, as the kernel counts them.

    Bytes are those of whole packets, headers included. The kernel passes on up to 64 KB as one
    packet; only a real network card cuts it up, or a link that loses packets.
    """

    task: str
    sent: Whole
    received: Whole
    packets_sent: Whole
    packets_received: Whole
    at: Seconds


class Clock(NamedTuple):
    """The clock of a task's node in a cluster was read: `offset` is what it lacked to the driver's,
    to which all times of the record belong, at most `unsure` seconds wrong.
    """

    task: str
    offset: float
    unsure: float
    at: Seconds


Event = Phase | Message | Update | Dropped | Metric | Read | Lifecycle | Traffic | Clock
E = TypeVar("E", bound=Event)
KINDS: dict[str, type[Event]] = {kind.__name__.lower(): kind for kind in get_args(Event)}
_TIMES = {  # kind -> which of its fields are times
    kind: [name for name, what in kind.__annotations__.items() if what == Seconds]
    for kind in KINDS.values()
}
_NAN = ConfigDict(ser_json_inf_nan="constants")  # a loss may be NaN
_ADAPTERS = {kind: TypeAdapter[Event](kind, config=_NAN) for kind in KINDS.values()}


def to_line(event: Event) -> bytes:
    """An event as one line of JSON. Raises ValueError for a field that is not what it should be; a
    number may be one of NumPy or PyTorch.
    """
    kind = type(event)
    fields = _ADAPTERS[kind].dump_json(_ADAPTERS[kind].validate_python(event))
    return b'["' + kind.__name__.lower().encode() + b'",' + fields[1:] + b"\n"


def from_line(line: bytes, origin: float = 0.0) -> Event:
    """The event of a line, its times counted from `origin`.

    Raises ValueError for a line that holds no event.
    """
    name, _, fields = line.partition(b",")
    kind = KINDS.get(name.decode(errors="replace").strip('["'))
    if kind is None:
        raise ValueError(f"no kind of event: {name!r}")
    event = _ADAPTERS[kind].validate_json(b"[" + fields, strict=True)
    return event._replace(**{time: getattr(event, time) - origin for time in _TIMES[kind]})


def from_lines(lines: bytes, origin: float = 0.0) -> tuple[list[Event], int]:
    """The events of complete lines, and how many lines hold none."""
    events, wrong = [], 0
    for line in filter(None, lines.splitlines()):
        try:
            events.append(from_line(line, origin))
        except ValueError:
            wrong += 1
    return events, wrong


# to try it on one machine: seconds by which this process's clock is wrong, and gains a second
_skew, _drift = map(float, os.environ.get("LOCKSTEP_SKEW", "0,0").split(","))
GENTLY = 0.1  # seconds in which a new offset takes over, so that no clock goes back
_kept: tuple[float, float, float] | None = None  # the last offset, the present one, since when


def own() -> float:
    """This machine's own clock."""
    now = time.monotonic()
    return now + _skew + _drift * now if _skew or _drift else now


def clock() -> float:
    """The time now, in seconds."""
    now = own()
    return now + _offset(now, *_kept) if _kept else now


def keep_to(offset: float) -> None:
    """From now on, keep to a clock that is `offset` seconds ahead of this machine's."""
    global _kept
    now = own()
    _kept = (_offset(now, *_kept) if _kept else offset), offset, now


def _offset(now: float, last: float, present: float, since: float) -> float:
    return last + (present - last) * min(1.0, (now - since) / GENTLY)


PERIOD = 0.1  # seconds in which events are written


class Recorder:
    """Collects the events of one task; a thread writes them to a file.

    `add` costs a tuple and a list append, so that tracing does not disturb what it measures. The
    thread writes every `PERIOD` seconds, so a reader of the file sees an event about 0.1 s after it
    happened. With no path, nothing is kept. `refused` is called once if the disk takes no more.
    """

    def __init__(self, path: Path | None, refused: Callable[[OSError], None] = print) -> None:
        self._pending: list[Event] = []
        self.add = self._pending.append if path else lambda event: None
        self._file = open(path, "ab", opener=private) if path else None  # noqa: SIM115
        if self._file and self._file.tell():  # an earlier attempt may have died in a line
            self._file.write(b"\n")
        self._writing, self._stop = threading.Lock(), threading.Event()
        self._refused, self._complete = refused, True
        self._thread = threading.Thread(target=self._write_on, name="recorder", daemon=True)
        if path:
            self._thread.start()

    def flush(self) -> None:
        """Write what is pending. Raises OSError if the disk refuses."""
        with self._writing:
            count = len(self._pending)
            if count and self._file:
                batch = self._pending[:count]
                self._file.write(b"".join(map(self._line, batch)))
                self._file.flush()
                del self._pending[:count]  # the list itself is kept, since `add` is bound to it

    def close(self) -> None:
        """Write what is pending and end the thread."""
        if self._file:
            self._stop.set()
            self._thread.join(timeout=5)
            self.flush()
            self._file.close()

    def _write_on(self) -> None:
        while not self._stop.wait(PERIOD):
            try:
                self.flush()
            except OSError as error:
                return self._refused(error)

    def _line(self, event: Event) -> bytes:
        """The line of an event. For the first that cannot be written, one that says so."""
        try:
            return to_line(event)
        except Exception as error:  # whatever a learner's own object raises
            first, self._complete = self._complete, False
            why = f"an event ({type(event).__name__}), which cannot be written: {one_line(error)}"
            return to_line(Lifecycle(event.task, "refused", why, clock())) if first else b""


def end_of(event: Event) -> float:
    """When an event was over."""
    return event.end if isinstance(event, (Phase, Message)) else event.at


def task_key(task: str) -> tuple[str, int]:
    """Sort key: by job, then by index as a number."""
    job, _, index = task.partition(":")
    return job, int(index) if index.isdigit() else -1
