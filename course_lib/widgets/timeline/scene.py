"""From a trace to what the timeline draws: columns of numbers, packed small.

The columns (`start`, `length`, ... of each phase, of each message) are compressed together. Times
are whole numbers of `unit` seconds from `origin` on. Phases are in order of lane and start, so a
lane is a slice of the columns: `first[lane]` to `first[lane + 1]`.
"""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from typing import Any

import numpy as np

from course_lib.record import measures
from course_lib.record.events import PHASES, Lifecycle, Message, Phase, Update, end_of
from course_lib.record.trace import Trace
from course_lib.record.waits import waits, with_waits
from course_lib.widgets.kit.palette import PHASE

MOST = 500_000  # phases, and messages: of more the last are shown
OPENING = 10  # steps in view at first
FAULTS = ("slowed", "paused", "resumed", "killed", "failed", "linked", "cut", "healed")
ENDED_BY = {
    "paused": ("resumed", "killed", "failed"),
    "slowed": ("slowed", "full speed", "killed", "failed"),
    "linked": ("linked", "cut"),
    "cut": ("healed",),
}
NOBODY = 2**32 - 1


def scene(trace: Trace, slow: dict[str, float] | None = None) -> tuple[dict[str, Any], bytes]:
    """What to draw as JSON, and its columns as compressed bytes. `slow`: tasks that were slow from
    the start, and by how much.
    """
    # and tasks, which are there anyway
    hosts = {e.task for e in trace.all(Lifecycle) if e.state in FAULTS}
    lanes = sorted(
        {*trace.tasks, *hosts, *(end for m in trace.all(Message) for end in (m.src, m.dst))},
        key=_lane_key,
    )
    place = {task: i for i, task in enumerate(lanes)}
    all_phases, all_messages = (
        sorted(with_waits(trace), key=end_of),
        sorted(trace.all(Message), key=lambda m: m.start),
    )
    phases, messages = all_phases[-MOST:], all_messages[-MOST:]
    phases.sort(key=lambda p: (place[p.task], p.start))
    lasting: list[Phase | Message] = [*phases, *messages]
    moments = [e.at for e in trace.all(Lifecycle)]
    origin, end = (
        min([e.start for e in lasting] + moments, default=0.0),
        max([e.end for e in lasting] + moments, default=0.0),
    )
    unit = max((end - origin) / NOBODY, min(1e-6, (end - origin) / 1e6)) or 1e-9
    clock = _Clock(origin, unit)
    columns = {
        **_phases(phases, clock),
        **_messages(messages, place, clock),
        **_waits(phases),
        **_updates(trace, phases),
    }
    steps = _step_ends(trace)
    columns["steps"] = np.array([step for step, _ in steps], np.uint32)
    columns["stepEnds"] = clock([end for _, end in steps])
    counts = np.bincount([place[p.task] for p in phases], minlength=len(lanes))
    described = {
        "lanes": lanes,
        "first": [0, *np.cumsum(counts).tolist()],
        "origin": origin,
        "unit": unit,
        "endAt": end,
        "phases": [
            [what, PHASE[what].color, PHASE[what].pattern, f"{what}: {PHASE[what].meaning}"]
            for what in PHASES
        ],
        "faults": _faults(trace, place, slow or {}, end),
        "opening": _opening(trace, phases, steps),
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


class _Clock:
    """Seconds as whole numbers of `unit` from `origin` on."""

    def __init__(self, origin: float, unit: float) -> None:
        self.origin, self.unit = origin, unit

    def __call__(self, seconds: list[float]) -> np.ndarray:
        ticks = np.round((np.array(seconds, dtype=float) - self.origin) / self.unit)
        return np.clip(ticks, 0, NOBODY).astype("<u4")


def _span(events: list[Phase] | list[Message], clock: _Clock) -> tuple[np.ndarray, np.ndarray]:
    """Starts, each as the difference to the one before (they compress better so), and lengths."""
    start, end = clock([e.start for e in events]), clock([e.end for e in events])
    return np.diff(start, prepend=np.uint32(0)), end - start


def _phases(phases: list[Phase], clock: _Clock) -> dict[str, np.ndarray]:
    start, length = _span(phases, clock)
    what = np.array([PHASES.index(p.what) for p in phases], np.uint8)
    return {
        "start": start,
        "length": length,
        "step": np.array([p.step for p in phases], np.uint32),
        "what": what,
    }


def _messages(
    messages: list[Message], place: dict[str, int], clock: _Clock
) -> dict[str, np.ndarray]:
    start, length = _span(messages, clock)
    ends = {
        side: np.array([place[getattr(m, side)] for m in messages], np.uint16)
        for side in ("src", "dst")
    }
    size = np.array([m.bytes for m in messages], np.float64)
    numbers = {
        name: np.array([getattr(m, name) for m in messages], np.uint32)
        for name in ("round", "chunk")
    }
    return {"mStart": start, "mLength": length, **ends, "bytes": size, **numbers}


def _waits(phases: list[Phase]) -> dict[str, np.ndarray]:
    """For each wait whose end somebody brought about: its phase, the phase that did, and whether
    that was the last of a reduction.
    """
    index = {p: i for i, p in enumerate(phases)}
    known = [(index[w.phase], index[w.released], w.last) for w in waits(phases) if w.released]
    rows = np.array(known, np.uint32).reshape(-1, 3)
    return {
        "wait": rows[:, 0].copy(),
        "released": rows[:, 1].copy(),
        "last": rows[:, 2].astype(np.uint8),
    }


def _updates(trace: Trace, phases: list[Phase]) -> dict[str, np.ndarray]:
    """For each `apply` that made an update: its phase, the version that it made, and the staleness
    of its gradients.
    """
    applies: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i in reversed(range(len(phases))):
        if phases[i].what == "apply":
            applies[phases[i].task, phases[i].step].append(i)
    made = [
        (found.pop(), u.written, u.staleness)
        for u in trace.all(Update)
        if (found := applies[u.task, u.step])
    ]
    rows = np.array(made, np.int64).reshape(-1, 3).clip(0, NOBODY).astype(np.uint32)
    return {
        "update": rows[:, 0].copy(),
        "version": rows[:, 1].copy(),
        "staleness": rows[:, 2].copy(),
    }


def _step_ends(trace: Trace) -> list[tuple[int, float]]:
    """Steps and when they were over; none if one was applied before another was over, as without
    synchrony: then no line divides them.
    """
    spans = measures.step_spans(trace)
    if any(b[0] < a[1] for a, b in itertools.pairwise(spans.values())):
        return []
    return [(step, last) for step, (_, last) in spans.items()]


def _faults(
    trace: Trace, place: dict[str, int], slow: dict[str, float], end: float
) -> list[dict[str, Any]]:
    """What was done to tasks and hosts, or befell them, each until the next such thing."""
    events = [
        Lifecycle(task, "slowed", "", 0.0, factor=factor)
        for task, factor in slow.items()
        if task in place
    ]
    events += sorted((e for e in trace.all(Lifecycle) if e.state in FAULTS), key=end_of)
    events = [
        e._replace(state="full speed", why="") if (e.state, e.factor) == ("slowed", 1.0) else e
        for e in events
    ]
    found = []
    for i, e in enumerate(events):
        later = (
            other.at
            for other in events[i + 1 :]
            if other.task == e.task and other.state in ENDED_BY.get(e.state, ())
        )
        found.append(
            {
                "lane": place[e.task],
                "state": e.state,
                "words": e.words,
                "factor": e.factor,
                "at": e.at,
                "until": next(later, end),
            }
        )
    return found


def _opening(
    trace: Trace, phases: list[Phase], steps: list[tuple[int, float]]
) -> list[float] | None:
    """What is in view at first: some steps around the first fault, else in the middle; None:
    everything.
    """
    numbers = sorted({p.step for p in phases})
    if len(numbers) <= OPENING:
        return None
    began = min(p.start for p in phases)
    fault = next((e.at for e in trace.all(Lifecycle) if e.state in FAULTS and e.at > began), None)
    middle = fault if fault is not None else (began + max(p.end for p in phases)) / 2
    width = OPENING * (max(p.end for p in phases) - began) / len(numbers)
    return [middle - width / 2, middle + width / 2]
