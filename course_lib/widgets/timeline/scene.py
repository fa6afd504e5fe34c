"""From a trace to pictures: columns of numbers for the page of a timeline, and SVG for a slide.

The columns (`start`, `length`, ... of each phase, of each message) are compressed together. Times
are whole numbers of `unit` seconds from `origin` on. Phases are in order of lane and start, so a
lane is a slice of the columns: `first[lane]` to `first[lane + 1]`.
"""

import itertools
import zlib
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from course_lib.record import measures
from course_lib.record.events import OWN, PHASES, Clock, Lifecycle, Message, Phase, Update, task_key
from course_lib.record.life import Life
from course_lib.record.trace import Trace
from course_lib.record.waits import waits, with_waits
from course_lib.widgets.kit import Inside, element, svg
from course_lib.widgets.kit.palette import ALARM, INK, PHASE, THIN

MOST_EVENTS = 500_000  # phases, and messages: of more the last are shown
MOST_NAMES = 200  # of phases of a learner's own
STEPS_AT_FIRST = 10  # that are in view
FAULTS = (
    *("slowed", "full speed", "jittered", "steady", "paused", "resumed", "killed", "failed"),
    *("linked", "cut", "healed", "raised", "left", "exhausted", "restarting"),
)
LARGEST = 2**32 - 1  # that a column of whole numbers holds
WIDTH, LEFT, RIGHT, LANE, TOP = 960, 90, 940, 34, 52  # of an SVG picture
BLUE = PHASE["compute"].color


def packed(trace: Trace, imposed: Sequence[Lifecycle] = ()) -> tuple[dict[str, Any], bytes]:
    """The scene of a timeline: a description for JSON, and the columns as compressed bytes.
    `imposed`: what was done to tasks before the start.
    """
    orders, sent = trace.all(Lifecycle), trace.all(Message)
    life = Life([*imposed, *orders])
    hit = {span.who for span in life.of(None, *FAULTS) if span.start > 0}  # hosts among them
    phases = sorted(with_waits(trace), key=lambda p: p.end)
    ends = {end for m in sent for end in (m.src, m.dst)}
    lanes = sorted({*trace.tasks, *hit, *ends, *(p.task for p in phases)}, key=task_key)
    place = {task: i for i, task in enumerate(lanes)}
    left_out = sum(max(0, len(events) - MOST_EVENTS) for events in (phases, sent))
    phases = sorted(phases[-MOST_EVENTS:], key=lambda p: (place[p.task], p.start))
    messages = sorted(sent, key=lambda m: m.start)[-MOST_EVENTS:]
    events: list[Phase | Message] = [*phases, *messages]
    spans = [(e.start, e.end) for e in events] + [(e.at, e.at) for e in orders]
    origin, end = float(np.min(spans or 0.0)), float(np.max(spans or 0.0))
    unit = max((end - origin) / LARGEST, min(1e-6, (end - origin) / 1e6)) or 1e-9

    def ticks(seconds: Iterable[float]) -> np.ndarray:
        whole = np.round((np.array([*seconds], float) - origin) / unit)
        return whole.clip(0, LARGEST).astype("<u4")

    def lasting(events: Sequence[Phase | Message]) -> tuple[np.ndarray, np.ndarray]:
        """Starts, each as the difference to the one before (they compress better), and lengths."""
        start = ticks(e.start for e in events)
        return np.diff(start, prepend=np.uint32(0)), ticks(e.end for e in events) - start

    own = sorted({p.what for p in phases if p.kind == OWN} - {OWN})
    names = [*PHASES, OWN, *own[:MOST_NAMES]]
    number = {name: i for i, name in enumerate(names)}
    steps = _step_ends(trace)
    columns = dict(zip(("start", "length"), lasting(phases), strict=True))
    rows = [(p.step, number.get(p.what, number[OWN])) for p in phases]
    columns |= _columns(rows, step="u4", what="u1")
    columns |= dict(zip(("mStart", "mLength"), lasting(messages), strict=True))
    sizes = [(place[m.src], place[m.dst], m.bytes, m.round, m.chunk) for m in messages]
    columns |= _columns(sizes, src="u2", dst="u2", bytes="f8", round="u4", chunk="u4")
    columns |= _columns(_waits(phases), wait="u4", released="u4", last="u1")
    columns |= _columns(_updates(trace, phases), update="u4", version="u4", staleness="u4")
    columns |= _columns([(step,) for step in steps], steps="u4")
    columns["stepEnds"] = ticks(steps.values())
    counts = np.bincount([place[p.task] for p in phases], minlength=len(lanes))
    shades = [(what, PHASE.get(what, PHASE[OWN])) for what in names]
    clocks = [(c.task, c.unsure) for c in trace.all(Clock)]
    described = {
        "lanes": lanes,
        "first": [0, *np.cumsum(counts).tolist()],
        "origin": origin,
        "unit": unit,
        "endAt": end,
        "phases": [[what, s.color, s.pattern, f"{what}: {s.meaning}"] for what, s in shades],
        "faults": _faults(life, place, end),
        # seconds, at most, by which its node's clock is wrong
        "unsure": [
            max((off for task, off in clocks if task == lane), default=0.0) for lane in lanes
        ],
        "opening": _opening(life, phases),
        "leftOut": left_out,
        "layout": [[name, column.dtype.str[1:], len(column)] for name, column in columns.items()],
    }
    return described, zlib.compress(b"".join(column.tobytes() for column in columns.values()))


def _columns(rows: Sequence[Sequence[float]], **kinds: str) -> dict[str, np.ndarray]:
    """Rows of numbers as a column for each name, of its type. The lowest whole number is 0, the
    highest LARGEST.
    """
    table = np.array(rows, np.float64).reshape(-1, len(kinds))
    most = [LARGEST if kind[0] == "u" else np.inf for kind in kinds.values()]
    columns = zip(kinds.items(), table.clip(0, most).T, strict=True)
    return {name: column.astype(kind) for (name, kind), column in columns}


def _waits(phases: list[Phase]) -> list[tuple[int, int, bool]]:
    """For each wait with a known cause: its phase, the phase that released it, and True if that was
    of the last worker to come to a reduction.
    """
    index = {p: i for i, p in enumerate(phases)}
    return [(index[w.phase], index[w.released], w.last) for w in waits(phases) if w.released]


def _updates(trace: Trace, phases: list[Phase]) -> list[tuple[int, int, int]]:
    """For each `apply` that made an update: its phase, the version that it made, and the staleness
    of its gradients.
    """
    applies: dict[tuple[str, int], deque[int]] = defaultdict(deque)
    for i, p in enumerate(phases):
        if p.what == "apply":
            applies[p.task, p.step].append(i)
    made = [(u, applies[u.task, u.step]) for u in trace.all(Update)]
    return [(mine.popleft(), u.written, u.staleness) for u, mine in made if mine]


def _step_ends(trace: Trace) -> dict[int, float]:
    """The end of each step; none if one was applied before another was over, as without synchrony:
    then no line divides them.
    """
    spans = measures.step_spans(trace)
    if any(b[0] < a[1] for a, b in itertools.pairwise(spans.values())):
        return {}
    return {step: last for step, (_, last) in spans.items()}


def _faults(life: Life, place: dict[str, int], end: float) -> list[dict[str, Any]]:
    """The faults of tasks and hosts, each until what ends it; what happened at a moment, to the end
    of the run.
    """
    return [
        {
            "lane": place[span.who],
            "state": span.state,
            "words": span.cause.words,
            "factor": span.cause.factor,
            "at": span.start,
            "until": span.end if span.start < span.end < end else end,
        }
        for span in life.of(None, *FAULTS)
        if span.who in place
    ]


def _opening(life: Life, phases: list[Phase]) -> list[float] | None:
    """The span that is in view at first: some steps around the first fault, else in the middle;
    None: everything.
    """
    steps = len({p.step for p in phases})
    if steps <= STEPS_AT_FIRST:
        return None
    began, ended = min(p.start for p in phases), max(p.end for p in phases)
    faults = (span.start for span in life.of(None, *FAULTS) if span.start > began)
    middle, width = next(faults, (began + ended) / 2), STEPS_AT_FIRST * (ended - began) / steps
    return [middle - width / 2, middle + width / 2]


# --- as SVG ---


def lanes_svg(trace: Trace, name: str, first: int = 0, steps: int = 8) -> str:
    """An SVG picture of `steps` steps from step `first` on: a lane for each task, a bar for each
    phase, time from left to right.

    Raises ValueError if the trace has no phase in those steps.
    """
    phases = [p for p in with_waits(trace) if first <= p.step < first + steps]
    if not phases:
        raise ValueError(f"the trace has no phases in steps {first} to {first + steps - 1}")
    tasks = sorted({p.task for p in phases}, key=task_key)
    top = {task: TOP + LANE * i for i, task in enumerate(tasks)}
    span = min(p.start for p in phases), max(p.end for p in phases)
    parts: list[Inside] = [svg.patterns("ls-")]
    for p in phases:
        words = f"{p.task}, step {p.step}: {p.what} {1000 * (p.end - p.start):.1f} ms"
        x, end = np.interp((p.start, p.end), span, (LEFT, RIGHT))
        height = (LANE - 6) * (THIN if p.what == "hidden" else 1)
        box = x, top[p.task] + LANE - 3 - height, max(end - x, 0.8), height
        parts.append(svg.rect(*box, svg.title(words), fill=f"url(#ls-{p.kind})"))
    for e in trace.all(Lifecycle):
        if e.state in FAULTS and span[0] <= e.at <= span[1] and e.task in tasks:
            x = np.interp(e.at, span, (LEFT, RIGHT))
            parts.append(svg.path("M", x, top[e.task], "v", LANE, stroke=ALARM, stroke_width=3))
            beside, anchor = (x + 6, "start") if x < WIDTH / 2 else (x - 6, "end")
            style = {"fill": ALARM, "font_weight": 600, "text_anchor": anchor}
            parts.append(svg.text(beside, top[e.task] + 22, e.words, **style))
    present = [what for what in PHASE if any(p.kind == what for p in phases)]
    bottom = TOP + LANE * len(tasks) + 46
    parts.append(svg.legend(present, (LEFT, bottom), "ls-", columns=2, full=True))
    return _picture(name, tasks, LANE, span, parts, bottom + 22 * ((len(present) + 1) // 2))


def messages_svg(trace: Trace, name: str) -> str:
    """An SVG picture of the messages of a trace: a line for each task, and for each message an
    arrow from its sending to its arrival. Raises ValueError if the trace has no message.
    """
    messages = trace.all(Message)
    if not messages:
        raise ValueError("the trace has neither phases nor messages")
    tasks, pitch = sorted({end for m in messages for end in (m.src, m.dst)}, key=task_key), 46
    span = min(m.start for m in messages), max(m.end for m in messages)
    middle = {task: TOP + pitch * (i + 0.5) for i, task in enumerate(tasks)}
    lines = [svg.path("M", LEFT, y, "H", RIGHT, stroke=INK, opacity=0.4) for y in middle.values()]
    arrows = []
    for m in messages:
        what = f"{m.src} to {m.dst}, round {m.round}, chunk {m.chunk}"
        words = f"{what}: {m.bytes} bytes in {1000 * (m.end - m.start):.3g} ms"
        x, end = np.interp((m.start, m.end), span, (LEFT, RIGHT))
        ends = ("M", x, middle[m.src], "L", end, middle[m.dst])
        arrows.append(svg.path(*ends, inside=svg.title(words)))
    style = {"stroke": BLUE, "fill": "none", "marker_end": "url(#ls-tip)"}
    parts = [svg.arrow_head("ls-tip", BLUE, 8), lines, element("g", arrows, **style)]
    return _picture(name, tasks, pitch, span, parts, TOP + pitch * len(tasks) + 34)


def _picture(
    name: str,
    tasks: Sequence[str],
    pitch: float,
    span: tuple[float, float],
    parts: Inside,
    height: float,
) -> str:
    """A picture with a heading, a name for each row, and an axis of time since the first moment
    shown, in the unit that suits it.
    """
    rows = [(TOP + (row + 0.5) * pitch + 5, task) for row, task in enumerate(tasks)]
    drawn = [svg.text(LEFT - 10, y, task, text_anchor="end") for y, task in rows]
    seconds, bottom = span[1] - span[0], TOP + pitch * len(tasks)
    factor, unit = (1, "s") if seconds >= 10 else (1e3, "ms") if seconds >= 0.01 else (1e6, "µs")
    for tick in svg.ticks(0, seconds * factor, 10):
        x = np.interp(tick / factor, (0, seconds), (LEFT, RIGHT))
        drawn.append(svg.text(x, bottom + 18, f"{tick:.0f} {unit}", text_anchor="middle"))
    heading = svg.text(LEFT, 26, name, font_size=17, font_weight=600)
    return svg.picture(WIDTH, height, name, heading, drawn, parts)
