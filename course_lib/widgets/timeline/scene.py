"""From a trace to what the timeline draws: columns of numbers, packed small.

The columns (`start`, `length`, ... of each phase, of each message) are compressed together. Times
are whole numbers of `unit` seconds from `origin` on. Phases are in order of lane and start, so a
lane is a slice of the columns: `first[lane]` to `first[lane + 1]`.
"""

import itertools
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from course_lib.record import measures
from course_lib.record.events import OWN, PHASES, Clock, Lifecycle, Message, Phase, Update, end_of
from course_lib.record.life import Life
from course_lib.record.trace import Trace
from course_lib.record.waits import waits, with_waits
from course_lib.widgets.kit.palette import PHASE

MOST_EVENTS = 500_000  # phases, and messages: of more the last are shown
MOST_NAMES = 200  # of phases of a learner's own
STEPS_AT_FIRST = 10  # that are in view
FAULTS = (
    *("slowed", "full speed", "jittered", "steady", "paused", "resumed", "killed", "failed"),
    *("linked", "cut", "healed", "raised", "left", "exhausted", "restarting"),
)
LARGEST = 2**32 - 1  # that a column of whole numbers holds
ToTicks = Callable[[list[float]], np.ndarray]


def packed(trace: Trace, imposed: Sequence[Lifecycle] = ()) -> tuple[dict[str, Any], bytes]:
    """What the timeline of a trace draws: a description for JSON, and the columns as compressed
    bytes. `imposed`: what was done to tasks before the start.
    """
    orders = trace.all(Lifecycle)
    life = Life([*imposed, *orders])
    hit = {span.who for span in life.of(None, *FAULTS) if span.start > 0}  # hosts among them
    ends = {end for m in trace.all(Message) for end in (m.src, m.dst)}
    busy = {p.task for p in trace.all(Phase)}
    lanes = sorted({*trace.tasks, *hit, *ends, *busy}, key=_lane_key)
    place = {task: i for i, task in enumerate(lanes)}
    all_phases = sorted(with_waits(trace), key=end_of)
    all_messages = sorted(trace.all(Message), key=lambda m: m.start)
    phases, messages = all_phases[-MOST_EVENTS:], all_messages[-MOST_EVENTS:]
    phases.sort(key=lambda p: (place[p.task], p.start))
    lasting: list[Phase | Message] = [*phases, *messages]
    moments = [e.at for e in orders]
    origin = min([e.start for e in lasting] + moments, default=0.0)
    end = max([e.end for e in lasting] + moments, default=0.0)
    unit = max((end - origin) / LARGEST, min(1e-6, (end - origin) / 1e6)) or 1e-9
    clock = partial(_ticks, origin, unit)
    steps = _step_ends(trace)
    names = _names(phases)
    unsure = dict.fromkeys(lanes, 0.0)
    for c in trace.all(Clock):
        unsure[c.task] = max(c.unsure, unsure[c.task])
    columns = {
        **_phases(phases, names, clock),
        **_messages(messages, place, clock),
        **_waits(phases),
        **_updates(trace, phases),
        **_columns([(step,) for step, _ in steps], steps="u4"),
        "stepEnds": clock([end for _, end in steps]),
    }
    counts = np.bincount([place[p.task] for p in phases], minlength=len(lanes))
    shades = [(what, PHASE.get(what, PHASE[OWN])) for what in names]
    described = {
        "lanes": lanes,
        "first": [0, *np.cumsum(counts).tolist()],
        "origin": origin,
        "unit": unit,
        "endAt": end,
        "phases": [[what, s.color, s.pattern, f"{what}: {s.meaning}"] for what, s in shades],
        "faults": _faults(life, place, end),
        "unsure": [*unsure.values()],  # seconds, at most, by which its node's clock is wrong
        "opening": _opening(life, phases),
        "leftOut": len(all_phases) - len(phases) + len(all_messages) - len(messages),
        "layout": [[name, column.dtype.str[1:], len(column)] for name, column in columns.items()],
    }
    return described, zlib.compress(b"".join(column.tobytes() for column in columns.values()))


def _lane_key(task: str) -> tuple[int, str, int]:
    """Chief first, then workers, then whoever serves them: arrows between workers and servers then
    cross few lanes.
    """
    job, _, index = task.partition(":")
    order = {"chief": 0, "worker": 1, "host": 3}.get(job, 2)
    return order, job, int(index) if index.isdigit() else -1


def _ticks(origin: float, unit: float, seconds: list[float]) -> np.ndarray:
    """Seconds as whole numbers of `unit` from `origin` on."""
    ticks = np.round((np.array(seconds, dtype=float) - origin) / unit)
    return np.clip(ticks, 0, LARGEST).astype("<u4")


def _span(events: list[Phase] | list[Message], clock: ToTicks) -> tuple[np.ndarray, np.ndarray]:
    """Starts, each as the difference to the one before (they compress better so), and lengths."""
    start, end = clock([e.start for e in events]), clock([e.end for e in events])
    return np.diff(start, prepend=np.uint32(0)), end - start


def _columns(rows: Sequence[Sequence[float]], **kinds: str) -> dict[str, np.ndarray]:
    """Rows of numbers as a column for each name, of its type. The lowest whole number is 0, the
    highest LARGEST.
    """
    table = np.array(rows, np.float64).reshape(-1, len(kinds))
    most = [LARGEST if kind[0] == "u" else np.inf for kind in kinds.values()]
    columns = zip(kinds.items(), table.clip(0, most).T, strict=True)
    return {name: column.astype(kind) for (name, kind), column in columns}


def _names(phases: list[Phase]) -> list[str]:
    """List the names of phases: `PHASES`, then a learner's own, with `OWN` for too many."""
    own = sorted({p.what for p in phases if p.kind == OWN} - {OWN})
    return [*PHASES, OWN, *own[:MOST_NAMES]]


def _phases(phases: list[Phase], names: list[str], clock: ToTicks) -> dict[str, np.ndarray]:
    start, length = _span(phases, clock)
    number = {name: i for i, name in enumerate(names)}
    rows = [(p.step, number.get(p.what, number[OWN])) for p in phases]
    return {"start": start, "length": length, **_columns(rows, step="u4", what="u1")}


def _messages(
    messages: list[Message], place: dict[str, int], clock: ToTicks
) -> dict[str, np.ndarray]:
    start, length = _span(messages, clock)
    rows = [(place[m.src], place[m.dst], m.bytes, m.round, m.chunk) for m in messages]
    kinds = {"src": "u2", "dst": "u2", "bytes": "f8", "round": "u4", "chunk": "u4"}
    return {"mStart": start, "mLength": length, **_columns(rows, **kinds)}


def _waits(phases: list[Phase]) -> dict[str, np.ndarray]:
    """For each wait with a known cause: its phase, the phase that released it, and whether that was
    of the last worker to come to a reduction.
    """
    index = {p: i for i, p in enumerate(phases)}
    known = [(index[w.phase], index[w.released], w.last) for w in waits(phases) if w.released]
    return _columns(known, wait="u4", released="u4", last="u1")


def _updates(trace: Trace, phases: list[Phase]) -> dict[str, np.ndarray]:
    """For each `apply` that made an update: its phase, the version that it made, and the staleness
    of its gradients.
    """
    applies: dict[tuple[str, int], deque[int]] = defaultdict(deque)
    for i, p in enumerate(phases):
        if p.what == "apply":
            applies[p.task, p.step].append(i)
    made = []
    for u in trace.all(Update):
        if mine := applies[u.task, u.step]:
            made.append((mine.popleft(), u.written, u.staleness))
    return _columns(made, update="u4", version="u4", staleness="u4")


def _step_ends(trace: Trace) -> list[tuple[int, float]]:
    """Steps and when they were over; none if one was applied before another was over, as without
    synchrony: then no line divides them.
    """
    spans = measures.step_spans(trace)
    if any(b[0] < a[1] for a, b in itertools.pairwise(spans.values())):
        return []
    return [(step, last) for step, (_, last) in spans.items()]


def _faults(life: Life, place: dict[str, int], end: float) -> list[dict[str, Any]]:
    """What was done to tasks and hosts, or befell them, each until what ends it."""
    found = []
    for span in life.of(None, *FAULTS):
        if span.who in place:
            deaths = [death.start for death in life.of(span.who, "killed", "failed")]
            ends = [at for at in (*deaths, span.end) if at > span.start]  # of a moment: none
            facts = {"state": span.state, "words": span.cause.words, "factor": span.cause.factor}
            when = {"at": span.start, "until": min([*ends, end])}
            found.append({"lane": place[span.who], **facts, **when})
    return found


def _opening(life: Life, phases: list[Phase]) -> list[float] | None:
    """What is in view at first: some steps around the first fault, else in the middle; None:
    everything.
    """
    steps = len({p.step for p in phases})
    if steps <= STEPS_AT_FIRST:
        return None
    began, ended = min(p.start for p in phases), max(p.end for p in phases)
    faults = (span.start for span in life.of(None, *FAULTS) if span.start > began)
    middle, width = next(faults, (began + ended) / 2), STEPS_AT_FIRST * (ended - began) / steps
    return [middle - width / 2, middle + width / 2]
