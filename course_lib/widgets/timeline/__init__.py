"""Timeline: the Gantt chart of any trace. It shows who did what when, what each wait was for, and
who was slowed, paused or killed.

The page gets columns of numbers (`start`, `length`, ... of each phase, of each message), compressed
together. Times are whole numbers of `unit` seconds from `origin` on. Phases are in order of lane
and start, so a lane is a slice of the columns: `first[lane]` to `first[lane + 1]`.
"""

import itertools
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import traitlets

from course_lib import text
from course_lib.collectives import Simulation
from course_lib.errors import SpecError
from course_lib.record import events, export, measures
from course_lib.record.events import OWN, PHASES, Lifecycle, Message, Phase, task_key
from course_lib.record.life import Life, planned
from course_lib.record.reality import SIMULATED, Reality, reality
from course_lib.record.trace import Trace
from course_lib.record.waits import waits
from course_lib.widgets.board.plots import LANE, Lane, TimeWindow, painted, placed, rows
from course_lib.widgets.kit import badge, page, svg
from course_lib.widgets.kit.widget import Scripted

SCRIPTS = ("data", "draw", "input", "timeline")
MOST_EVENTS = 500_000  # phases, and messages: of more the last are shown
STEPS_AT_FIRST = 10  # that are in view
FAULTS = (
    *("slowed", "full speed", "jittered", "steady", "paused", "resumed", "killed", "failed"),
    *("linked", "cut", "healed", "raised", "left", "exhausted", "restarting"),
)
LARGEST = 2**32 - 1  # that a column of whole numbers holds


class Timeline(Scripted):
    """The timeline of a run, a run's directory, a file that `Trace.save` wrote, a simulation with
    its trace, or a `Trace`.

    It shows what has happened by now; `refresh()` reads on. `table()` gives the same facts as text,
    `to_html(path)` a page that needs no kernel and no network, `still(path)` a picture,
    `export(path)` a file for Perfetto. Raises `SpecError` for what has no trace.
    """

    _esm = page.asset("kit/make.js", "kit/projector.js", *(f"timeline/{s}.js" for s in SCRIPTS))
    _css = page.asset("kit/theme.css", "timeline/timeline.css")
    scene = traitlets.Dict().tag(sync=True)
    data = traitlets.Bytes().tag(sync=True)
    live = traitlets.Bool().tag(sync=True)
    notice = traitlets.Unicode().tag(sync=True)

    def __init__(self, given: Any) -> None:
        self.given = given
        super().__init__()
        self.refresh()
        self.on_msg(self._asked)

    def refresh(self) -> Self:
        """Show what has happened since; returns the timeline itself."""
        self.trace, self.title, self.reality, imposed = source(self.given)
        described, data = packed(self.trace, imposed)
        described |= {"title": self.title, "badge": badge(*self.reality)}
        live = getattr(self.given, "state", "finished") in events.ACTIVE
        with self.hold_sync():  # one message: the columns belong to the description
            self.scene, self.data, self.live = described, data, live
        self.changed()
        return self

    def export(self, path: Path | str) -> Path:
        """Write the trace in Chrome's format. Open the file at ui.perfetto.dev yourself: nothing is
        sent anywhere from here.
        """
        export.save_chrome(self.trace, Path(path))
        return Path(path)

    def picture(self, first: int | None = None, steps: int = 8, title: str = "") -> str:
        """An SVG of `steps` steps from step `first` on (default: from the middle). `title`: default
        is what ran. Raises ValueError for a trace without phases.
        """
        title = " · ".join(filter(None, (title or self.title, self.reality.word)))
        numbers = sorted({p.step for p in self.trace.all(Phase)})
        middle = numbers[max(0, (len(numbers) - steps) // 2)] if numbers else 0
        begin = middle if first is None else first
        return lanes_svg(self.trace, title, begin, steps)

    def table(self) -> str:
        """Tell as text the time of each task by phase, and for whom it waited; the messages, if
        they were recorded; and the faults.
        """
        trace, lanes = self.trace, self.scene["lanes"]
        parts = [measures.table(trace)] if trace.all(Phase) else []
        waited = (
            (p.task, released.task if released else "network or core", p.end - p.start)
            for p, released, _ in waits(trace.with_waits())
        )
        sent = ((m.src, m.dst, m.bytes) for m in trace.all(Message))
        faults = [(f"{f['at']:.2f} s", lanes[f["lane"]], f["words"]) for f in self.scene["faults"]]
        parts += [_sums("waited for", waited, "{:.2f} s"), _sums("to", sent, "{} bytes")]
        return "\n\n".join(filter(None, [*parts, text.table(faults)]))

    def _asked(self, _: Any, content: dict[str, Any], buffers: Any) -> None:
        """A button was pressed."""
        if content.get("do") == "refresh":
            self.refresh()
        elif content.get("do") == "export":
            name = "-".join(re.findall(r"[^\s·,]+", self.title)) or "trace"
            path = self.export(f"{name}.perfetto.json").resolve()
            yourself = "Open it at ui.perfetto.dev yourself; nothing was sent anywhere."
            self.notice = f"Written: {path}. {yourself}"

    def __repr__(self) -> str:
        tasks = f"{len(self.scene['lanes'])} tasks"
        facts = filter(None, (self.title, tasks, self.reality.word))
        return f"Timeline({', '.join(facts)})"


def _sums(verb: str, amounts: Iterable[tuple[str, str, float]], form: str) -> str:
    """A table of how often something went on between two tasks, and how much it was together."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one, other, amount in amounts:
        sums[one, other].append(amount)
    rows = [
        (f"{one} {verb} {other}", f"{len(each)} times", form.format(sum(each)))
        for (one, other), each in sorted(sums.items(), key=lambda item: [*map(task_key, item[0])])
    ]
    return text.table(rows, right=True)


def source(given: Any) -> tuple[Trace, str, Reality, list[Lifecycle]]:
    """The trace of what was given, its title, how real it is ("" if that is not known), and what
    its spec imposed on tasks from the start.

    Raises `SpecError` for a path that holds no trace, and for an object that has none.
    """
    try:
        if isinstance(given, str | Path):
            given = Trace.of_run(given) if Path(given).is_dir() else Trace.load(given)
        trace = given if isinstance(given, Trace) else getattr(given, "trace", None)
        if not isinstance(trace, Trace):
            raise ValueError("it has no trace")
    except (OSError, ValueError) as error:
        allowed = "a run, its directory, a simulation with trace=True, or a Trace: Timeline(run)"
        raise SpecError("trace", given, f"{allowed} ({error})") from None
    if isinstance(given, Simulation):
        title = f"{given.schedule.name}, {given.schedule.ranks} ranks"
        return trace, title, SIMULATED, []
    saved = trace.files.spec if trace.files and trace.files.holds_run else None
    if spec := getattr(given, "spec", None) or saved:
        shares = f"{spec.shares} {'replicas' if spec.replicas > 1 else 'workers'}"
        title = f"{spec.strategy} · {spec.framework} · {shares}"
        imposed = planned(spec)
        life = Life([*imposed, *trace.all(Lifecycle)])
        return trace, title, reality(spec, life), imposed
    algorithm = getattr(given, "algorithm", "")
    title = f"{algorithm}, {given.workers} workers" if algorithm else ""
    real = Reality(getattr(given, "reality", ""), getattr(given, "why", ""))
    return trace, title, real, []


# --- the columns of the page ---


def packed(trace: Trace, imposed: Sequence[Lifecycle] = ()) -> tuple[dict[str, Any], bytes]:
    """The scene of a timeline: a description for JSON, and the columns as compressed bytes.
    `imposed`: what was done to tasks before the start.
    """
    orders, sent = trace.all(Lifecycle), trace.all(Message)
    life = Life([*imposed, *orders])
    hit = {span.who for span in life.of(None, *FAULTS) if span.start > 0}  # hosts among them
    phases = sorted(trace.with_waits(), key=lambda p: p.end)
    ends = {end for m in sent for end in (m.src, m.dst)}
    lanes = sorted({*trace.tasks, *hit, *ends, *(p.task for p in phases)}, key=task_key)
    place = {task: i for i, task in enumerate(lanes)}
    left_out = sum(max(0, len(kind) - MOST_EVENTS) for kind in (phases, sent))
    phases = sorted(phases[-MOST_EVENTS:], key=lambda p: (place[p.task], p.start))
    messages = sorted(sent, key=lambda m: m.start)[-MOST_EVENTS:]
    timed: list[Phase | Message] = [*phases, *messages]
    spans = [(e.start, e.end) for e in timed] + [(e.at, e.at) for e in orders]
    origin, end = float(np.min(spans or 0.0)), float(np.max(spans or 0.0))
    unit = max((end - origin) / LARGEST, min(1e-6, (end - origin) / 1e6)) or 1e-9

    def ticks(seconds: Iterable[float]) -> np.ndarray:
        whole = np.round((np.array([*seconds], float) - origin) / unit)
        return whole.clip(0, LARGEST).astype("<u4")

    def lasting(timed: Sequence[Phase | Message]) -> tuple[np.ndarray, np.ndarray]:
        """Starts, each as the difference to the one before (they compress better), and lengths."""
        start = ticks(e.start for e in timed)
        return np.diff(start, prepend=np.uint32(0)), ticks(e.end for e in timed) - start

    own = sorted({p.what for p in phases if p.kind == OWN} - {OWN})
    names = [*PHASES, OWN, *own[:200]]  # as many as a byte can number, about
    number = {name: i for i, name in enumerate(names)}
    steps = _step_ends(trace)
    columns = dict(zip(("start", "length"), lasting(phases), strict=True))
    rows = [(p.step, number.get(p.what, number[OWN])) for p in phases]
    columns |= _columns(rows, step="u4", what="u1")
    columns |= dict(zip(("mStart", "mLength"), lasting(messages), strict=True))
    sizes = [(place[m.src], place[m.dst], m.bytes, m.round, m.chunk) for m in messages]
    columns |= _columns(sizes, src="u2", dst="u2", bytes="f8", round="u4", chunk="u4")
    columns |= _columns(_waits(phases), wait="u4", released="u4", last="u1")
    columns |= _columns([(step,) for step in steps], steps="u4")
    columns["stepEnds"] = ticks(steps.values())
    counts = np.bincount([place[p.task] for p in phases], minlength=len(lanes))
    shades = [(what, svg.PHASE.get(what, svg.PHASE[OWN])) for what in names]
    clocks = [(c.task, c.unsure) for c in trace.all(events.Clock)]
    described = {
        "lanes": lanes,
        "first": [0, *np.cumsum(counts).tolist()],
        "origin": origin,
        "unit": unit,
        "endAt": end,
        "phases": [[what, s.color, s.pattern, f"{what}: {s.meaning}"] for what, s in shades],
        "faults": _faults(life, place, end),
        # seconds, at most, by which its node's clock is wrong
        "unsure": [max((u for t, u in clocks if t == lane), default=0.0) for lane in lanes],
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
    """An SVG picture of `steps` steps from step `first` on: a lane for each task, as on a board.

    Raises ValueError if the trace has no phase in those steps.
    """
    phases = [p for p in trace.with_waits() if first <= p.step < first + steps]
    if not phases:
        raise ValueError(f"the trace has no phases in steps {first} to {first + steps - 1}")
    life, idle = Life(trace.all(Lifecycle)), measures.IdleTime()
    start = min(p.start for p in phases)
    window = TimeWindow(start, max(start + 1e-9, *(p.end for p in phases)), start)
    idle.add(phases)
    drawn = []
    for task in sorted({p.task for p in phases}, key=task_key):
        cells, hidden = painted((p for p in phases if p.task == task), window)
        marks = placed(life.marks((task,)), window)
        drawn.append(Lane(task, cells, hidden, idle.share.get(task, 0.0), events=marks))
    present, bottom = {p.kind for p in phases}, 70 + LANE * len(drawn)
    shown = [what for what in svg.PHASE if what in present]
    size = 960, bottom + 22 * ((len(shown) + 1) // 2) + 14
    parts = [
        page.paper(*size),
        svg.patterns("ls-"),
        svg.text(112, 26, name, font_size=17, font_weight=600, class_="ink"),
        rows(drawn, window, (0, 40, 960, LANE), "ls-"),
        svg.legend(shown, 112, bottom + 12, "ls-", columns=2),
    ]
    return svg.picture(*size, name, parts)
